"""The formats in which SFT rows can be exported from the lake.

The forms are the rows themselves, OpenAI's fine-tuning file, and prompt and completion. Writing the
files belongs to `publishing`.

In a prompt-completion form, the completion is the agent's last answer, and the prompt is
**everything** before it. An answer without the calls and results that led to it would teach the
model to make things up. A row that does not end with an answer to a user cannot have this form.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from agent_pipeline.sessions.session import THOUGHT, Tool, drop_keys, list_calls
from agent_pipeline.sessions.transcript import format_transcript

Format = Literal["conversational", "openai", "prompt_completion", "prompt_completion_messages"]

NO_ANSWER = "rows_without_an_answer"
REFUSED_NAME = "rows_with_a_name_that_openai_refuses"
NO_FORM_REASONS = (NO_ANSWER, REFUSED_NAME)
"""Reasons why a row cannot be converted into an export format."""

FormattedRow = dict[str, Any]
"""A row in one of the export formats, with the columns of `RowForm.make_schema`."""

_OPENAI_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True)
class RowForm:
    """An export format for SFT rows, with the function that converts rows into it.

    Attributes:
        make_schema: Returns the columns of the form for a table with the columns of `SFT`.
        convert: Returns a row in the form, or the reason why it does not have this form.
    """

    make_schema: Callable[[pa.Schema], pa.Schema]
    convert: Callable[[Mapping[str, Any]], FormattedRow | str]


def convert_rows(
    rows: Iterable[Mapping[str, object]], name: str, counts: Counter[str] | None = None
) -> Iterator[FormattedRow]:
    """Convert SFT rows into an export format, and yield the rows that can be converted.

    Args:
        rows: Rows of `SFT` with decoded JSON columns.
        name: The name of the form, a key of `FORMS`.
        counts: Receives `rows_in_form`, and the number of other rows by reason (`NO_FORM_REASONS`).
    """
    counts = Counter() if counts is None else counts
    form = FORMS[name]
    for row in rows:
        converted = form.convert(row)
        if isinstance(converted, str):
            counts[converted] += 1
        else:
            counts["rows_in_form"] += 1
            yield converted


def _keep_row(row: Mapping[str, object]) -> FormattedRow | str:
    return dict(row)


def _to_openai(row: Mapping[str, Any]) -> FormattedRow | str:
    """Convert an SFT row into a row of OpenAI's fine-tuning file.

    The file has no other keys, no thoughts and no empty tools. OpenAI refuses a whole file for one
    invalid tool name. A row that calls a tool with such a name cannot have this form. In other
    rows, such a tool is removed.
    """
    if not all(_OPENAI_NAME.fullmatch(name) for name, _ in list_calls(row["messages"])):
        return REFUSED_NAME
    converted: FormattedRow = {
        "messages": [drop_keys(message, THOUGHT) for message in row["messages"]]
    }
    tools = [_wrap_function(tool) for tool in row["tools"]]
    tools = [
        tool for tool in tools if _OPENAI_NAME.fullmatch(str(tool["function"].get("name", "")))
    ]
    if tools:
        converted["tools"] = tools
    return converted


def _wrap_function(tool: Tool) -> Tool:
    return tool if "function" in tool else {"type": "function", "function": tool}


def _to_prompt_completion(row: Mapping[str, Any]) -> FormattedRow | str:
    """Convert an SFT row into a row whose prompt and completion are lists of messages."""
    messages = [drop_keys(message, "weight") for message in row["messages"]]
    ends_with_answer = messages[-1]["content"] and not messages[-1].get("tool_calls")
    if not ends_with_answer or not any(message["role"] == "user" for message in messages):
        return NO_ANSWER
    converted = {name: value for name, value in row.items() if name != "messages"}
    return converted | {"prompt": messages[:-1], "completion": messages[-1:]}


def _to_texts(row: Mapping[str, object]) -> FormattedRow | str:
    """Convert an SFT row into a row whose prompt and completion are texts."""
    converted = _to_prompt_completion(row)
    if isinstance(converted, str):
        return converted
    # The space belongs to the answer. If the prompt ended with the space, its tokens would differ
    # from the tokens of prompt and answer in one text.
    return converted | {
        "prompt": format_transcript(converted["prompt"]) + "\n\nASSISTANT:",
        "completion": " " + converted["completion"][0]["content"],
    }


def _keep_columns(table: pa.Schema) -> pa.Schema:
    return table


def _make_openai_columns(table: pa.Schema) -> pa.Schema:
    return pa.schema([table.field("messages"), pa.field("tools", pa.json_())])


def _make_message_columns(table: pa.Schema) -> pa.Schema:
    return _replace_messages(table, pa.json_())


def _make_text_columns(table: pa.Schema) -> pa.Schema:
    return _replace_messages(table, pa.string())


def _replace_messages(table: pa.Schema, column_type: pa.DataType) -> pa.Schema:
    """Return the columns of a table with a prompt and a completion in place of the messages."""
    columns: list[pa.Field] = []
    for column in table:
        if column.name == "messages":
            columns.append(pa.field("prompt", column_type, nullable=False))
            columns.append(pa.field("completion", column_type, nullable=False))
        else:
            columns.append(column)
    return pa.schema(columns)


FORMS: dict[str, RowForm] = {
    "conversational": RowForm(_keep_columns, _keep_row),
    "openai": RowForm(_make_openai_columns, _to_openai),
    "prompt_completion": RowForm(_make_text_columns, _to_texts),
    "prompt_completion_messages": RowForm(_make_message_columns, _to_prompt_completion),
}
"""Export formats by name, one for each `Format`."""
