"""Recognizes one part of a message, in every dialect: a call, a result, words, a thought, a picture or a file.

`recognize_part` is the only function that decides what a part is. A part is understood, known to be harmless (`HARMLESS_PARTS`), or
`unread`, which is damage. Nothing is skipped without a name. Whole messages and items are read by `chat.py`, which hands their
parts to this module.
"""

from collections.abc import Callable
from typing import Any

from agent_pipeline.sessions.evidence import shows_activity
from agent_pipeline.sessions.items import INVALID, Item, mark_unread
from agent_pipeline.sessions.json_text import dump_json, parse_object, replace_surrogates
from agent_pipeline.sessions.part_fields import (
    OF_THOUGHTS,
    is_marked_failed,
    join_texts,
    pick_first,
    read_id,
    read_part_type,
    read_thought,
)
from agent_pipeline.sessions.result_values import is_encrypted, unpack_media, unwrap_json_part

TEXT_PARTS = {"text", "input_text", "output_text", "summary_text", "text-plain"}

HARMLESS_PARTS = {
    *("step-start", "step-finish", "start-step", "finish-step"),  # borders between steps
    *(
        "snapshot",
        "patch",
        "agent",
        "retry",
    ),  # opencode: hashes of files, the name of a mentioned agent, a failed request
    *("cachePoint", "cache-point", "cache", "cache_control"),  # marks for the cache of prompts
    *(
        "source-url",
        "source-document",
        "url_citation",
        "file_citation",
        "non_standard_annotation",
    ),  # where words come from
    *(
        "systemNotification",
    ),  # Goose: a line for the person at the screen, which the model does not see
    *("reference",),  # Mistral: the numbers of the sources of the words before it
}
"""Parts that say nothing that a person, a model or a tool said. Everything that is not here and not understood is damage."""

_STEP_BORDERS = {"step-start", "step-finish", "start-step", "finish-step"}
_THOUGHTS = {
    "thinking",
    "redacted_thinking",
    "redactedThinking",
    "reasoning",
    "reasoningContent",
    "redacted-reasoning",
}
_CALLS = {
    *(
        "tool_use",
        "tool_call",
        "toolCall",
        "server_tool_use",
        "mcp_tool_use",
        "tool-call",
        "function_call",
    ),
    *("server_tool_call", "builtin-tool-call", "invalid_tool_call"),
}
_RESULTS = {
    *(
        "tool_result",
        "tool_call_response",
        "toolResult",
        "tool-result",
        "tool-error",
        "function_call_output",
    ),
    *("server_tool_result", "server_tool_call_response", "builtin-tool-return"),
}
_WRAPPED = {
    **dict.fromkeys(("functionCall", "function_call"), "tool_call"),
    **dict.fromkeys(("functionResponse", "function_response", "toolResult"), "tool_result"),
    "toolUse": "tool_use",
    **dict.fromkeys(("inlineData", "inline_data", "fileData", "file_data"), "file"),
    **dict.fromkeys(("image", "document", "video", "audio"), ""),
    "executableCode": "executable_code",
    "executable_code": "executable_code",
    "codeExecutionResult": "code_execution_result",
    "code_execution_result": "code_execution_result",
    **{
        name: name
        for name in (
            "reasoningContent",
            "cachePoint",
            "guardContent",
            "citationsContent",
            "tool_call_result",
        )
    },
    "tool_call": "tool_call",
}
"""Parts of Gemini, Bedrock and Haystack say what they are by the field that they have. An empty type is the field's own name."""

_MEDIA = {
    **dict.fromkeys(
        (
            "image",
            "image_url",
            "input_image",
            "output_image",
            "image-url",
            "computer_screenshot",
            "image_file",
        ),
        "image",
    ),
    **dict.fromkeys(
        ("file", "input_file", "output_file", "document", "document-url", "file_url", "file_id"),
        "file",
    ),
    **dict.fromkeys(
        ("container_upload", "uri", "blob", "binary", "uploaded-file", "resource", "media"), "file"
    ),
    **dict.fromkeys(("audio", "input_audio", "output_audio", "audio-url", "audio_url"), "audio"),
    **dict.fromkeys(("video", "input_video", "output_video", "video-url", "video_url"), "video"),
}
"""Parts that are a picture or a file, and the word for their mark in the text."""

