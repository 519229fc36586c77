"""Model requests and responses, read in the format of each supported API.

Tracing platforms and gateways store them as the input and output of a call. Content that cannot be
read becomes an item of damage: `unread` for an unknown form, `cut_text` for JSON without its end.
"""

import re
from typing import Any, NamedTuple

from agent_pipeline.sessions.chat import ROLES, read_text
from agent_pipeline.sessions.evidence import find_stop_reason
from agent_pipeline.sessions.items import Item, mark_cut_text, mark_unread
from agent_pipeline.sessions.message_fields import CUT_FLAGS, SOURCE_FIELDS
from agent_pipeline.sources.formats.cut_texts import is_cut_json, is_printed_object
from agent_pipeline.sources.formats.fields import decoded, decoded_text, first_of, objects, section

_SYSTEM = ("system", "instructions", "system_instruction", "systemInstruction")
_ASKED = (
    "messages",
    "contents",
    "input_messages",
    "message",
    "input",
    "inputs",
    "prompt",
    "question",
    "query",
    "content",
    "text",
)
_ANSWERED = (
    "messages",
    "message",
    "output",
    "outputs",
    "answer",
    "response",
    "content",
    "text",
    "result",
    "completion",
)

_FLATTENED = re.compile(
    r"(system|developer|user): .*^(user|assistant|tool): ", re.DOTALL | re.MULTILINE
)
_RENDERED = re.compile(
    r"<\|(?:im_start|start_header_id|start|user|assistant|system|turn|END_OF_TURN_TOKEN|begin_of_text)\|?>|<start_of_turn>|\[INST\]"
    r"|<｜(?:User|Assistant)｜>|\n\n(?:Human|Assistant):"
)
"""Markers that chat templates write before and after a turn when they render messages as one text.
"""

_OF_MESSAGES = frozenset(
    {
        *(
            "role",
            "messages",
            "choices",
            "candidates",
            "contents",
            "parts",
            "tool_calls",
            "function_call",
            "generations",
            "kwargs",
        ),
        *("input_messages", "toolCallId", "content_blocks", "message", "lc"),
    }
)
"""Fields that show that an object is a message, or a request or response with messages."""
_MESSAGE_TYPES = frozenset(
    ("message", "human", "user", "ai", "assistant", "system", "tool", "constructor", "reasoning")
)

_BLOCKS = frozenset(
    (
        "text",
        "toolUse",
        "toolResult",
        "reasoningContent",
        "image",
        "document",
        "video",
        "cachePoint",
        "guardContent",
    )
)
_CUT_BLOCKS = re.compile(r'\s*\[\s*\{\s*"(?:' + "|".join(sorted(_BLOCKS)) + r')"\s*(?::|$)')


class Exchange(NamedTuple):
    """One side of a model call: a request (with `tools`), or a response (with `usage`).

    `usage` has the names that the API uses.
    """

    messages: list[Any]
    model: Any = None
    tools: Any = None
    usage: dict[str, Any] = {}


def request_of(value: object) -> Exchange:
    """Return a request that is given as messages, as an API request, or as a text."""
    value = words_or_messages(value)
    if value == {
        "content": "role"
    }:  # LangSmith's exporter writes the name of a message field instead of the user's text
        return Exchange([None])
    request = value if isinstance(value, dict) else {}
    request = section(request, "config") | request  # Gemini keeps fields of the request in `config`
    system = first_of(request, *_SYSTEM)
    head = _system_messages(system)
    messages = (
        messages_of(value, "user")
        if not request or "role" in request
        else _first(request, _ASKED, "user")
    )
    tools = [
        message["content"] for message in messages if _is_tool(message)
    ]  # Langfuse writes LangChain's tool schemas between the messages
    messages = [message for message in messages if not _is_tool(message)]
    if _names_template(request) and not system and not any(map(_is_system, messages)):
        head = [mark_unread("prompt template")]
    return Exchange(
        [*head, *messages],
        request.get("model"),
        tools=request.get("tools") or request.get("functions") or tools,
    )


def _names_template(request: dict[str, Any]) -> bool:
    """Return whether a Responses call names a template that OpenAI stores.

    Other APIs write a message or the version of a prompt into the same field.
    """
    prompt = request.get("prompt")
    return (
        isinstance(prompt, dict)
        and isinstance(prompt.get("id"), str)
        and "role" not in prompt
        and not request.get("messages")
    )


