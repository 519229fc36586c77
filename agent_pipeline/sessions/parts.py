"""Readers of one part of a message: a call, a result, text, a thought, a picture or a file.

`recognize_part` is the only function that decides the kind of a part, in the format of any SDK. A
part is understood, known to be harmless (`HARMLESS_PARTS`), or `unread`, which is damage. No part
is skipped without a name. `chat` reads whole messages and items, and calls this module for their
parts.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from agent_pipeline.json_types import JsonObject
from agent_pipeline.sessions.evidence import shows_activity
from agent_pipeline.sessions.items import INVALID, Item, mark_unread
from agent_pipeline.sessions.json_text import dump_json, parse_object, replace_surrogates
from agent_pipeline.sessions.part_fields import (
    THOUGHT_MARKS,
    is_marked_failed,
    join_texts,
    pick_first,
    read_id,
    read_part_type,
    read_thought,
)
from agent_pipeline.sessions.result_values import is_encrypted, unpack_media, unwrap_json_part

TEXT_PARTS = {"text", "input_text", "output_text", "summary_text", "text-plain"}

_STEP_BORDERS = {"step-start", "step-finish", "start-step", "finish-step"}

HARMLESS_PARTS = {
    *_STEP_BORDERS,
    # opencode: hashes of files, the name of a mentioned agent, a failed request
    *("snapshot", "patch", "agent", "retry"),
    # markers for the prompt cache
    *("cachePoint", "cache-point", "cache", "cache_control"),
    # sources of a text
    *("source-url", "source-document", "url_citation", "file_citation", "non_standard_annotation"),
    # Goose: a line for the user's screen, which the model does not see
    "systemNotification",
    # Mistral: numbers of the sources of the preceding text
    "reference",
}
"""Types of message parts that contain no content from a person, a model or a tool.

A part that is neither understood nor in this list counts as damage.
"""

_THOUGHT_PARTS = {
    "thinking",
    "redacted_thinking",
    "redactedThinking",
    "reasoning",
    "reasoningContent",
    "redacted-reasoning",
}
_CALL_PARTS = {
    *("tool_use", "tool_call", "toolCall", "server_tool_use", "mcp_tool_use", "tool-call"),
    *("function_call", "server_tool_call", "builtin-tool-call", "invalid_tool_call"),
}
_RESULT_PARTS = {
    *("tool_result", "tool_call_response", "toolResult", "tool-result", "tool-error"),
    *("function_call_output", "server_tool_result", "server_tool_call_response"),
    "builtin-tool-return",
}
_TYPES_BY_WRAPPER = {
    **dict.fromkeys(("functionCall", "function_call", "tool_call"), "tool_call"),
    **dict.fromkeys(("functionResponse", "function_response", "toolResult"), "tool_result"),
    "toolUse": "tool_use",
    **dict.fromkeys(("inlineData", "inline_data", "fileData", "file_data"), "file"),
    **dict.fromkeys(("image", "document", "video", "audio"), ""),
    **dict.fromkeys(("executableCode", "executable_code"), "executable_code"),
    **dict.fromkeys(("codeExecutionResult", "code_execution_result"), "code_execution_result"),
    "reasoningContent": "reasoningContent",
    "cachePoint": "cachePoint",
    "guardContent": "guardContent",
    "citationsContent": "citationsContent",
    "tool_call_result": "tool_call_result",
}
"""Types of message parts whose only field is named after the type (Gemini, Bedrock, Haystack).

