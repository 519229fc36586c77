"""A conversation as the text that the model sees: the tokenizer's chat template, applied to canonical messages.

The canonical form keeps a call's arguments as a JSON string; templates want an object (most), that string (some), or either (ours). Which
one is a property of the template (`templates.probe` finds it) that travels with the tokenizer as `init_kwargs["arguments_as"]`, so
it is saved in `tokenizer_config.json` beside the template it belongs to. So is `rows`: whether a conversation is one row, or each of its
assistant's turns is one, where the template shows the past otherwise than it was said (thoughts left out, tools moved to the last user).
And `reasoning`, where the template shows thoughts: their key, and what it writes between a thought and what is said.

Numbers: the call that is trained is written as it was recorded. What comes before it (earlier calls, the tools' schemas) is written as
llama.cpp's server writes it: a template that takes objects is given rounded numbers there, and one that takes text is not.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from agent_pipeline.models.json_numbers import (
    NumberWriter,
    changed_numbers,
    compact_arguments,
    parse_json,
    with_number_texts,
)
from agent_pipeline.models.special_tokens import marked
from agent_pipeline.sessions.json_text import decode_arguments
from agent_pipeline.sessions.session import THOUGHT, Message, Tool, drop_keys, list_calls

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ArgumentsAs = Literal["dict", "str", "text"]
"""How a template takes arguments: `dict` as objects, `str` as the recorded text, `text` as text or as objects, which it writes alike."""

Rows = Literal["conversation", "turn"]


def turns_apart(tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message] = ()) -> bool:
    """Return whether each of the assistant's turns is a row of its own.

    That is so if the template shows the past otherwise than it was said, or if the server will: it rounds the numbers of earlier calls.
    """
    if tokenizer.init_kwargs.get("rows") == "turn":
        return True
    as_objects = tokenizer.init_kwargs.get("arguments_as", "dict") == "dict"
    return as_objects and any(changed_numbers(raw) for _, raw in list_calls(list(messages[:-1])))


def argument_texts(arguments: Any) -> list[str]:
    """The texts inside a call's arguments that every template must show in some way: whole numbers and plain strings."""
    if isinstance(arguments, dict):
        return [text for value in arguments.values() for text in argument_texts(value)]
    if isinstance(arguments, list):
        return [text for value in arguments for text in argument_texts(value)]
    if isinstance(arguments, str) and json.dumps(arguments, ensure_ascii=False) == f'"{arguments}"':
        return [arguments]
    return [str(arguments)] if type(arguments) is int else []


def with_plain_ids(messages: list[Message]) -> list[Message]:
    """The messages with the ids of calls counted from `call00001`: a recorded id says nothing, and Mistral's templates take none but nine
    letters and digits."""
    ids: dict[str, str] = {}

    def plain(recorded: str) -> str:
        return ids.setdefault(recorded, f"call{len(ids) + 1:05d}")

    changed = []
    for message in messages:
        if message.get("tool_calls"):
            message = {
                **message,
                "tool_calls": [
                    {**call, "id": plain(call.get("id", ""))} for call in message["tool_calls"]
                ],
            }
        elif message["role"] == "tool":
            message = {**message, "tool_call_id": plain(message.get("tool_call_id") or "")}
        changed.append(message)
    return changed