_MEDIA_TYPES = ("mediaType", "mimeType", "media_type", "mime_type", "mime", "modality")
_CALL_IDS = ("call_id", "toolCallId", "tool_call_id", "toolUseId", "callID", "id")
_RESULT_IDS = ("tool_use_id", "tool_call_id", "toolUseId", "toolCallId", "call_id", "callID", "id")
_ARGUMENTS = ("arguments", "args", "input", "parameters", "tool_kwargs")
_OUTPUT = ("content", "response", "result", "output", "error")
_TEXT_FIELDS = {
    *(
        "type",
        "text",
        "content",
        "annotations",
        "logprobs",
        "cache_control",
        "citations",
        "index",
        "id",
        "state",
        "part_kind",
    ),
    *(
        "block_type",
        "kind",
        "parsed",
        "phase",
        "thought",
        "thoughtSignature",
        "thought_signature",
        "providerMetadata",
    ),
    *(
        "providerOptions",
        "provider_details",
        "provider_name",
        "metadata",
        "extras",
        "time",
        "synthetic",
        "timestamp",
    ),
}
"""The fields of a text that say nothing more than its words."""


def recognize_part(part: Any) -> tuple[Item, ...]:
    """Return what one part of a message says, as items.

    Besides the kinds that a history has, a part can be `words` (a piece of a message's text), `media` (a piece of text that is the
    mark of a picture or a file), `border` (a new step begins) or `harmless`. A part that holds a call and its result gives both.
    """
    if isinstance(part, str):
        return (Item("words", part),)
    if not isinstance(part, dict):
        return (mark_unread("part"),)
    part = _unwrapped(part)
    kind = read_part_type(part)
    if kind in TEXT_PARTS:
        return _words(part, kind)
    if reader := _READERS.get(kind):
        return reader(part)
    if kind in _CALLS:
        return _call_part(part)
    if kind in _RESULTS or kind.endswith("_tool_result"):
        return (read_result_block(part),)
    if kind in _THOUGHTS:
        return (Item("reasoning", read_thought(part)),)
    if kind in _MEDIA:
        return _media(part, kind)
    if kind in HARMLESS_PARTS and not (
        kind not in _STEP_BORDERS and (shows_activity(part) or _has_words(part))
    ):
        return (Item("border" if kind in _STEP_BORDERS else "harmless", name=kind),)
    if kind.startswith("data-") and not shows_activity(
        part
    ):  # the AI SDK: what an application shows, and the model does not see
        return (Item("harmless", name="data"),)
    if kind.startswith("tool-") and "toolCallId" in part:
        return read_ui_tool(part | {"toolName": kind.removeprefix("tool-")})
    if not kind and isinstance(part.get("text"), str) and not shows_activity(part, but=("text",)):
        return (Item("words", part["text"]),)
    return (mark_unread(f"part {replace_surrogates(kind)}" if kind else "part"),)


def read_text(content: Any, seam: str = "\n") -> tuple[str, tuple[str, ...]]:
    """Return the text of a content, a string or a list of parts, and the types of its parts that are no text.

    Pictures and files are marks in the text. `seam` stands between two texts if neither has white space there: parts are
    paragraphs, as clients show them.
    """
    if isinstance(content, str):
        return content, ()
    parts = content if isinstance(content, list) else [] if content is None else [content]
    items = [item for part in parts for item in recognize_part(part)]
    others = tuple(item.name or item.kind for item in items if item.kind != "words")
    return join_texts(
        (item.text for item in items if item.kind in ("words", "media")), seam
    ), others


def read_call(call: Any, trained: bool = True, cut: bool = False) -> Item:
    """Return a call in any spelling as an item; an invalid item if it has no name. A call may be the JSON text of one (verifiers)."""
    if isinstance(call, str):
        call = parse_object(call)
    if not isinstance(call, dict):
        return INVALID
    function = call.get("function")
    if isinstance(call.get("custom"), dict):  # OpenAI's tools that take a text and not JSON
        function = {
            "name": call["custom"].get("name"),
            "arguments": {"input": call["custom"].get("input")},
        }
    inner = function if isinstance(function, dict) else call
    name = (
        function
        if isinstance(function, str)
        else inner.get("name") or inner.get("toolName") or inner.get("tool_name")
    )
    arguments = pick_first(inner, _ARGUMENTS)
    if arguments is None:
        arguments = pick_first(call, _ARGUMENTS)
    if arguments in (None, "", {}) and isinstance(
        call.get("partial_json"), str
    ):  # a stream's pieces of the arguments, joined
        arguments = call["partial_json"]
    text = (
        ""
        if arguments is None
        else arguments
        if isinstance(arguments, str)
        else dump_json(arguments)
    )
    if not isinstance(name, str) or not name.strip() or text is None:
        return INVALID
    return Item(
        "function_call",
        text,
        name=name,
        call_id=read_id(call, *_CALL_IDS),
        trained=trained and not cut,
        cut=cut,
    )