An empty value means that the field's name is used as the type.
"""

_MEDIA_WORDS = {
    **dict.fromkeys(("image", "image_url", "input_image", "output_image", "image-url"), "image"),
    **dict.fromkeys(("computer_screenshot", "image_file"), "image"),
    **dict.fromkeys(("file", "input_file", "output_file", "document", "document-url"), "file"),
    **dict.fromkeys(("file_url", "file_id", "container_upload", "uri", "blob"), "file"),
    **dict.fromkeys(("binary", "uploaded-file", "resource", "media"), "file"),
    **dict.fromkeys(("audio", "input_audio", "output_audio", "audio-url", "audio_url"), "audio"),
    **dict.fromkeys(("video", "input_video", "output_video", "video-url", "video_url"), "video"),
}
"""Words that mark a picture or a file in a text, by the type of the message part."""

_MEDIA_TYPE_FIELDS = ("mediaType", "mimeType", "media_type", "mime_type", "mime", "modality")
_CALL_ID_FIELDS = ("call_id", "toolCallId", "tool_call_id", "toolUseId", "callID", "id")
_RESULT_ID_FIELDS = (
    *("tool_use_id", "tool_call_id", "toolUseId", "toolCallId", "call_id", "callID", "id"),
)
_ARGUMENT_FIELDS = ("arguments", "args", "input", "parameters", "tool_kwargs", "server_tool_call")
_OUTPUT_FIELDS = ("content", "response", "result", "output", "error", "server_tool_call_response")
UNREAD_RESULT = "result"
"""Beginning of the name of an item for a result that cannot be read."""

_ABOUT_CALLS = {
    *("type", "kind", "part_kind", "block_type", "tool_kind", "tool_type", "index", "weight"),
    *("name", "toolName", "tool_name", "function", "namespace", "toolset_name", "agent_name"),
    *("id", "call_id", "callID", "callId", "tool_call_id", "toolCallId", "tool_use_id"),
    *("toolUseId", "state", "status", "phase", "outcome", "is_error", "isError", "dynamic"),
    *("providerMetadata", "providerOptions", "provider_details", "provider_name", "caller"),
    *("cache_control", "extra_content", "metadata", "extras", "_meta", "callProviderMetadata"),
    *("thought", "thoughtSignature", "thought_signature", "signature", "timestamp"),
    *("created_by", "view", "title", "error", "parse_error", "approval", "usage"),
    *("description", "tool_description", "display_name", "displayName", "timestamps"),
    *("created_at", "createdAt", "updated_at", "updatedAt", "started_at", "startedAt"),
    *("ended_at", "endedAt", "finished_at", "finishedAt", "completed_at", "completedAt"),
    *("start_time", "startTime", "end_time", "endTime"),
}
"""Fields of a call or a result that hold neither arguments nor an output."""
_TOOL_FIELDS = ("name", "toolName", "tool_name")
_TEXT_FIELDS = {
    *("type", "text", "content", "annotations", "logprobs", "cache_control", "citations", "index"),
    *("id", "state", "part_kind", "block_type", "kind", "parsed", "phase"),
    *("thought", "thoughtSignature", "thought_signature", "providerMetadata", "providerOptions"),
    *("provider_details", "provider_name", "metadata", "extras", "time", "synthetic", "timestamp"),
}
"""Fields of a text part that do not change its text."""

_FINISHED_STATES = ("output-available", "result")
_CALLED_STATES = ("input-available", "call", "approval-requested", "approval-responded")
"""States of a tool part of the AI SDK in which the result is missing."""


class ContentText(NamedTuple):
    """The text of a message's content, and the types of the parts that are not text."""

    text: str
    other_types: tuple[str, ...]


def recognize_part(part: object) -> tuple[Item, ...]:
    """Return the items that one part of a message contains.

    Besides the kinds of items in a history, a part can be `words` (a piece of a message's text),
    `media` (the mark of a picture or a file), `border` (a new step begins) or `harmless`. A part
    that holds a call and its result returns both.
    """
    if isinstance(part, str):
        return (Item("words", part),)
    if not isinstance(part, dict):
        return (mark_unread("part"),)
    part = _unwrap_part(part)
    kind = read_part_type(part)
    if kind in TEXT_PARTS:
        return _read_words(part, kind)
    if kind in _READERS:
        return _READERS[kind](part)
    if kind in _CALL_PARTS:
        return _read_call_part(part)
    if kind in _RESULT_PARTS or kind.endswith("_tool_result"):
        return (read_result_block(part),)
    if kind in _THOUGHT_PARTS:
        return (Item("reasoning", read_thought(part)),)
    if kind in _MEDIA_WORDS:
        return _read_media(part, kind)
    if kind in _STEP_BORDERS:
        return (Item("border", name=kind),)
    if kind in HARMLESS_PARTS and not shows_activity(part) and not _has_words(part):
        return (Item("harmless", name=kind),)
    if kind.startswith("data-") and not shows_activity(part):
        # The AI SDK: the application shows the data to the user, and the model does not see it.
        return (Item("harmless", name="data"),)
    if kind.startswith("tool-") and "toolCallId" in part:
        return read_ui_tool(part | {"toolName": kind.removeprefix("tool-")})
    text = part.get("text")
    if not kind and isinstance(text, str) and not shows_activity(part, but=("text",)):
        return (Item("words", text),)
    return (mark_unread(f"part {replace_surrogates(kind)}" if kind else "part"),)


