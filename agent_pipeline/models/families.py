"""The model families: how the models of each family write tool calls and end their turns.

To add a family, add an entry to `FAMILIES`. A generated text is parsed by `parse_reply`, with the
parsers of `tool_call_parsers`. A model renders with its own chat template if that loses nothing,
else with ours in its family's `TurnMarkers`; that choice belongs in `chat_templates`.

The notations, by family:

- `hermes` (ours, Qwen 2.5, Qwen 3): `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, whose
  closing tag is optional at the end of a text.
- `hermes` (Qwen 3.5, Qwen3-Coder): XML in the same tag,
  `<function=name><parameter=key>value</parameter></function>`.
- `glm`: keys and values in the same tag,
  `name<arg_key>key</arg_key><arg_value>value</arg_value>`.
- `mistral`: `[TOOL_CALLS][{"name": …, "arguments": {…}}]`, or `[TOOL_CALLS]name[ARGS]{…}`.
- `llama`: `<|python_tag|>{"name": …, "parameters": {…}}`, parallel calls separated by `;`.
- `phi`: `<|tool_call|>[{"name": …}]<|/tool_call|>`, or `functools[{"name": …}]`.
- `gpt-oss` (harmony): `<|channel|>commentary to=functions.name<|message|>{…}<|call|>`.
- `deepseek`: `<｜tool▁call▁begin｜>function<｜tool▁sep｜>name` with a block of JSON; V3.1 writes
  `name<｜tool▁sep｜>{…}`.
- `gemma`: a block `tool_code` of Python; Gemma 4: `<|tool_call>call:name{key:2}<tool_call|>`.
- `lfm2`: Python between `<|tool_call_start|>` and `<|tool_call_end|>`. Llama 4 writes Python
  between `<|python_start|>` and `<|python_end|>`.
- any family (Llama 3.x, xLAM): only JSON calls, or a list `[name(key=value)]`, if each name is a
  tool of the row.

Thoughts (`<think>…</think>`, `[THINK]…[/THINK]`) are removed first. Any other text is an answer.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from agent_pipeline.models import tool_call_parsers
from agent_pipeline.models.tool_call_parsers import (
    CallParser,
    FoundCalls,
    ParsedCall,
    find_no_calls,
    list_parameter_schemas,
)
from agent_pipeline.sessions.session import Tool


@dataclass(frozen=True)
class TurnMarkers:
    """The texts that a family's chat template writes before and after a turn of each role.

    The texts are written as Jinja writes them in quotes. A family without a system role shows the
    system message as a user's message.

    Attributes:
        system: The texts before and after a system message.
        user: The texts before and after a user's message.
        assistant: The texts before and after an assistant's message.
        tool: The texts before and after a tool result.
        tokens: The special tokens in these texts. The last one ends an assistant's turn.
    """

    system: tuple[str, str]
    user: tuple[str, str]
    assistant: tuple[str, str]
    tool: tuple[str, str]
    tokens: tuple[str, ...]


@dataclass(frozen=True)
class Family:
    """A family of models that share a notation for tool calls and the tokens that end a turn.

    Attributes:
        name: The name of the family.
        stops: The tokens that end a turn.
        parse_calls: The parser of its notation.
        markers: The markers of its turns, in which our template can be written; None if our
            template is never written in them.
        model_types: Hugging Face's names of its architectures.
        ollama_base: The model of Ollama's library whose template serves a model of this family
            that has no chat template.
    """

    name: str
    stops: tuple[str, ...]
    parse_calls: CallParser = find_no_calls
    markers: TurnMarkers | None = None
    model_types: tuple[str, ...] = ()
    ollama_base: str = ""


@dataclass(frozen=True)
class ParsedReply:
    """A generated text, parsed into tool calls and words.

    Attributes:
        calls: The valid tool calls.
        invalid: The number of places that are marked as a call and cannot be parsed.
        text: The words outside the calls, without thoughts.
    """

    calls: tuple[ParsedCall, ...]
    invalid: int
    text: str

    @property
    def is_call(self) -> bool:
        """True if the model meant to call a tool, even if the call is invalid."""
        return bool(self.calls or self.invalid)


_THOUGHT = re.compile(r"\s*(?:<think>.*?(?:</think>|$)|\[THINK\].*?(?:\[/THINK\]|$))\s*", re.DOTALL)


def parse_reply(text: str, tools: Sequence[Tool] | None) -> ParsedReply:
    """Parse a generated text as tool calls or as an answer.

    The first notation whose marks the text has decides.

    Args:
        text: The text, with special tokens or without.
        tools: The tools of the row. They give types to values of notations without quotes, and
            tell a call without marks from other JSON.
    """
    schemas = list_parameter_schemas(tools)
    text = _remove_thoughts(text)
    parsers = [*(family.parse_calls for family in FAMILIES), tool_call_parsers.parse_bare_calls]
    parsed = FoundCalls([], text)
    for parse_calls in parsers:
        calls_in_notation = parse_calls(text, schemas)
        if calls_in_notation is not None:
            parsed = calls_in_notation
            break
    calls = tuple(call for calls_of_mark in parsed.calls_by_mark for call in calls_of_mark or ())
    invalid = sum(calls_of_mark is None for calls_of_mark in parsed.calls_by_mark)
    return ParsedReply(calls, invalid, parsed.words.strip())


def _remove_thoughts(text: str) -> str:
    before, end_of_thought, after = text.partition("</think>")
    if end_of_thought and "<think>" not in before:  # the prompt began the thought
        text = after
    while thought := _THOUGHT.match(text):
        text = text[thought.end() :]
    return text.strip()


def find_family(stops: Iterable[str] = (), model_type: str = "") -> Family | None:
    """Return the family of a model, or None if the family is unknown.

    Several families end their turns with the same token (`<|im_end|>`). Of these, the family that
    names the architecture is chosen, else the family that shares the most stop tokens, else the
    first in the table. Without `stops`, only the architecture counts.

    Args:
        stops: The tokens that end the model's turns.
        model_type: Hugging Face's name of the architecture.
    """
    known_stops = set(stops)
    architecture = re.sub(r"[^a-z0-9]+", "_", model_type.lower())
    candidates = list(FAMILIES)
    if known_stops:
        candidates = [family for family in FAMILIES if known_stops & set(family.stops)]
    for family in candidates:
        if architecture in family.model_types:
            return family
    if not known_stops:
        return None
    return max(candidates, key=lambda family: len(known_stops & set(family.stops)), default=None)


CHATML = TurnMarkers(
    ("<|im_start|>system\\n", "<|im_end|>\\n"),
    ("<|im_start|>user\\n", "<|im_end|>\\n"),
    ("<|im_start|>assistant\\n", "<|im_end|>\\n"),
    ("<|im_start|>tool\\n", "<|im_end|>\\n"),
    ("<|im_start|>", "<|im_end|>"),
)
_GEMMA_USER = ("<start_of_turn>user\\n", "<end_of_turn>\\n")
GEMMA = TurnMarkers(
    _GEMMA_USER,
    _GEMMA_USER,
    ("<start_of_turn>model\\n", "<end_of_turn>\\n"),
    _GEMMA_USER,
    ("<start_of_turn>", "<end_of_turn>"),
)
_PHI_USER = ("<|user|>\\n", "<|end|>\\n")
PHI = TurnMarkers(
    ("<|system|>\\n", "<|end|>\\n"),
    _PHI_USER,
    ("<|assistant|>\\n", "<|end|>\\n"),
    _PHI_USER,
    ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
)
_DEEPSEEK_USER = ("<｜User｜>", "")
DEEPSEEK = TurnMarkers(
    ("", "\\n\\n"),
    _DEEPSEEK_USER,
    ("<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
    _DEEPSEEK_USER,
    ("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
)


@cache
def write_hermes_template(markers: TurnMarkers = CHATML, writes_begin_token: bool = False) -> str:
    """Return our chat template: the tool calls of Hermes 2 Pro with the turn markers of a family.

    Args:
        markers: The turn markers.
        writes_begin_token: Whether the template writes the token that begins a text.
    """
    text = files(__package__).joinpath("hermes.jinja").read_text(encoding="utf-8").rstrip("\n")
    for role in ("system", "user", "assistant", "tool"):
        before, after = getattr(markers, role)
        text = text.replace(f"@{role}@", before).replace(f"@/{role}@", after)
    return "{{- bos_token -}}" + text if writes_begin_token else text


FAMILIES = (
    Family(
        "hermes",
        ("<|im_start|>", "<|im_end|>"),
        tool_call_parsers.parse_tagged_calls,
        CHATML,
        ("qwen2", "qwen2_5", "qwen2_moe", "qwen3", "qwen3_moe"),
        "qwen2.5",
    ),
    Family(
        "mistral",
        ("</s>",),
        tool_call_parsers.parse_mistral_calls,
        None,
        ("mistral", "mixtral"),
        "mistral",
    ),
    Family(
        "llama", ("<|eot_id|>",), tool_call_parsers.parse_llama_calls, None, ("llama",), "llama3.1"
    ),
    Family(
        "gemma",
        ("<end_of_turn>", "<turn|>"),
        tool_call_parsers.parse_gemma_calls,
        GEMMA,
        ("gemma", "gemma2", "gemma3", "gemma3_text"),
        "gemma2",
    ),
    Family(
        "gpt-oss",
        ("<|return|>", "<|call|>"),
        tool_call_parsers.parse_harmony_calls,
        None,
        ("gpt_oss",),
        "gpt-oss",
    ),
    Family(
        "deepseek",
        ("<｜end▁of▁sentence｜>",),
        tool_call_parsers.parse_deepseek_calls,
        DEEPSEEK,
        ("deepseek_v2", "deepseek_v3"),
        "deepseek-v3",
    ),
    Family(
        "glm",
        ("<|observation|>",),
        tool_call_parsers.parse_tagged_calls,
        None,
        ("glm", "glm4", "glm4_moe"),
        "glm4",
    ),
    Family("phi", ("<|end|>",), tool_call_parsers.parse_phi_calls, PHI, ("phi", "phi3"), "phi3"),
    Family(
        "lfm2",
        ("<|im_end|>",),
        tool_call_parsers.parse_python_calls,
        None,
        ("lfm2", "lfm2_moe"),
        "lfm2",
    ),
)
"""All model families, in the order in which their parsers are tried on a text."""
