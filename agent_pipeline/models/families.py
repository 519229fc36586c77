"""Families of chat templates: how each writes a tool call, how that is read back, and what ends its turns.

A new family is one more entry of `FAMILIES`. A model renders with its own template where that loses nothing (`templates`), else with ours
in the `markers` of its family. What a model writes is read by `read_reply`; the readers are in `notations`:

| form of a call | family |
|---|---|
| `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, the closing tag optional at the end | `hermes`: ours, Qwen 2.5 and 3 |
| `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>` | `hermes`: Qwen 3.5, Qwen3-Coder |
| `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>` | `glm` |
| `[TOOL_CALLS][{"name": …, "arguments": {…}}]`, `[TOOL_CALLS]name[ARGS]{…}` | `mistral` |
| `<\\|python_tag\\|>{"name": …, "parameters": {…}}`, parallel calls parted by `;` | `llama` |
| `<\\|tool_call\\|>[{"name": …}]<\\|/tool_call\\|>`, `functools[{"name": …}]` | `phi` |
| `<\\|channel\\|>commentary to=functions.name<\\|message\\|>{…}<\\|call\\|>` | `gpt-oss` (harmony) |
| `<｜tool▁call▁begin｜>function<｜tool▁sep｜>name`, a block of JSON; V3.1: `name<｜tool▁sep｜>{…}` | `deepseek` |
| a block `tool_code` of Python; Gemma 4: `<\\|tool_call>call:name{key:2}<tool_call\\|>` | `gemma` |
| Python between `<\\|python_start\\|>` and `<\\|python_end\\|>`, `<\\|tool_call_start\\|>` and `<\\|tool_call_end\\|>` | Llama 4, LFM2 |
| nothing but JSON calls, or a list `[name(key=value)]`, if each name is a tool of the row | any: Llama 3.x, xLAM |

Thoughts (`<think>…</think>`, `[THINK]…[/THINK]`) are left out before. Any other text is an answer.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from agent_pipeline.models import tool_call_parsers
from agent_pipeline.models.tool_call_parsers import Call, Reading, Schemas, parameter_schemas
from agent_pipeline.sessions.session import Tool

Reader = Callable[[str, Schemas], Reading | None]


@dataclass(frozen=True)
class Markers:
    """What stands before and after a turn of each role, as Jinja writes it in quotes, and the special tokens among them, the one that ends
    an assistant's turn last. A family without a system role shows what the system says as the user does."""

    system: tuple[str, str]
    user: tuple[str, str]
    assistant: tuple[str, str]
    tool: tuple[str, str]
    tokens: tuple[str, ...]


@dataclass(frozen=True)
class Family:
    """One family.

    `read` reads its notation in a generated text, and gives None where the text has no mark of it. `stops` are the tokens that end a turn.
    `markers` are those of its turns, in which our own template can be written.
    `model_types` are Hugging Face's names of architectures, and `ollama_base` the model of Ollama's library whose template serves one that
    has no chat template of its own.
    """

    name: str
    stops: tuple[str, ...]
    read: Reader = lambda text, schemas: None
    markers: Markers | None = None
    model_types: tuple[str, ...] = ()
    ollama_base: str = ""


@dataclass(frozen=True)
class Reply:
    """What a generated text says: `calls` (those that are no valid call are only counted, as `invalid`), and `text`: the words outside the
    calls, thoughts left out.
    """

    calls: tuple[Call, ...]
    invalid: int
    text: str

    @property
    def is_call(self) -> bool:
        """Whether the model meant to call a tool, well or badly."""
        return bool(self.calls or self.invalid)


_THOUGHT = re.compile(r"\s*(?:<think>.*?(?:</think>|$)|\[THINK\].*?(?:\[/THINK\]|$))\s*", re.DOTALL)


def read_reply(text: str, tools: Sequence[Tool] | None) -> Reply:
    """A generated text (special tokens kept or not) as calls or an answer, by the first notation whose marks it has.

    `tools` are the row's: they type the values of notations that quote nothing, and tell a call without marks from other JSON.
    """
    schemas = parameter_schemas(tools)
    if (
        "</think>" in text and "<think>" not in text.partition("</think>")[0]
    ):  # the prompt began the thought
        text = text.partition("</think>")[2]
    while thought := _THOUGHT.match(text):
        text = text[thought.end() :]
    text = text.strip()
    readers = [*(family.read for family in FAMILIES), tool_call_parsers.read_bare]
    reading = next(
        (reading for read in readers if (reading := read(text, schemas))), Reading([], text)
    )
    calls = tuple(call for place in reading.places for call in place or ())
    return Reply(calls, sum(place is None for place in reading.places), reading.words.strip())


