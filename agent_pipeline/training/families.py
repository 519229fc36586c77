"""Families of chat templates: how each writes a tool call, how that is read back, and what ends its turns.

A new family is one more entry of `FAMILIES`. What a model renders is its own template where that loses nothing (`templates`); a family
that needs another one for training says so with `template`. What a model writes is read by `read_reply`:

| form of a call | family |
|---|---|
| `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, the closing tag optional at the end | `hermes`: ours, Qwen 2.5 and 3 |
| `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>` | `hermes`: Qwen 3.5, Qwen3-Coder |
| `[TOOL_CALLS][{"name": …, "arguments": {…}}]`, `[TOOL_CALLS]name[ARGS]{…}` | `mistral` |
| `<\\|python_tag\\|>{"name": …, "parameters": {…}}`, or that JSON object as the whole text | `llama` |

Any other text is an answer.
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Call:
    """A tool call; `arguments` is an object, or the raw text where that is not one (it then equals nothing but itself)."""

    name: str
    arguments: Any


Calls = list[Call] | None
"""The calls that one marked place of a text holds; None where it is no valid call."""


@dataclass(frozen=True)
class Family:
    """One family.

    `read` gives the calls at each marked place of a generated text, [] where the text has no mark of this family. `stops` are the tokens
    that end a turn. `template` is the text of a training template of our own. `model_types` are Hugging Face's names of architectures,
    and `ollama_base` the model of Ollama's library whose template serves one that has no chat template of its own.
    """

    name: str
    stops: tuple[str, ...]
    read: Callable[[str], list[Calls]] = lambda text: []
    template: Callable[[], str] | None = None
    model_types: tuple[str, ...] = ()
    ollama_base: str = ""


@dataclass(frozen=True)
class Reply:
    """What a generated text says: `calls` (those that are no valid call are only counted, as `invalid`), else the answer `text`."""

    calls: tuple[Call, ...]
    invalid: int
    text: str

    @property
    def is_call(self) -> bool:
        """Whether the model meant to call a tool, well or badly."""
        return bool(self.calls or self.invalid)


def read_reply(text: str) -> Reply:
    """A generated text (special tokens kept or not) as calls or an answer, by the first family whose marks it has."""
    text = text.strip()
    places = next((places for family in FAMILIES if (places := family.read(text))), [])
    calls = tuple(call for place in places for call in place or ())
    return Reply(calls, sum(place is None for place in places), "" if places else text)


def family_of(stops: Iterable[str] = (), model_type: str = "") -> Family | None:
    """The family whose turns end with one of `stops`, else the one of a Hugging Face architecture; None where neither is known."""
    ends, kind = set(stops), re.sub(r"[^a-z0-9]+", "_", model_type.lower())
    if ends:
        return next((family for family in FAMILIES if ends & set(family.stops)), None)
    return next((family for family in FAMILIES if kind in family.model_types), None)


@cache
def hermes() -> str:
    """The text of our own template: Hermes 2 Pro's tool calls in ChatML."""
    return files(__package__).joinpath("hermes_chatml.jinja").read_text(encoding="utf-8").rstrip("\n")


def _json_calls(text: str) -> Calls:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    calls = []
    for item in value if isinstance(value, list) else [value]:
        item = item.get("function", item) if isinstance(item, dict) else item
        if not (isinstance(item, dict) and isinstance(item.get("name"), str)):
            return None
        arguments = item.get("arguments", item.get("parameters", {}))
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError:
                return None
        if not isinstance(arguments, dict):
            return None
        calls.append(Call(item["name"], arguments))
    return calls or None


_TAGGED = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|(?=<tool_call>)|$)", re.DOTALL)
_XML_CALL = re.compile(r"<function=([^\n>]+)>(.*?)(?:</function>|$)", re.DOTALL)
_XML_PARAMETER = re.compile(r"<parameter=([^\n>]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_NAMED_CALL = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(\{.*)", re.DOTALL)


def _read_hermes(text: str) -> list[Calls]:
    return [_json_calls(body) or _xml_calls(body) for body in _TAGGED.findall(text)]


def _xml_calls(text: str) -> Calls:
    def value(text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            return text

    calls = [Call(name, {key: value(raw) for key, raw in _XML_PARAMETER.findall(body)}) for name, body in _XML_CALL.findall(text)]
    return calls or None


def _read_mistral(text: str) -> list[Calls]:
    places: list[Calls] = []
    for body in text.split("[TOOL_CALLS]")[1:]:
        named = _NAMED_CALL.fullmatch(body)
        if body.strip():
            places.append(_json_calls(f'{{"name": {json.dumps(named[1])}, "arguments": {named[2]}}}' if named else body))
    return places


def _read_llama(text: str) -> list[Calls]:
    if text.startswith("<|python_tag|>"):
        return [_json_calls(text.removeprefix("<|python_tag|>"))]
    bare = _json_calls(text) if text.startswith("{") else None
    return [bare] if bare else []


FAMILIES = (
    Family(
        "hermes",
        ("<|im_start|>", "<|im_end|>"),
        _read_hermes,
        hermes,
        ("qwen2", "qwen2_5", "qwen2_moe", "qwen3", "qwen3_moe"),
        "qwen2.5",
    ),
    Family("mistral", ("</s>",), _read_mistral, None, ("mistral", "mixtral"), "mistral"),
    Family("llama", ("<|eot_id|>",), _read_llama, None, ("llama",), "llama3.1"),
    Family("gemma", ("<end_of_turn>",), model_types=("gemma", "gemma2", "gemma3", "gemma3_text"), ollama_base="gemma2"),
    Family("phi", ("<|end|>",), model_types=("phi", "phi3"), ollama_base="phi3"),
)
"""In the order in which a text is read."""
