"""The forms in which SFT rows leave the lake: as they are, as OpenAI's fine-tuning file, and as prompt and completion.

In a prompt-completion form the completion is the agent's last answer and the prompt is **all** that came before it. (An answer without the
calls and results that led to it would teach the model to make things up.) A row whose last message is not an answer to a user makes none.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple, get_args

import msgspec
import pyarrow as pa

from agent_pipeline.datasets.sft import SFT
from agent_pipeline.traces.session import Message, Tool

Format = Literal["conversational", "openai", "prompt_completion", "prompt_completion_messages"]
FORMATS: tuple[Format, ...] = get_args(Format)

Row = dict[str, Any]


class Form(NamedTuple):
    """A form's columns, and a row of `SFT` in it; null where the row has no such form."""

    schema: pa.Schema
    convert: Callable[[Row], Row | None]


def form(name: str) -> Form:
    """A form by its name.

    Raises:
        ValueError: there is no such form.
    """
    if name not in _FORMS:
        raise ValueError(f"The format {name!r} does not exist: choose one of {', '.join(FORMATS)}.")
    return _FORMS[name]


def in_form(rows: Iterable[Row], name: str, counts: Counter[str] | None = None) -> Iterator[Row]:
    """SFT rows in a form; `counts` gets `rows_in_form` and `rows_without_an_answer`.

    Raises:
        ValueError: there is no such form.
    """
    counts, convert = Counter() if counts is None else counts, form(name).convert
    for row in rows:
        made = convert(row)
        counts["rows_without_an_answer" if made is None else "rows_in_form"] += 1
        if made is not None:
            yield made


def as_text(messages: list[Message]) -> str:
    """A conversation as plain text, a paragraph a message; a call is its JSON."""
    paragraphs = []
    for message in messages:
        calls = [{"name": call["function"]["name"], "arguments": call["function"]["arguments"]} for call in message.get("tool_calls") or ()]
        said = [message["content"]] if message["content"] else []
        paragraphs.append(f"{message['role'].capitalize()}: " + "\n".join(said + [msgspec.json.encode(call).decode() for call in calls]))
    return "\n\n".join(paragraphs)


def without_weights(messages: list[Message]) -> list[Message]:
    """The messages as they were before some were marked as not to be learnt."""
    return [{name: value for name, value in message.items() if name != "weight"} for message in messages]


def _openai(row: Row) -> Row:
    """OpenAI's file has these two keys alone, and none for an empty list of tools."""
    return {"messages": row["messages"]} | ({"tools": [_function(tool) for tool in row["tools"]]} if row["tools"] else {})


def _function(tool: Tool) -> Tool:
    return tool if "function" in tool else {"type": "function", "function": tool}


def _parted(row: Row) -> Row | None:
    messages = without_weights(row["messages"])
    answered = messages[-1]["content"] and not messages[-1].get("tool_calls")
    if not answered or not any(message["role"] == "user" for message in messages):
        return None
    kept = {name: value for name, value in row.items() if name != "messages"}
    return kept | {"prompt": messages[:-1], "completion": messages[-1:]}


def _parted_text(row: Row) -> Row | None:
    made = _parted(row)
    if made is None:
        return None
    # The blank is the answer's: a prompt that ends with one is cut into other tokens than the two together.
    return made | {"prompt": as_text(made["prompt"]) + "\n\nAssistant:", "completion": " " + made["completion"][0]["content"]}


def _with(column: pa.DataType) -> pa.Schema:
    """The columns of `SFT` with a prompt and a completion for its messages."""
    at = SFT.get_field_index("messages")
    parts = [pa.field(name, column, nullable=False) for name in ("prompt", "completion")]
    return pa.schema([*list(SFT)[:at], *parts, *list(SFT)[at + 1 :]])


_FORMS: dict[str, Form] = {
    "conversational": Form(SFT, lambda row: row),
    "openai": Form(pa.schema([SFT.field("messages"), pa.field("tools", pa.json_())]), _openai),
    "prompt_completion": Form(_with(pa.string()), _parted_text),
    "prompt_completion_messages": Form(_with(pa.json_()), _parted),
}