def family_of(stops: Iterable[str] = (), model_type: str = "") -> Family | None:
    """Return the family of a model, or None if it is not known.

    Several families end their turns with the same token (`<|im_end|>`). Of these, the family that names the Hugging Face architecture is
    chosen, else the family that shares the most stop tokens, else the first in the table. Without `stops`, only the architecture counts.
    """
    ends, kind = set(stops), re.sub(r"[^a-z0-9]+", "_", model_type.lower())
    candidates = [family for family in FAMILIES if ends & set(family.stops)] if ends else FAMILIES
    named = [family for family in candidates if kind in family.model_types]
    if named or not ends:
        return next(iter(named), None)
    return max(candidates, key=lambda family: len(ends & set(family.stops)), default=None)


CHATML = Markers(
    ("<|im_start|>system\\n", "<|im_end|>\\n"),
    ("<|im_start|>user\\n", "<|im_end|>\\n"),
    ("<|im_start|>assistant\\n", "<|im_end|>\\n"),
    ("<|im_start|>tool\\n", "<|im_end|>\\n"),
    ("<|im_start|>", "<|im_end|>"),
)
_GEMMA_USER = ("<start_of_turn>user\\n", "<end_of_turn>\\n")
GEMMA = Markers(
    _GEMMA_USER,
    _GEMMA_USER,
    ("<start_of_turn>model\\n", "<end_of_turn>\\n"),
    _GEMMA_USER,
    ("<start_of_turn>", "<end_of_turn>"),
)
_PHI_USER = ("<|user|>\\n", "<|end|>\\n")
PHI = Markers(
    ("<|system|>\\n", "<|end|>\\n"),
    _PHI_USER,
    ("<|assistant|>\\n", "<|end|>\\n"),
    _PHI_USER,
    ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
)
_DEEPSEEK_USER = ("<｜User｜>", "")
DEEPSEEK = Markers(
    ("", "\\n\\n"),
    _DEEPSEEK_USER,
    ("<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
    _DEEPSEEK_USER,
    ("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
)


@cache
def hermes(markers: Markers = CHATML, begins: bool = False) -> str:
    """The text of our own template, Hermes 2 Pro's tool calls in a family's turn markers; `begins`: with the token that begins a text."""
    text = files(__package__).joinpath("hermes.jinja").read_text(encoding="utf-8").rstrip("\n")
    for role in ("system", "user", "assistant", "tool"):
        start, end = getattr(markers, role)
        text = text.replace(f"@{role}@", start).replace(f"@/{role}@", end)
    return "{{- bos_token -}}" * begins + text


FAMILIES = (
    Family(
        "hermes",
        ("<|im_start|>", "<|im_end|>"),
        tool_call_parsers.read_tagged,
        CHATML,
        ("qwen2", "qwen2_5", "qwen2_moe", "qwen3", "qwen3_moe"),
        "qwen2.5",
    ),
    Family(
        "mistral",
        ("</s>",),
        tool_call_parsers.read_mistral,
        None,
        ("mistral", "mixtral"),
        "mistral",
    ),
    Family("llama", ("<|eot_id|>",), tool_call_parsers.read_llama, None, ("llama",), "llama3.1"),
    Family(
        "gemma",
        ("<end_of_turn>", "<turn|>"),
        tool_call_parsers.read_gemma,
        GEMMA,
        ("gemma", "gemma2", "gemma3", "gemma3_text"),
        "gemma2",
    ),
    Family(
        "gpt-oss",
        ("<|return|>", "<|call|>"),
        tool_call_parsers.read_harmony,
        None,
        ("gpt_oss",),
        "gpt-oss",
    ),
    Family(
        "deepseek",
        ("<｜end▁of▁sentence｜>",),
        tool_call_parsers.read_deepseek,
        DEEPSEEK,
        ("deepseek_v2", "deepseek_v3"),
        "deepseek-v3",
    ),
    Family(
        "glm",
        ("<|observation|>",),
        tool_call_parsers.read_tagged,
        None,
        ("glm", "glm4", "glm4_moe"),
        "glm4",
    ),
    Family("phi", ("<|end|>",), tool_call_parsers.read_phi, PHI, ("phi", "phi3"), "phi3"),
)
"""In the order in which a text is read."""