def _is_system(message: object) -> bool:
    """Return whether a message is a system prompt."""
    role = message.get("role") if isinstance(message, dict) else None
    return isinstance(role, str) and ROLES.get(role) == "system"


def _system_messages(system: object) -> list[Any]:
    """Return the messages that the system prompt of a request contains.

    A response that used a stored prompt template lists the messages of the template.
    """
    if not system:
        return []
    if isinstance(system, list) and all(
        isinstance(message, dict) and "role" in message for message in system
    ):
        return system
    content = system.get("parts") if isinstance(system, dict) else system
    return [{"role": "system", "content": content}]


def response_of(value: object) -> Exchange:
    """Return a model response that is given in the format of any supported API.

    A response consists of choices, output items, content blocks, messages or a text. Only the first
    choice is read, because the other choices were never used. The other choices are counted as
    skipped. The stop reason is added to the model's last message.
    """
    value = words_or_messages(value)
    if not isinstance(value, dict):
        return Exchange(messages_of(value, "assistant"))
    reason = stop_reason(value)
    choices = objects(value.get("choices") or value.get("candidates"))
    choice = next(
        (candidate for candidate in choices if candidate.get("index") == 0),
        next(iter(choices), None),
    )
    if choice is not None:
        answered = messages_of(first_of(choice, "message", "text", "content"), "assistant")
        reason = stop_reason(choice) or reason
    elif "role" in value or value.get("type") in ("function_call", "message"):
        answered = [value]
    elif "tool_calls" in value:
        answered = [{"role": "assistant", **value}]
    else:
        value = _unwrapped(value)
        answered = _first(value, _ANSWERED, "assistant")
    usage = section(value, "usage") or section(value, "usageMetadata")
    answered = _with_sources(answered, (value, choice or {}))
    answered = [*with_reason(answered, reason), *mark_other_choices(len(choices) - 1)]
    return Exchange(answered, value.get("model"), usage=usage)


def mark_other_choices(count: int) -> list[object]:
    """Return items that count the choices of a response that are not read."""
    return [Item("harmless", name="other_choice")] * count


def first_choice(messages: list[Any], count: object = None) -> list[Any]:
    """Return the first of several answers to one request, if the messages are such answers.

    Tracing platforms write each choice of a response as a message. Without the number of choices,
    the messages are one turn: some libraries write the reason of its end on all of its messages.

    Args:
        messages: The messages of a response. Other choices may already be counted as skipped.
        count: The number of choices in the request, if the record states it.
    """
    others = [message for message in messages if _is_other_choice(message)]
    if others:  # events of the other choices may come first
        return [*(message for message in messages if not _is_other_choice(message)), *others]
    if len(messages) < 2 or not isinstance(count, int) or count < 2:
        return messages
    if count != len(messages) or not all(_is_answer(message) for message in messages):
        return [mark_unread("choices in an unknown form")]
    first = next((message for message in messages if message.get("index") == 0), messages[0])
    return [first, *mark_other_choices(count - 1)]


def _is_other_choice(message: object) -> bool:
    """Return whether a message was replaced by an item of `mark_other_choices`."""
    return isinstance(message, Item) and message.name == "other_choice"


def _is_answer(message: object) -> bool:
    """Return whether a message has the role of the assistant. LangChain names it as the type."""
    if not isinstance(message, dict):
        return False
    role = message.get("role", message.get("type", "assistant"))
    return isinstance(role, str) and ROLES.get(role) == "assistant"


def words_or_messages(value: object) -> Any:
    """Return the messages in a JSON text, or the text itself if the JSON is not a message.

    An agent may answer in JSON (`{"answer": "yes"}`). Such a text is the answer itself, not a
    record of a message.
    """
    if not isinstance(value, str):
        return value
    inner = decoded_text(value)
    return inner if isinstance(inner, str) or shows_messages(inner) else value


def shows_messages(value: object, depth: int = 3) -> bool:
    """Return whether a value is a message or contains messages.

    A message, a list of messages or blocks, a request and a response count.
    """
    if isinstance(value, list):
        return bool(value) and all(
            isinstance(inner, dict) and (shows_messages(inner) or _is_block(inner))
            for inner in value
        )
    if not isinstance(value, dict):
        return False
    kind = value.get("type")
    if isinstance(kind, str) and (
        kind in _MESSAGE_TYPES
        or kind.endswith(("_call", "_call_output", "MessageChunk", "Message"))
    ):
        return True
    if kind in ("text", "input_text", "output_text") and isinstance(value.get("text"), str):
        return True
    if (
        not _OF_MESSAGES.isdisjoint(value)
        or isinstance(value.get("content"), list)
        or isinstance(value.get("output"), list)
    ):
        return True
    return isinstance(stop_reason(value), str) or (
        depth > 0
        and any(
            isinstance(inner, dict) and shows_messages(inner, depth - 1) for inner in value.values()
        )
    )