def read_text(content: object, seam: str = "\n") -> ContentText:
    """Return the text of a message's content, which is a string or a list of parts.

    Pictures and files become marks in the text. `seam` is inserted between two texts if neither has
    white space there, because parts are paragraphs.
    """
    if isinstance(content, str):
        return ContentText(content, ())
    if content is None:
        return ContentText("", ())
    parts = content if isinstance(content, list) else [content]
    items = [item for part in parts for item in recognize_part(part)]
    texts = [item.text for item in items if item.kind in ("words", "media")]
    other_types = tuple(item.name or item.kind for item in items if item.kind != "words")
    return ContentText(join_texts(texts, seam), other_types)


def read_call(call: object, trained: bool = True, cut: bool = False) -> Item:
    """Return a tool call as an item, or an invalid item if the call has no name.

    Args:
        call: A call in the form of any SDK, or the JSON text of a call (verifiers).
        trained: Whether the call is trained on.
        cut: Whether the call was cut off; then the call is not trained on.
    """
    if isinstance(call, str):
        call = parse_object(call)
    if not isinstance(call, dict):
        return INVALID
    function = call.get("function")
    custom = call.get("custom")
    if isinstance(custom, dict):  # OpenAI's custom tools take a text instead of JSON
        function = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
    fields = function if isinstance(function, dict) else call
    if isinstance(function, str):
        name: object = function
    else:
        name = fields.get("name") or fields.get("toolName") or fields.get("tool_name")
    text = _read_arguments(fields, call)
    if not isinstance(name, str) or not name.strip() or text is None:
        return INVALID
    has_arguments = not fields.keys().isdisjoint(_ARGUMENT_FIELDS)
    if not text and not has_arguments and (strange := _list_strange_fields(fields, call)):
        return mark_unread(f"call with {' '.join(strange)}")
    return Item(
        "function_call",
        _unparsed_arguments(call, text) or text,
        name=name,
        call_id=read_id(call, *_CALL_ID_FIELDS),
        trained=trained and not cut,
        cut=cut,
    )


def _unparsed_arguments(call: JsonObject, text: str) -> str | None:
    """Return a text for arguments that a library could not parse and left out of the record.

    Inspect then records empty arguments and a `parse_error`, and LangChain an `error` in an invalid
    call. The text is not JSON, so the call counts as damaged. Recorded arguments need no text.
    """
    error = call.get("parse_error")
    if call.get("type") == "invalid_tool_call":
        error = error or call.get("error") or "invalid tool call"
    if not error or (text.strip() and parse_object(text) is None):
        return None
    return f"arguments that could not be parsed: {error}"


def _read_arguments(fields: JsonObject, call: JsonObject) -> str | None:
    """Return the JSON text of a call's arguments, or None if they cannot be written as JSON.

    Args:
        fields: The function object of the call, or the call itself.
        call: The call.
    """
    arguments = pick_first(fields, _ARGUMENT_FIELDS)
    if arguments is None:
        arguments = pick_first(call, _ARGUMENT_FIELDS)
    if arguments in (None, "", {}) and isinstance(call.get("partial_json"), str):
        arguments = call["partial_json"]  # the joined pieces of a stream
    hosted = call.get("server_tool_call")
    if isinstance(hosted, dict) and arguments is hosted:
        # OpenTelemetry: the arguments stand beside the tool's type, or in an object of their own.
        inner = {name: value for name, value in hosted.items() if name != "type"}
        arguments = inner["arguments"] if inner.keys() == {"arguments"} else inner
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else dump_json(arguments)