def read_result(call_id: Any, output: Any, failed: bool = False) -> Item:
    """Return a result as an item. A text or a list of parts is read as in a message; any other value of the tool is kept as JSON.

    If one part of a list shows a call and is not understood, the result is invalid.
    """
    pieces: list[Item] = []
    output = unpack_media(output)
    if isinstance(output, list) and output:
        output = [unwrap_json_part(part) for part in output]
        others = [part for part in output if not (isinstance(part, str) or _is_plain(part))]
        if not others:
            pieces = [item for part in output for item in recognize_part(part)]
        elif len(others) < len(output) and shows_activity(
            others
        ):  # a list of parts, and not a value: one of them is unknown
            return INVALID
    if output is None or isinstance(output, str):
        return Item("function_call_output", output or "", call_id=call_id, failed=failed)
    if pieces and all(item.kind in ("words", "media") for item in pieces):
        text = join_texts((item.text for item in pieces), "\n")
        media = tuple(item.name for item in pieces if item.kind == "media")
        return Item("function_call_output", text, call_id=call_id, media=media, failed=failed)
    value = dump_json(output)
    return (
        INVALID
        if value is None
        else Item("function_call_output", value, call_id=call_id, failed=failed)
    )


def read_result_block(block: dict[str, Any]) -> Item:
    """Return the result in a block that names its call."""
    output, failed = pick_first(block, _OUTPUT), is_marked_failed(block)
    if isinstance(output, dict) and (
        output.keys() == {"type", "value"} or output.get("type") == "execution-denied"
    ):  # the AI SDK
        failed = failed or is_marked_failed(output)
        output = output.get("value", output.get("reason"))
    if is_encrypted(output):
        return mark_unread("result that only the service can read")
    return read_result(
        read_id(block, *_RESULT_IDS), "" if output == [] and "content" in block else output, failed
    )


def read_ui_tool(part: dict[str, Any]) -> tuple[Item, ...]:
    """Return the call and the result in a tool part of the AI SDK's UI messages, and in a tool invocation of its version 4."""
    state = part.get("state")
    call_id = read_id(part, "toolCallId")
    given = pick_first(part, ("input", "args", "rawInput"))
    call = read_call({"name": part.get("toolName"), "arguments": given, "call_id": call_id})
    if state in ("output-available", "result"):
        return call, read_result(call_id, pick_first(part, ("output", "result")))
    if state == "output-error":
        return call, read_result(call_id, part.get("errorText"), failed=True)
    if state == "output-denied":
        reason = part["approval"].get("reason") if isinstance(part.get("approval"), dict) else None
        return call, read_result(call_id, reason, failed=True)
    if state in ("input-available", "call", "approval-requested", "approval-responded"):
        return (call,)
    return (
        mark_unread(
            f"tool in the state {state}" if isinstance(state, str) else "tool without a state"
        ),
    )


def _unwrapped(part: dict[str, Any]) -> dict[str, Any]:
    if "type" in part or _WRAPPED.keys().isdisjoint(part):
        return part
    names = [name for name in _WRAPPED if part.get(name) is not None]
    if len(names) != 1 or not isinstance(part[names[0]], dict):
        return part
    (name,) = names
    others = {
        other: value for other, value in part.items() if other != name and other not in OF_THOUGHTS
    }
    if shows_activity(others):
        return {"type": f"{name} beside {' '.join(sorted(map(str, others)))}"}
    return part[name] | {"type": _WRAPPED[name] or name}


def _is_plain(part: Any) -> bool:
    """Whether a part of a tool's result is a text or a medium: by its type, and not only by the look of its fields."""
    part = _unwrapped(part) if isinstance(part, dict) else part
    kind = read_part_type(part)
    return kind in TEXT_PARTS or kind in _MEDIA


def _has_words(part: dict[str, Any]) -> bool:
    return any(
        isinstance(part.get(name), str) and part[name].strip() for name in ("text", "content")
    )


def _words(part: dict[str, Any], kind: str) -> tuple[Item, ...]:
    words = (
        part["text"] if isinstance(part.get("text"), str) else part.get("content")
    )  # AgentDojo and OpenTelemetry
    if isinstance(part.get("text"), dict):  # OpenAI's threads
        words = part["text"].get("value")
    if not isinstance(words, str):
        return (mark_unread(f"part {kind}"),)
    if part.get("thought") is True:
        return (Item("reasoning", words if words.strip() else ""),)
    others = {name: value for name, value in part.items() if name not in _TEXT_FIELDS}
    said = Item("words", words)
    return (
        (said, mark_unread(f"part {kind} with {' '.join(sorted(others))}"))
        if others and shows_activity(others)
        else (said,)
    )


def _refusal(part: dict[str, Any]) -> tuple[Item, ...]:
    words = part.get("refusal") if part.get("refusal") is not None else part.get("text")
    return (Item("words", words) if isinstance(words, str) else mark_unread("part refusal"),)


