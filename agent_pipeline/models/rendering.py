"""Rendering of a conversation as text, by calling a chat template with messages that it accepts.

The canonical form keeps a call's arguments as a JSON string. Most templates take an object, some
take that string, and our template takes both. `template_probe` finds out which form a template
takes.

Numbers: the call that is trained is written as it was recorded. What comes before that call
(earlier calls, the tools' schemas) is written as llama.cpp's server writes it. A template that
takes objects is given rounded numbers there, and a template that takes text is not.

The choice of a template belongs in `chat_templates`, and what a renderer does with a template
belongs in `chat_renderer`.
"""

import json
from typing import TYPE_CHECKING, Any, Literal

from agent_pipeline._compat.transformers import render_jinja
from agent_pipeline.models.json_numbers import (
    NumberWriter,
    compact_arguments,
    parse_object,
    with_number_texts,
)
from agent_pipeline.models.special_tokens import mark_literals
from agent_pipeline.sessions.json_text import decode_arguments
from agent_pipeline.sessions.session import Message, Tool, ToolCall

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ArgumentsAs = Literal["dict", "str", "text"]
"""The form in which a chat template takes the arguments of a call.

`dict`: as an object. `str`: as the recorded text. `text`: as text or as an object, which the
template writes alike.
"""


def argument_texts(arguments: object) -> list[str]:
    """Return the texts in a call's arguments that appear in the output of every template.

    These are whole numbers, and strings that JSON writes without escapes.
    """
    if isinstance(arguments, dict):
        return [text for value in arguments.values() for text in argument_texts(value)]
    if isinstance(arguments, list):
        return [text for value in arguments for text in argument_texts(value)]
    if isinstance(arguments, str) and json.dumps(arguments, ensure_ascii=False) == f'"{arguments}"':
        return [arguments]
    return [str(arguments)] if type(arguments) is int else []


def with_plain_ids(messages: list[Message]) -> list[Message]:
    """Return the messages with call ids that are counted from `call00001`.

    A recorded id carries no meaning, and Mistral's templates accept only ids of nine letters and
    digits.
    """
    plain_ids: dict[str, str] = {}

    def plain_id(recorded_id: str) -> str:
        return plain_ids.setdefault(recorded_id, f"call{len(plain_ids) + 1:05d}")

    changed = []
    for message in messages:
        if message.get("tool_calls"):
            calls: list[ToolCall] = [
                {**call, "id": plain_id(call.get("id", ""))} for call in message["tool_calls"]
            ]
            message = {**message, "tool_calls": calls}
        elif message["role"] == "tool":
            message = {**message, "tool_call_id": plain_id(message.get("tool_call_id") or "")}
        changed.append(message)
    return changed


def as_template_wants(
    messages: list[Message],
    arguments_as: ArgumentsAs,
    number_writer: NumberWriter | None = None,
    add_generation_prompt: bool = False,
) -> list[Message]:
    """Return copies of the messages in the form that a chat template accepts.

    Ids are plain. A null content (the API's content of a turn that only calls) becomes empty.

    Args:
        messages: The conversation.
        arguments_as: How the template takes the arguments of calls.
        number_writer: Writes the numbers of objects: the last message's as they were recorded, and
            those of earlier calls as a server writes them. Without a writer they are Python's
            numbers.
        add_generation_prompt: Whether the assistant is to answer. The last message is then an
            earlier one, too.
    """
    messages = [
        message if message.get("content") is not None else {**message, "content": ""}
        for message in with_plain_ids(messages)
    ]
    if arguments_as == "str":
        return messages
    trained_message = None if add_generation_prompt or not messages else messages[-1]
    prepared = []
    for message in messages:
        if message.get("tool_calls"):
            is_recorded = message is trained_message
            calls = [
                _prepare_call(call, arguments_as, number_writer, is_recorded)
                for call in message["tool_calls"]
            ]
            message = {**message, "tool_calls": calls}
        prepared.append(message)
    return prepared


def _prepare_call(
    call: ToolCall,
    arguments_as: ArgumentsAs,
    number_writer: NumberWriter | None,
    is_recorded: bool,
) -> ToolCall:
    """Return a call with its arguments as text or as an object, as the template requires.

    Args:
        call: The call, in canonical form.
        arguments_as: `text` or `dict`.
        number_writer: As in `as_template_wants`.
        is_recorded: Whether the numbers are written as they were recorded.
    """
    arguments = call["function"]["arguments"]
    prepared: Any
    if arguments_as == "text":
        prepared = compact_arguments(arguments)
    elif number_writer is None:
        prepared = decode_arguments(arguments)
    else:
        value = parse_object(arguments)
        if value is None:
            prepared = arguments
        elif is_recorded:
            prepared = number_writer.recorded(value)
        else:
            prepared = number_writer.served(value)
    return {**call, "function": {**call["function"], "arguments": prepared}}


def as_servers_send(tools: list[Tool]) -> list[Tool]:
    """Return the tools in the form in which a server passes them to the chat template.

    A server passes the name, the description (empty if there is none) and the parameters, and
    nothing else (llama.cpp's `common_chat_tools_parse_oaicompat`). Training must show the model
    what the server will show.
    """
    prepared: list[Tool] = []
    for tool in tools:
        function = tool.get("function", tool)
        prepared.append(
            {
                "type": "function",
                "function": {
                    "name": function.get("name", ""),
                    "description": function.get("description") or "",
                    "parameters": function.get("parameters") or {},
                },
            }
        )
    return prepared


def render_template(
    tokenizer: "PreTrainedTokenizerBase",
    jinja: str,
    arguments_as: ArgumentsAs,
    messages: list[Message],
    tools: list[Tool] | None,
    add_generation_prompt: bool = False,
) -> str:
    """Render a conversation as text. Special tokens that occur inside messages are marked.

    Args:
        tokenizer: The tokenizer, whose special tokens the template may name (`bos_token`).
        jinja: The chat template.
        arguments_as: How the template takes the arguments of calls.
        messages: The conversation.
        tools: The tools that the template shows.
        add_generation_prompt: Whether the text ends where the assistant is to answer.

    Raises:
        Exception: Whatever the template raises; a template is a program.
    """
    number_writer = NumberWriter()
    prepared = as_template_wants(messages, arguments_as, number_writer, add_generation_prompt)
    shown_tools = None
    if tools:
        schemas = number_writer.served(with_number_texts(as_servers_send(tools)))
        shown_tools = mark_literals(tokenizer, schemas)
    text = render_jinja(
        jinja,
        mark_literals(tokenizer, prepared),
        shown_tools,
        add_generation_prompt=add_generation_prompt,
        special_tokens=tokenizer.special_tokens_map,
    )
    # Logs hold lone surrogates, which tokenizers refuse. One character replaces one surrogate, so
    # that character spans stay true.
    return number_writer.restore(text.encode("utf-8", "replace").decode("utf-8"))