def read_result(call_id: str, output: object, failed: bool = False, tool: str = "") -> Item:
    """Return a tool result as an item.

    A text or a list of parts is read as in a message. Any other value is kept as JSON. If a list
    holds an unknown part with a call, the result is invalid.

    Args:
        call_id: The id of the call.
        output: The tool's output.
        failed: Whether the record reports an error.
        tool: The name of the tool, if the record of the result states it.
    """
    output = unpack_media(output)
    pieces: list[Item] = []
    if isinstance(output, list) and output:
        output = [unwrap_json_part(part) for part in output]
        unknown = [part for part in output if not _is_text_or_media(part)]
        if not unknown:
            pieces = [item for part in output for item in recognize_part(part)]
        elif len(unknown) < len(output) and shows_activity(unknown):
            # the list consists of parts and is not a plain value, but one of its parts is unknown
            return INVALID
    media: tuple[str, ...] = ()
    if output is None or isinstance(output, str):
        text: str | None = output or ""
    elif pieces and all(item.kind in ("words", "media") for item in pieces):
        text = join_texts((item.text for item in pieces), "\n")
        media = tuple(item.name for item in pieces if item.kind == "media")
    else:
        text = dump_json(output)
    if text is None:
        return INVALID
    return Item(
        "function_call_output", text, name=tool, call_id=call_id, media=media, failed=failed
    )


def read_result_block(block: JsonObject) -> Item:
    """Return the tool result in a block that names its call."""
    output = pick_first(block, _OUTPUT_FIELDS)
    has_output = any(name in block for name in _OUTPUT_FIELDS if name != "error")
    if output is None and not has_output and (strange := _list_strange_fields(block)):
        return mark_unread(f"{UNREAD_RESULT} with {' '.join(strange)}")
    failed = is_marked_failed(block)
    if isinstance(output, dict) and _is_ai_sdk_output(output):
        failed = failed or is_marked_failed(output)
        output = output.get("value", output.get("reason"))
    if is_encrypted(output):
        return mark_unread(f"{UNREAD_RESULT} that only the service can read")
    if output == [] and "content" in block:
        output = ""
    return read_result(
        read_id(block, *_RESULT_ID_FIELDS), output, failed, tool=read_tool_name(block)
    )


def _list_strange_fields(*records: JsonObject) -> list[str]:
    """Return the fields that may hold the content of a call or a result.

    Args:
        records: The call or the result, and its inner objects. Their known fields have no content;
            an empty field is known content (`arguments: ""`), so such records are not passed.
    """
    known = {*_ABOUT_CALLS, *_ARGUMENT_FIELDS, *_OUTPUT_FIELDS}
    return [
        replace_surrogates(str(name))
        for record in records
        for name, value in record.items()
        if name not in known and isinstance(value, str | list | dict) and value
    ]


def read_tool_name(result: JsonObject) -> str:
    """Return the tool that a result names, or an empty text. Gemini's results have no other id."""
    name = pick_first(result, _TOOL_FIELDS)
    return name if isinstance(name, str) else ""


def _is_ai_sdk_output(output: JsonObject) -> bool:
    """Return whether a result's output is in the format of the AI SDK.

    The form is an object with a type and a value.
    """
    return output.keys() == {"type", "value"} or output.get("type") == "execution-denied"


def read_ui_tool(part: JsonObject) -> tuple[Item, ...]:
    """Return the call and the result in a tool part of the AI SDK's UI messages.

    The tool invocations of the AI SDK's version 4 have the same fields.
    """
    state = part.get("state")
    call_id = read_id(part, "toolCallId")
    arguments = pick_first(part, ("input", "args", "rawInput"))
    call = read_call({"name": part.get("toolName"), "arguments": arguments, "call_id": call_id})
    if state in _FINISHED_STATES:
        return call, read_result(call_id, pick_first(part, ("output", "result")))
    if state == "output-error":
        return call, read_result(call_id, part.get("errorText"), failed=True)
    if state == "output-denied":
        approval = part.get("approval")
        reason = approval.get("reason") if isinstance(approval, dict) else None
        return call, read_result(call_id, reason, failed=True)
    if state in _CALLED_STATES:
        return (call,)
    if isinstance(state, str):
        return (mark_unread(f"tool in the state {state}"),)
    return (mark_unread("tool without a state"),)


