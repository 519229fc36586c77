"""The model families: how the models of each family write tool calls and end their turns.

To add a family, add an entry to `FAMILIES`. A generated text is parsed by `parse_reply`, with the
parsers of `tool_call_parsers`. If a model's own chat template loses nothing, it is used. Otherwise,
our template is used with the `TurnMarkers` of the model's family. This choice belongs in
`chat_templates`.

The notations, by family:

- `hermes` (ours, Qwen 2.5 and 3, SmolLM, Granite 4):
  `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, whose closing tag is optional at the end
  of a text.
- `qwen3.5` (also Qwen3-Coder and Nemotron 3): XML in the same tag,
  `<function=name><parameter=key>value</parameter></function>`.
- `glm`: keys and values in the same tag,
  `name<arg_key>key</arg_key><arg_value>value</arg_value>`.
- `mistral`: `[TOOL_CALLS][{"name": …, "arguments": {…}}]`, or `[TOOL_CALLS]name[ARGS]{…}`.
- `llama`: `<|python_tag|>{"name": …, "parameters": {…}}`, parallel calls separated by `;`.
- `phi`: `<|tool_call|>[{"name": …}]<|/tool_call|>`, or `functools[{"name": …}]`.
- `gpt-oss` (harmony): `<|channel|>commentary to=functions.name<|message|>{…}<|call|>`.
- `deepseek`: `<｜tool▁call▁begin｜>function<｜tool▁sep｜>name` with a block of JSON; V3.1 writes
  `name<｜tool▁sep｜>{…}`.
- `gemma`: a block `tool_code` of Python.
- `gemma4`: `<|tool_call>call:name{key:2}<tool_call|>`.
- `functiongemma`: `<start_function_call>call:name{key:2}<end_function_call>`.
- `lfm2`: Python between `<|tool_call_start|>` and `<|tool_call_end|>`. Llama 4 writes Python
  between `<|python_start|>` and `<|python_end|>`.
- any family (Llama 3.x, xLAM): only JSON calls, or a list `[name(key=value)]`, if each name is a
  tool of the row.

Thoughts (`<think>…</think>`, `[THINK]…[/THINK]`, `<|channel>thought…<channel|>`) are removed first.
Any other text is an answer.
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
    ParameterSchemas,
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
        model_types: The values of `model_type` in the `config.json` of its models, without the
            endings `_text` and `_vl`.
        marks: Texts that only the chat templates of this family contain. One of them is enough.
        ollama_base: The model of Ollama's library whose template serves a model of this family
            that has no chat template.
    """

    name: str
    stops: tuple[str, ...]
    parse_calls: CallParser = find_no_calls
    markers: TurnMarkers | None = None
    model_types: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    ollama_base: str = ""


@dataclass(frozen=True)
class ParsedReply:
    """A generated text, parsed into tool calls and words.

    Attributes:
        calls: The valid tool calls.
        invalid: The number of places that are marked as a call and cannot be parsed.
        text: The words before the calls, without thoughts. Gemma 4 also writes words after its
            calls.
    """

    calls: tuple[ParsedCall, ...]
    invalid: int
    text: str

    @property
    def is_call(self) -> bool:
        """True if the model meant to call a tool, even if the call is invalid."""
        return bool(self.calls or self.invalid)


_THOUGHT = re.compile(
    r"\s*(?:<think>.*?(?:</think>|$)|\[THINK\].*?(?:\[/THINK\]|$)"
    r"|<\|channel>thought\b.*?(?:<channel\|>|$))\s*",
    re.DOTALL,
)


def parse_reply(text: str, tools: Sequence[Tool] | None) -> ParsedReply:
    """Parse a generated text as tool calls or as an answer.

    The notation whose mark comes first in the text decides. The arguments of a call may contain
    the marks of other notations, and these come later.

    Args:
        text: The text, with special tokens or without.
        tools: The tools of the row. They give types to values of notations without quotes, and
            tell a call without marks from other JSON.
    """
    schemas = list_parameter_schemas(tools)
    before, end_of_thought, after = text.partition("</think>")
    prompt_began_thought = end_of_thought and "<think>" not in before
    # An argument of a call may contain `</think>`. The call before it is incomplete then.
    if prompt_began_thought and not _parse_without_thoughts(before, schemas).invalid:
        return _parse_without_thoughts(after, schemas)
    return _parse_without_thoughts(text, schemas)