def _call_part(part: dict[str, Any]) -> tuple[Item, ...]:
    """A call; with its result if the part has one (Inspect's hosted tools)."""
    if isinstance(part.get("approval"), dict):
        return (mark_unread("call that waits for an approval"),)
    call = read_call(part)
    if part.get("type") == "tool_use" and "result" in part:
        return call, read_result(call.call_id, part["result"], bool(part.get("error")))
    return (call,)


def _media(part: dict[str, Any], kind: str) -> tuple[Item, ...]:
    """The words of a document or a sound if the record has them, otherwise the mark of what is missing."""
    source: Any = part.get("source") if isinstance(part.get("source"), dict) else {}
    if kind == "document" and source.get("type") == "text" and isinstance(source.get("data"), str):
        return (Item("words", source["data"]),)
    if (
        kind == "document"
        and isinstance(part.get("document"), dict)
        and isinstance(part["document"].get("data"), str)
    ):  # Cohere
        return (Item("words", part["document"]["data"]),)
    if (
        kind == "resource"
        and isinstance(part.get("resource"), dict)
        and isinstance(part["resource"].get("text"), str)
    ):
        return (Item("words", part["resource"]["text"]),)
    if (
        _MEDIA[kind] == "audio"
        and isinstance(part.get("transcript"), str)
        and part["transcript"].strip()
    ):
        return (Item("words", part["transcript"]),)
    described = next((part[name] for name in _MEDIA_TYPES if isinstance(part.get(name), str)), "")
    general = described.partition("/")[0]
    word = (
        general
        if _MEDIA[kind] == "file" and general in ("image", "audio", "video")
        else _MEDIA[kind]
    )
    return (Item("media", f"[{word}]", name=word),)


def _open_code(part: dict[str, Any]) -> tuple[Item, ...]:
    """A call and a result in a part of opencode."""
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


def _goose_request(part: dict[str, Any]) -> tuple[Item, ...]:
    call = part.get("toolCall")
    value = (
        call.get("value") if isinstance(call, dict) and call.get("status") == "success" else None
    )
    return (
        read_call(value | {"call_id": part.get("id")})
        if isinstance(value, dict)
        else mark_unread("part toolRequest"),
    )


def _goose_response(part: dict[str, Any]) -> tuple[Item, ...]:
    result = part.get("toolResult")
    if not isinstance(result, dict) or result.get("status") not in ("success", "error"):
        return (mark_unread("part toolResponse"),)
    value = pick_first(result, ("value", "error"))
    failed = result["status"] == "error" or (
        isinstance(value, dict) and value.get("isError") is True
    )
    if isinstance(value, dict) and isinstance(value.get("content"), list):
        value = value["content"]
    return (read_result(read_id(part, "id"), value, failed),)


def _tool_invocation(part: dict[str, Any]) -> tuple[Item, ...]:
    invocation = part.get("toolInvocation")
    return (
        read_ui_tool(invocation)
        if isinstance(invocation, dict)
        else (mark_unread("part tool-invocation"),)
    )


def _guarded(part: dict[str, Any]) -> tuple[Item, ...]:
    """Words that Bedrock's guardrail looked at."""
    words = part["text"].get("text") if isinstance(part.get("text"), dict) else None
    return (Item("words", words) if isinstance(words, str) else mark_unread("part guardContent"),)


def _cited(part: dict[str, Any]) -> tuple[Item, ...]:
    """Words with their sources, from Bedrock."""
    content = part.get("content")
    return (
        tuple(item for inner in content for item in recognize_part(inner))
        if isinstance(content, list)
        else (mark_unread("part citationsContent"),)
    )


def _haystack_result(part: dict[str, Any]) -> tuple[Item, ...]:
    call_id = read_id(part["origin"], "id") if isinstance(part.get("origin"), dict) else ""
    return (read_result(call_id, part.get("result"), part.get("error") is True),)


def _code_result(part: dict[str, Any]) -> tuple[Item, ...]:
    return (
        read_result(read_id(part, "id"), part.get("output"), part.get("outcome") != "OUTCOME_OK"),
    )


def _code(part: dict[str, Any]) -> tuple[Item, ...]:
    arguments = {name: part[name] for name in ("language", "code") if part.get(name) is not None}
    return (read_call({"name": "code_execution", "arguments": arguments, "id": part.get("id")}),)


_READERS: dict[str, Callable[[dict[str, Any]], tuple[Item, ...]]] = {
    "refusal": _refusal,
    "tool": _open_code,
    "toolRequest": _goose_request,
    "toolResponse": _goose_response,
    "tool-invocation": _tool_invocation,
    "dynamic-tool": read_ui_tool,
    "executable_code": _code,
    "code_execution_result": _code_result,
    "guardContent": _guarded,
    "citationsContent": _cited,
    "tool_call_result": _haystack_result,
}
"""The parts of one SDK alone, by type."""