def with_prefill(
    request: Exchange, response: Exchange, answer: object
) -> tuple[Exchange, Exchange]:
    """Move the beginning of an answer from the request to the response.

    With Anthropic's prefill, the request ends with the beginning of the answer.
    """
    message = decoded(answer)
    if not isinstance(message, dict) or message.get("type") != "message":
        return request, response
    prompt, answered = with_beginning(request.messages, response.messages)
    return request._replace(messages=prompt), response._replace(messages=answered)


def with_beginning(
    prompt: list[object], answered: list[object]
) -> tuple[list[object], list[object]]:
    """Merge an assistant message at the end of the prompt into the answer that continues it.

    The model continued that message, so both are one turn. The beginning was never sent as a
    message of its own.
    """
    begun, first = prompt[-1] if prompt else None, answered[0] if answered else None
    if not isinstance(begun, dict) or not isinstance(first, dict) or begun.get("tool_calls"):
        return prompt, answered
    beginning = read_text(begun.get("content"), "")[0]
    if begun.get("role") != "assistant" or first.get("role") != "assistant" or not beginning:
        return prompt, answered
    content = first.get("content")
    rest = content if isinstance(content, list) else [content] if isinstance(content, str) else []
    whole = first | {"content": [{"type": "text", "text": beginning}, *rest]}
    return prompt[:-1], [whole, *answered[1:]]


def stop_reason(response: dict[str, object]) -> str | None:
    """Return the reason why a model stopped, or None if it is unknown.

    The argument is a response, a choice or a candidate. A Responses object has the reason in its
    status and its incomplete details.
    """
    reason = find_stop_reason(response)
    if reason is None and response.get("done") is False:  # Ollama sends a piece of a stream
        reason = "partial"
    if reason is None and isinstance(response.get("output"), list):
        status = response.get("status")
        reason = section(response, "incomplete_details").get("reason") or (
            None if status == "completed" else status
        )
    if isinstance(reason, list):  # a list has one reason per choice
        reason = reason[0] if reason else None
    return reason if isinstance(reason, str) and reason else None


def record_stop_reason(record: dict[str, object]) -> str | None:
    """Return the reason why the last answer of a record of messages stopped, or None."""
    is_cut = any(record.get(name) is True for name in CUT_FLAGS)
    return stop_reason(record) or ("length" if is_cut else None)


def with_reason(messages: list[object], reason: str | None) -> list[object]:
    """Add the stop reason to the model's last message in a response."""
    if not reason:
        return messages
    for message_index in range(len(messages) - 1, -1, -1):
        message = messages[message_index]
        if isinstance(message, dict) and message.get("role") not in ("user", "tool", "system"):
            return [
                *messages[:message_index],
                _marked(message, reason),
                *messages[message_index + 1 :],
            ]
    return messages


def _with_sources(messages: list[object], records: tuple[dict[str, object], ...]) -> list[object]:
    """Add the sources that an answer cites to the last message of a response."""
    sources = {
        name: record[name] for record in records for name in SOURCE_FIELDS if record.get(name)
    }
    if not sources or not messages or not isinstance(messages[-1], dict):
        return messages
    return [*messages[:-1], sources | messages[-1]]


def messages_of(value: object, role: str, is_json: bool = False) -> list[Any]:
    """Return messages unchanged, and a text or content blocks as one message.

    The result is empty for any other value.

    Args:
        value: Messages, blocks, a text, or the JSON of any of these.
        role: Role of content that does not name a role.
        is_json: True if a text must be JSON, so that a text that is not JSON has lost its end.
    """
    value = decoded(value) if is_json else words_or_messages(value)
    if isinstance(value, str):
        if is_cut_json(value, is_json):
            return [mark_cut_text("json", value)]
        if is_printed_object(value):
            return [mark_unread("printed object")]
        # Several messages in one text cannot be separated reliably into roles and content.
        return (
            [None]
            if _FLATTENED.match(value)
            else [{"role": role, "content": value}]
            if value.strip()
            else []
        )
    if isinstance(value, dict):
        return (
            [value]
            if "role" in value
            else [{"role": role, **value}]
            if value.keys() & {"content", "parts", "tool_calls"}
            else []
        )
    if not isinstance(value, list):
        return []
    if value and all(
        isinstance(element, dict)
        and "role" not in element
        and element.keys() & {"text", "toolCallId"}
        for element in value
    ):
        return [
            {
                "role": role,
                "content": [
                    {"type": "tool-call", **element} if "toolCallId" in element else element
                    for element in value
                ],
            }
        ]
    if value and all(_is_block(element) for element in value):
        return [{"role": role, "content": value}]
    return [
        element if not isinstance(element, str) else {"role": role, "content": element}
        for element in value
    ]