def _parse_without_thoughts(text: str, schemas: ParameterSchemas) -> ParsedReply:
    text = _remove_thoughts(text)
    parsers = dict.fromkeys(family.parse_calls for family in FAMILIES)
    parsed_notations = [parse_calls(text, schemas) for parse_calls in parsers]
    marked = [found_calls for found_calls in parsed_notations if found_calls]
    bare = tool_call_parsers.parse_bare_calls(text, schemas)
    if bare and (all(bare.calls_by_mark) or not marked):
        parsed = bare
    elif marked:
        parsed = min(marked, key=lambda found_calls: found_calls.start)
    else:
        parsed = FoundCalls([], text)
    calls = tuple(call for calls_of_mark in parsed.calls_by_mark for call in calls_of_mark or ())
    invalid = sum(calls_of_mark is None for calls_of_mark in parsed.calls_by_mark)
    return ParsedReply(calls, invalid, parsed.words.strip())


def _remove_thoughts(text: str) -> str:
    while thought := _THOUGHT.match(text):
        text = text[thought.end() :]
    return text.strip()


_CONFIG_ENDING = re.compile(r"(?:forcausallm|forconditionalgeneration)?$")
_PART_ENDING = re.compile(r"(?:text|vl)$")


def find_family(
    stops: Iterable[str] = (),
    model_type: str = "",
    architectures: Iterable[str] = (),
    chat_template: str = "",
) -> Family | None:
    """Return the family of a model, or None if the family is unknown.

    The chat template decides first, because a model that was trained further may have the
    architecture of one family and write in the notation of another. DeepSeek-R1-Distill has the
    architecture of Qwen 2.5, and Hermes 3 has that of Llama. If the template has no mark of a
    family, the config decides, if it does not contradict the stop tokens. If the config names no
    family, the family that shares the most stop tokens is chosen, else the first in the table.

    Args:
        stops: The tokens that end the model's turns.
        model_type: `model_type` in the model's `config.json`.
        architectures: `architectures` in the model's `config.json`.
        chat_template: The text of the model's chat template.
    """
    known_stops = set(stops)
    names = _names_of_config(model_type, architectures)
    by_config = [
        family for family in FAMILIES if names & {_letters_of(name) for name in family.model_types}
    ]
    by_template = [
        family for family in FAMILIES if any(mark in chat_template for mark in family.marks)
    ]
    for family in by_config:
        if family in by_template:
            return family
    if by_template:
        return by_template[0]
    candidates = list(FAMILIES)
    if known_stops:
        candidates = [family for family in FAMILIES if known_stops & set(family.stops)]
    for family in by_config:
        if family in candidates:
            return family
    if not known_stops:
        return None
    return max(candidates, key=lambda family: len(known_stops & set(family.stops)), default=None)


def _names_of_config(model_type: str, architectures: Iterable[str]) -> set[str]:
    """Return the names of a model's architecture in the form of `_letters_of`."""
    names = {_CONFIG_ENDING.sub("", _letters_of(name)) for name in (model_type, *architectures)}
    return (names | {_PART_ENDING.sub("", name) for name in names}) - {""}


