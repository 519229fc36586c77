"""Reading a generated text as calls or as an answer, and saying what is right about it.

The forms of a call that are read, one for each family of chat templates:

| form | written by |
|---|---|
| `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, the closing tag optional at the end | Hermes, ours, Qwen 2.5 and 3 |
| `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>` | Qwen 3.5, Qwen3-Coder |
| `[TOOL_CALLS][{"name": …, "arguments": {…}}]`, `[TOOL_CALLS]name[ARGS]{…}` | Mistral |
| `<\\|python_tag\\|>{"name": …, "parameters": {…}}`, or that JSON object as the whole text | Llama 3.1, 3.2 |

Any other text is an answer.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from agent_pipeline.evaluation.samples import Call, TurnSample

HERMES = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|(?=<tool_call>)|$)", re.DOTALL)
XML_CALL = re.compile(r"<function=([^\n>]+)>(.*?)(?:</function>|$)", re.DOTALL)
XML_PARAMETER = re.compile(r"<parameter=([^\n>]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
MISTRAL_NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(\{.*)", re.DOTALL)


@dataclass(frozen=True)
class Parsed:
    """What a text says: `calls` (those that are no JSON call are only counted, as `invalid`), else the answer `text`."""

    calls: tuple[Call, ...]
    invalid: int
    text: str

    @property
    def is_call(self) -> bool:
        """Whether the model meant to call a tool, well or badly."""
        return bool(self.calls or self.invalid)


@dataclass(frozen=True)
class Score:
    """What is right. Where an answer was expected only `call_or_answer` is judged: the others are None, not False."""

    call_or_answer: bool
    tool_name: bool | None
    arguments: bool | None
    exact: bool | None
    invalid_call: bool


def _as_calls(value: Any) -> list[Call] | None:
    """A decoded JSON value as calls, or None where it is not one."""
    values = value if isinstance(value, list) else [value]
    calls = []
    for item in values:
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


def _json_calls(text: str) -> list[Call] | None:
    try:
        return _as_calls(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _xml_calls(text: str) -> list[Call]:
    def value(text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            return text

    return [Call(name, {key: value(raw) for key, raw in XML_PARAMETER.findall(body)}) for name, body in XML_CALL.findall(text)]


def parse(text: str) -> Parsed:
    """A generated text (special tokens kept or not) as calls or an answer, by the table above."""
    text = text.strip()
    if "<tool_call>" in text:
        bodies = HERMES.findall(text)
        found = [_json_calls(body) or _xml_calls(body) or None for body in bodies]
    elif "[TOOL_CALLS]" in text:
        bodies = [body for body in text.split("[TOOL_CALLS]")[1:] if body.strip()]
        found = []
        for body in bodies:
            named = MISTRAL_NAMED.fullmatch(body)
            found.append(_json_calls(f'{{"name": {json.dumps(named[1])}, "arguments": {named[2]}}}' if named else body))
    elif text.startswith("<|python_tag|>"):
        found = [_json_calls(text.removeprefix("<|python_tag|>"))]
    else:
        bare = _json_calls(text) if text.startswith("{") else None
        found = [bare] if bare else []
    calls = tuple(call for group in found for call in group or ())
    return Parsed(calls, sum(group is None for group in found), "" if found else text)


def same(left: Any, right: Any) -> bool:
    """JSON equality: numbers by value (1 equals 1.0), booleans are no numbers, the order of keys means nothing."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def score(sample: TurnSample, text: str) -> Score:
    """How a generated text compares with what the agent did.

    Of several expected calls all must be there, in order, and no other: `tool_name` compares the names, `arguments` the
    arguments, position by position, `exact` both. A call that is no valid JSON is a wrong call.
    """
    said = parse(text)
    if not sample.calls:
        return Score(not said.is_call, None, None, None, bool(said.invalid))
    complete = not said.invalid and len(said.calls) == len(sample.calls)
    names = complete and all(a.name == b.name for a, b in zip(said.calls, sample.calls, strict=True))
    arguments = complete and all(same(a.arguments, b.arguments) for a, b in zip(said.calls, sample.calls, strict=True))
    return Score(said.is_call, names, arguments, names and arguments, bool(said.invalid))