def prompt_messages(prompt: object) -> list[object]:
    """Return the messages of a prompt.

    A text is a user message. A text that a chat template made from several messages cannot be split
    again.
    """
    if isinstance(prompt, str):
        if _RENDERED.search(prompt):
            return [mark_unread("prompt of a chat template")]
        return [{"role": "user", "content": prompt}] if prompt.strip() else []
    return messages_of(prompt, "user")


def with_blocks(messages: list[object]) -> list[object]:
    """Decode message texts that are JSON of Bedrock's content blocks.

    Strands' agents record messages in this way. If only some of the texts are JSON, they are
    ordinary texts. If all texts begin as blocks, a text that is not valid JSON has lost its end.
    """
    contents = [
        message.get("content")
        for message in messages
        if isinstance(message, dict) and message.get("role") != "system"
    ]
    texts = [content for content in contents if isinstance(content, str) and content.strip()]
    if (
        not texts
        or not all(_CUT_BLOCKS.match(text) for text in texts)
        or not any(_blocks_in(text) for text in texts)
    ):
        return messages
    return [_with_own_blocks(message) for message in messages]


def _with_own_blocks(message: Any) -> object:
    """Replace a message's text by content blocks if the text is JSON of Bedrock's blocks."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, str) or not _CUT_BLOCKS.match(content):
        return message
    blocks = _blocks_in(content)
    return message | {"content": blocks} if blocks else mark_cut_text("json", content)


def _blocks_in(text: str) -> list[object]:
    """Return Bedrock's blocks in a JSON text, or an empty list if it holds anything else."""
    blocks = decoded(text)
    return (
        blocks
        if isinstance(blocks, list) and blocks and all(_is_block(block) for block in blocks)
        else []
    )


def _is_block(value: object) -> bool:
    """Return whether a value is one of Bedrock's blocks.

    A block has a single field, which is named after its type.
    """
    return isinstance(value, dict) and len(value) == 1 and not _BLOCKS.isdisjoint(value)


def _marked(message: dict[str, Any], reason: str) -> dict[str, object]:
    """Add a stop reason to a message that does not state a stop reason.

    LangChain's messages have their fields in an inner object.
    """
    inner = next((name for name in ("kwargs", "data") if isinstance(message.get(name), dict)), None)
    if inner:
        return message | {inner: _marked(message[inner], reason)}
    return message if find_stop_reason(message) is not None else message | {"finish_reason": reason}


def _unwrapped(response: dict[str, object]) -> dict[str, object]:
    """Return a response whose message has been merged into the response's other fields.

    Bedrock nests the message in `output`.
    """
    inner = section(response, "output", "message")
    return response | {"output": [inner]} if inner else response


def _is_tool(message: object) -> bool:
    """Return whether a message is a tool schema that Langfuse wrote between messages."""
    return (
        isinstance(message, dict)
        and message.get("role") == "tool"
        and section(message, "content", "function").get("name") is not None
    )


def _first(value: dict[str, Any], names: tuple[str, ...], role: str) -> list[Any]:
    """Return the messages in the first of the named fields that contains messages.

    Texts in a list of messages are printed Python objects, which cannot be read.
    """
    texts = [
        name
        for name in ("messages", "input_messages")
        if isinstance(value.get(name), list) and str in map(type, value[name])
    ]
    return next(
        (
            messages
            for name in names
            if name in value and name not in texts and (messages := messages_of(value[name], role))
        ),
        [],
    )


def is_damaged(item: object) -> bool:
    """Return whether a value in a list of messages is empty or a damage item."""
    return item is None or (isinstance(item, Item) and item.kind in ("unread", "cut_text", ""))