def _letters_of(name: str) -> str:
    """Return the letters and digits of a name. `qwen2_5`, `qwen2.5` and `Qwen2_5` are equal."""
    return re.sub(r"[^a-z0-9]+", "", name.lower())


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
GEMMA_4 = TurnMarkers(
    ("<|turn>system\\n", "<turn|>\\n"),
    ("<|turn>user\\n", "<turn|>\\n"),
    ("<|turn>model\\n", "<turn|>\\n"),
    ("<|turn>user\\n", "<turn|>\\n"),
    ("<|turn>", "<turn|>"),
)
_GRANITE_USER = ("<|start_of_role|>user<|end_of_role|>", "<|end_of_text|>\\n")
GRANITE = TurnMarkers(
    ("<|start_of_role|>system<|end_of_role|>", "<|end_of_text|>\\n"),
    _GRANITE_USER,
    ("<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>\\n"),
    _GRANITE_USER,
    ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"),
)
_PHI_USER = ("<|user|>\\n", "<|end|>\\n")
PHI = TurnMarkers(
    ("<|system|>\\n", "<|end|>\\n"),
    _PHI_USER,
    ("<|assistant|>\\n", "<|end|>\\n"),
    _PHI_USER,
    ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
)
_PHI_4_USER = ("<|im_start|>user<|im_sep|>", "<|im_end|>")
PHI_4 = TurnMarkers(
    ("<|im_start|>system<|im_sep|>", "<|im_end|>"),
    _PHI_4_USER,
    ("<|im_start|>assistant<|im_sep|>", "<|im_end|>"),
    _PHI_4_USER,
    ("<|im_start|>", "<|im_sep|>", "<|im_end|>"),
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
        ("qwen2", "qwen2_5", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "smollm3"),
        ollama_base="qwen2.5",
    ),
    Family(
        "qwen3.5",
        ("<|im_start|>", "<|im_end|>"),
        tool_call_parsers.parse_tagged_calls,
        None,
        ("qwen3_5", "qwen3_5_moe", "nemotron_h"),
        ("<function=",),
        "qwen3",
    ),
    Family(
        "granite",
        ("<|end_of_text|>",),
        tool_call_parsers.parse_tagged_calls,
        GRANITE,
        ("granite", "granitemoe", "granitemoehybrid", "granitemoeshared"),
        ("<|start_of_role|>",),
        "granite4",
    ),
    Family(
        "mistral",
        ("</s>",),
        tool_call_parsers.parse_mistral_calls,
        None,
        ("mistral", "mistral3", "ministral", "ministral3", "mixtral"),
        ("[TOOL_CALLS]",),
        "mistral",
    ),
    Family(
        "llama",
        ("<|eot_id|>",),
        tool_call_parsers.parse_llama_calls,
        None,
        ("llama",),
        ("<|start_header_id|>",),
        "llama3.1",
    ),
    Family(
        "gemma",
        ("<end_of_turn>",),
        tool_call_parsers.parse_gemma_calls,
        GEMMA,
        ("gemma", "gemma2", "gemma3", "gemma3n"),
        ollama_base="gemma2",
    ),
    Family(
        "functiongemma",
        ("<end_of_turn>", "<start_function_response>"),
        tool_call_parsers.parse_gemma_calls,
        None,
        (),
        ("<start_function_call>",),
        "functiongemma",
    ),
    Family(
        "gemma4",
        ("<turn|>", "<|tool_response>"),
        tool_call_parsers.parse_gemma_calls,
        GEMMA_4,
        ("gemma4",),
        ("<|turn>",),
        "gemma4",
    ),
    Family(
        "gpt-oss",
        ("<|return|>", "<|call|>"),
        tool_call_parsers.parse_harmony_calls,
        None,
        ("gpt_oss",),
        ("<|channel|>",),
        "gpt-oss",
    ),
    Family(
        "deepseek",
        ("<｜end▁of▁sentence｜>",),
        tool_call_parsers.parse_deepseek_calls,
        DEEPSEEK,
        ("deepseek_v2", "deepseek_v3", "deepseek_v32"),
        ("<｜Assistant｜>",),
        "deepseek-v3",
    ),
    Family(
        "glm",
        ("<|observation|>",),
        tool_call_parsers.parse_tagged_calls,
        None,
        ("glm", "glm4", "glm4_moe"),
        ("<arg_key>", "<|observation|>"),
        "glm4",
    ),
    Family(
        "phi",
        ("<|end|>",),
        tool_call_parsers.parse_phi_calls,
        PHI,
        ("phi", "phi3"),
        ("<|tool_call|>", "<|end|>"),
        "phi3",
    ),
    Family(
        "phi4",
        ("<|im_end|>",),
        tool_call_parsers.parse_phi_calls,
        PHI_4,
        (),
        ("<|im_sep|>",),
        "phi4",
    ),
    Family(
        "lfm2",
        ("<|im_end|>",),
        tool_call_parsers.parse_python_calls,
        None,
        ("lfm2", "lfm2_moe"),
        ("<|tool_call_start|>", "<|tool_list_start|>"),
        "lfm2",
    ),
)
"""All model families. If two families fit a model equally, the first is chosen."""