def _unwrap_part(part: JsonObject) -> JsonObject:
    """Return the content of a message part whose only field is named after the part's type.

    Other parts are returned unchanged.
    """
    if "type" in part or _TYPES_BY_WRAPPER.keys().isdisjoint(part):
        return part
    wrappers = [name for name in _TYPES_BY_WRAPPER if part.get(name) is not None]
    if len(wrappers) != 1 or not isinstance(part[wrappers[0]], dict):
        return part
    wrapper = wrappers[0]
    other_fields = {
        name: value for name, value in part.items() if name != wrapper and name not in THOUGHT_MARKS
    }
    if shows_activity(other_fields):
        return {"type": f"{wrapper} beside {' '.join(sorted(map(str, other_fields)))}"}
    inner: JsonObject = part[wrapper]
    return inner | {"type": _TYPES_BY_WRAPPER[wrapper] or wrapper}


def _is_text_or_media(part: object) -> bool:
    """Return whether a part of a tool result is a text, a picture or a file."""
    if isinstance(part, str):
        return True
    if isinstance(part, dict):
        part = _unwrap_part(part)
    kind = read_part_type(part)
    return kind in TEXT_PARTS or kind in _MEDIA_WORDS


def _has_words(part: JsonObject) -> bool:
    """Return whether a message part has text that is not blank."""
    return any(
        isinstance(part.get(name), str) and part[name].strip() for name in ("text", "content")
    )


def _read_words(part: JsonObject, kind: str) -> tuple[Item, ...]:
    """Return the text that a text part contains.

    If the part has fields of a call, an unread item is added.
    """
    text = part.get("text")
    if isinstance(text, str):
        words: object = text
    elif isinstance(text, dict):  # OpenAI's threads
        words = text.get("value")
    else:  # AgentDojo and OpenTelemetry
        words = part.get("content")
    if not isinstance(words, str):
        return (mark_unread(f"part {kind}"),)
    if part.get("thought") is True:
        return (Item("reasoning", words if words.strip() else ""),)
    item = Item("words", words)
    other_fields = {name: value for name, value in part.items() if name not in _TEXT_FIELDS}
    if shows_activity(other_fields):
        return (item, mark_unread(f"part {kind} with {' '.join(sorted(other_fields))}"))
    return (item,)


def _make_words(words: object, kind: str) -> tuple[Item, ...]:
    """Return a text as an item, or an unread item if the value is not a text."""
    return (Item("words", words) if isinstance(words, str) else mark_unread(f"part {kind}"),)


def _read_refusal(part: JsonObject) -> tuple[Item, ...]:
    """Return the text of the model's refusal that a message part contains."""
    return _make_words(pick_first(part, ("refusal", "text")), "refusal")


def _read_call_part(part: JsonObject) -> tuple[Item, ...]:
    """Return the tool call that a message part contains.

    If the part also has a result (Inspect's hosted tools), the result is returned too.
    """
    if isinstance(part.get("approval"), dict):
        return (mark_unread("call that waits for an approval"),)
    call = read_call(part)
    if part.get("type") == "tool_use" and "result" in part:
        return call, read_result(call.call_id, part["result"], bool(part.get("error")))
    return (call,)


def _read_media(part: JsonObject, kind: str) -> tuple[Item, ...]:
    """Return the text of a document or a sound, or a mark that replaces the missing content."""
    words = _read_media_words(part, kind)
    if words is not None:
        return (Item("words", words),)
    mark = _MEDIA_WORDS[kind]
    if mark == "file":
        types = [part[name] for name in _MEDIA_TYPE_FIELDS if isinstance(part.get(name), str)]
        general_type = types[0].partition("/")[0] if types else ""
        if general_type in ("image", "audio", "video"):
            mark = general_type
    return (Item("media", f"[{mark}]", name=mark),)


def _read_media_words(part: JsonObject, kind: str) -> str | None:
    """Return the text of a document or the transcript of a sound, if the record has it."""
    if kind == "document":
        source = _read_fields(part, "source")
        if source.get("type") == "text" and isinstance(source.get("data"), str):
            return str(source["data"])
        document = _read_fields(part, "document")  # Cohere
        if isinstance(document.get("data"), str):
            return str(document["data"])
    if kind == "resource":
        text = _read_fields(part, "resource").get("text")
        if isinstance(text, str):
            return text
    transcript = part.get("transcript")
    if _MEDIA_WORDS[kind] == "audio" and isinstance(transcript, str) and transcript.strip():
        return transcript
    return None


