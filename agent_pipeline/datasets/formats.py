"""The forms in which SFT rows leave the lake: as they are, as OpenAI's fine-tuning file, and as prompt and completion.

In a prompt-completion form the completion is the agent's last answer, and the prompt is **everything** before it: an answer without the
calls and results that led to it would teach the model to make things up. A row that does not end with an answer to a user has no such form.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from agent_pipeline.sessions.session import THOUGHT, Tool, drop_keys, list_calls
from agent_pipeline.sessions.transcript import format_transcript

Format = Literal["conversational", "openai", "prompt_completion", "prompt_completion_messages"]

NO_FORM = NO_ANSWER, REFUSED_NAME = "rows_without_an_answer", "rows_with_a_name_that_openai_refuses"
"""Why a row has no such form."""

Row = dict[str, Any]


class Form(NamedTuple):
    """Its columns of a table that has those of `SFT` and perhaps more, and a row in it, or the reason why the row has no such form."""

    columns: Callable[[pa.Schema], pa.Schema]
    convert: Callable[[Row], Row | str]


def in_form(rows: Iterable[Row], name: str, counts: Counter[str] | None = None) -> Iterator[Row]:
    """SFT rows in a form; `counts` gets `rows_in_form`, and of the others why they have no such form (`NO_FORM`)."""
    counts, convert = Counter() if counts is None else counts, FORMS[name].convert
    for row in rows:
        converted = convert(row)
        counts[converted if isinstance(converted, str) else "rows_in_form"] += 1
        if not isinstance(converted, str):
            yield converted


_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def _openai(row: Row) -> Row | str:
    """OpenAI's file has only these two keys, no thoughts, and no empty list of tools. OpenAI refuses a whole file for one bad name: a row
    that calls such a tool has no such form, and any other row goes without that tool."""
    if not all(_NAME.fullmatch(name) for name, _ in list_calls(row["messages"])):
        return REFUSED_NAME
    tools = [
        tool
        for tool in map(_function, row["tools"])
        if _NAME.fullmatch(str(tool["function"].get("name", "")))
    ]
    return {"messages": [drop_keys(message, THOUGHT) for message in row["messages"]]} | (
        {"tools": tools} if tools else {}
    )


def _function(tool: Tool) -> Tool:
    return tool if "function" in tool else {"type": "function", "function": tool}


def _parted(row: Row) -> Row | str:
    messages = [drop_keys(message, "weight") for message in row["messages"]]
    answered = messages[-1]["content"] and not messages[-1].get("tool_calls")
    if not answered or not any(message["role"] == "user" for message in messages):
        return NO_ANSWER
    kept = {name: value for name, value in row.items() if name != "messages"}
    return kept | {"prompt": messages[:-1], "completion": messages[-1:]}


def _parted_text(row: Row) -> Row | str:
    parted = _parted(row)
    if isinstance(parted, str):
        return parted
    # The space belongs to the answer: a prompt that ends with a space has other tokens than the two together.
    return parted | {
        "prompt": format_transcript(parted["prompt"]) + "\n\nASSISTANT:",
        "completion": " " + parted["completion"][0]["content"],
    }


def _with(table: pa.Schema, column: pa.DataType) -> pa.Schema:
    """The columns of a table with a prompt and a completion for its messages."""
    at = table.get_field_index("messages")
    parts = [pa.field(name, column, nullable=False) for name in ("prompt", "completion")]
    return pa.schema([*list(table)[:at], *parts, *list(table)[at + 1 :]])


FORMS: dict[str, Form] = {
    "conversational": Form(lambda table: table, lambda row: row),
    "openai": Form(
        lambda table: pa.schema([table.field("messages"), pa.field("tools", pa.json_())]), _openai
    ),
    "prompt_completion": Form(lambda table: _with(table, pa.string()), _parted_text),
    "prompt_completion_messages": Form(lambda table: _with(table, pa.json_()), _parted),
}