def as_template_wants(
    messages: list[Message],
    arguments_as: ArgumentsAs,
    numbers: NumberWriter | None = None,
    asked: bool = False,
) -> list[Message]:
    """Return the messages as a template takes them; the input is not changed.

    Ids are plain, and null contents (the API's, of a turn that only calls) are empty.

    Args:
        messages: The conversation.
        arguments_as: How the template takes the arguments of calls.
        numbers: Writes the numbers of objects: those of the last message as recorded, and those of earlier calls as a server does. Without
            it they are Python's numbers.
        asked: Whether the model is to answer, so that the last message is an earlier one, too.
    """
    messages = [
        message if message.get("content") is not None else {**message, "content": ""}
        for message in with_plain_ids(messages)
    ]
    if arguments_as == "str":
        return messages

    def wanted(arguments: Any, said_last: bool) -> Any:
        if arguments_as == "text":
            return compact_arguments(arguments)
        if numbers is None:
            return decode_arguments(arguments)
        value = _object_of(arguments)
        if value is None:
            return arguments
        return numbers.recorded(value) if said_last else numbers.served(value)

    last = None if asked or not messages else messages[-1]
    return [
        {
            **message,
            "tool_calls": [
                {
                    **call,
                    "function": {
                        **call["function"],
                        "arguments": wanted(call["function"]["arguments"], message is last),
                    },
                }
                for call in message["tool_calls"]
            ],
        }
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def _object_of(arguments: Any) -> dict[str, Any] | None:
    """Return the object that a call's arguments are, with each number as its text; None if they are anything else."""
    try:
        value = (
            parse_json(arguments) if isinstance(arguments, str) else with_number_texts(arguments)
        )
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def as_servers_send(tools: list[Tool]) -> list[Tool]:
    """The tools as a server hands them to the chat template, whatever a client sent: name, description (empty where there is none),
    parameters, nothing else (llama.cpp's `common_chat_tools_parse_oaicompat`). What the model is trained on must be what it is asked.
    """
    functions = (tool.get("function", tool) for tool in tools)
    return [
        {
            "type": "function",
            "function": {
                "name": function.get("name", ""),
                "description": function.get("description") or "",
                "parameters": function.get("parameters") or {},
            },
        }
        for function in functions
    ]


def render_with(
    tokenizer: "PreTrainedTokenizerBase",
    jinja: str | None,
    arguments_as: ArgumentsAs,
    messages: list[Message],
    tools: list[Tool] | None,
    add_generation_prompt: bool = False,
) -> str:
    """The conversation as text, by the template `jinja` (None: the tokenizer's own); special tokens that its texts hold are marked
    (`literals`). Raises whatever the template raises."""
    from transformers.utils.chat_template_utils import render_jinja_template

    numbers = NumberWriter()
    wanted = as_template_wants(messages, arguments_as, numbers, add_generation_prompt)
    # Not `apply_chat_template`: it refuses an empty conversation, which is what comes before a greeting of the assistant's.
    # It also lays the special tokens out for the template (`bos_token`, `eos_token`): so do we.
    texts, _ = render_jinja_template(
        conversations=[marked(tokenizer, wanted)],
        tools=marked(tokenizer, numbers.served(with_number_texts(as_servers_send(tools))))
        if tools
        else None,
        chat_template=jinja or tokenizer.get_chat_template(tools=tools or None),
        add_generation_prompt=add_generation_prompt,
        **tokenizer.special_tokens_map,
    )
    # Logs hold lone surrogates; tokenizers accept none. One character replaces one, so that character spans stay true.
    return numbers.restore(texts[0].encode("utf-8", "replace").decode("utf-8"))


def shown_thoughts(
    tokenizer: "PreTrainedTokenizerBase", messages: list[Message], add_generation_prompt: bool
) -> list[Message]:
    """The messages as they are shown: the last one with its thought, if it is said and not asked for and the chat template shows thoughts
    (`templates.thoughts_of`); the others with none, since clients do not send back what a model thought."""
    if not any(THOUGHT in message for message in messages):
        return messages
    shown, thought = (
        [drop_keys(message, THOUGHT) for message in messages],
        messages[-1].get(THOUGHT),
    )
    if thought and not add_generation_prompt and (form := tokenizer.init_kwargs.get("reasoning")):
        shown[-1] |= {form[0]: thought}
    return shown


def thought_end(tokenizer: "PreTrainedTokenizerBase", message: Message, text: str) -> int:
    """The position in `text`, a rendered assistant's turn, where its thought and what closes it end; 0 where it shows none."""
    form, thought = (
        tokenizer.init_kwargs.get("reasoning"),
        marked(tokenizer, (message.get(THOUGHT) or "").strip()),
    )
    at = text.find(thought + form[1]) if form and thought else -1
    return at + len(thought) + len(form[1]) if form and at >= 0 else 0


def render(
    tokenizer: "PreTrainedTokenizerBase",
    messages: list[Message],
    tools: list[Tool] | None,
    add_generation_prompt: bool = False,
) -> str:
    """The conversation as text, by the tokenizer's own template, arguments decoded as that template wants them."""
    arguments_as = tokenizer.init_kwargs.get("arguments_as", "dict")
    shown = shown_thoughts(tokenizer, messages, add_generation_prompt)
    return render_with(tokenizer, None, arguments_as, shown, tools, add_generation_prompt)