def _read_fields(part: JsonObject, name: str) -> Mapping[str, object]:
    """Return the object that a field contains, or an empty object."""
    value = part.get(name)
    return value if isinstance(value, dict) else {}


def _read_opencode_tool(part: JsonObject) -> tuple[Item, ...]:
    """Return the call and the result in a tool part of opencode."""
    state = part.get("state")
    if not isinstance(state, dict):
        return (mark_unread("part tool"),)
    call_id = read_id(part, "callID", "id")
    call = read_call(
        {"name": part.get("tool"), "arguments": state.get("input"), "call_id": call_id}
    )
    if state.get("status") == "completed":
        result = read_result(call_id, state.get("output"))
        if isinstance(state.get("attachments"), list) and state["attachments"]:
            return call, result, mark_unread("tool with attachments")
        return call, result
    if state.get("status") == "error":
        return call, read_result(call_id, state.get("error"), failed=True)
    return (mark_unread("tool that did not end"),)


def _read_goose_request(part: JsonObject) -> tuple[Item, ...]:
    """Return the tool call in a request part of Goose."""
    call = _read_fields(part, "toolCall")
    value = call.get("value")
    if call.get("status") == "success" and isinstance(value, dict):
        return (read_call(value | {"call_id": part.get("id")}),)
    return (mark_unread("part toolRequest"),)


def _read_goose_response(part: JsonObject) -> tuple[Item, ...]:
    """Return the tool result in a response part of Goose."""
    result = part.get("toolResult")
    if not isinstance(result, dict) or result.get("status") not in ("success", "error"):
        return (mark_unread("part toolResponse"),)
    value = pick_first(result, ("value", "error"))
    failed = result["status"] == "error"
    if isinstance(value, dict):
        failed = failed or value.get("isError") is True
        if isinstance(value.get("content"), list):
            value = value["content"]
    return (read_result(read_id(part, "id"), value, failed),)


def _read_tool_invocation(part: JsonObject) -> tuple[Item, ...]:
    """Return the call and the result in a part of the AI SDK, version 4."""
    invocation = part.get("toolInvocation")
    if isinstance(invocation, dict):
        return read_ui_tool(invocation)
    return (mark_unread("part tool-invocation"),)


def _read_guarded_words(part: JsonObject) -> tuple[Item, ...]:
    """Return the text that Bedrock's guardrail checked."""
    return _make_words(_read_fields(part, "text").get("text"), "guardContent")


def _read_cited_words(part: JsonObject) -> tuple[Item, ...]:
    """Return the text of a part in which Bedrock marks citations."""
    content = part.get("content")
    if not isinstance(content, list):
        return (mark_unread("part citationsContent"),)
    return tuple(item for inner in content for item in recognize_part(inner))


def _read_haystack_result(part: JsonObject) -> tuple[Item, ...]:
    """Return the tool result that a message part of Haystack contains."""
    origin = part.get("origin")
    call_id = read_id(origin, "id") if isinstance(origin, dict) else ""
    return (read_result(call_id, part.get("result"), part.get("error") is True),)


def _read_code(part: JsonObject) -> tuple[Item, ...]:
    """Return the code that Gemini executed, as a tool call."""
    arguments = {name: part[name] for name in ("language", "code") if part.get(name) is not None}
    return (read_call({"name": "code_execution", "arguments": arguments, "id": part.get("id")}),)


def _read_code_result(part: JsonObject) -> tuple[Item, ...]:
    """Return the output of code that Gemini executed, as a tool result."""
    failed = part.get("outcome") != "OUTCOME_OK"
    return (read_result(read_id(part, "id"), part.get("output"), failed),)


_READERS: dict[str, Callable[[JsonObject], tuple[Item, ...]]] = {
    "refusal": _read_refusal,
    "tool": _read_opencode_tool,
    "toolRequest": _read_goose_request,
    "toolResponse": _read_goose_response,
    "tool-invocation": _read_tool_invocation,
    "dynamic-tool": read_ui_tool,
    "executable_code": _read_code,
    "code_execution_result": _read_code_result,
    "guardContent": _read_guarded_words,
    "citationsContent": _read_cited_words,
    "tool_call_result": _read_haystack_result,
}
"""Readers of the part types that only one SDK has, by type."""
