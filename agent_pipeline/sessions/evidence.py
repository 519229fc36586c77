"""Detection of content in a record that the reader did not understand.

The module recognizes three signs: fields of calls and results, a reason why a text was cut off, and
a search that an answer relies on. Reading the fields themselves belongs to `parts` and `chat`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from agent_pipeline.sessions.message_fields import (
    ACTIVITY_FIELDS,
    CUT_FLAGS,
    FINDING_FIELDS,
    PART_LIST_FIELDS,
    SEARCH_FIELDS,
    STOP_REASON_FIELDS,
)

_COMPLETE_REASONS = frozenset(
    {
        *("stop", "end_turn", "stop_sequence", "eos", "eos_token", "stop_token", "end", "done"),
        *("complete", "completed", "success", "finished", "finish", "normal", "succeeded", "ok"),
        *("tool_calls", "tool_call", "tool_use", "function_call", "function_calls"),
        *("end_of_turn", "end_of_message", "eot", "eom"),
        *("unknown", "unspecified", "endoftext", "tooluse", "endturn", "toolcalls"),
        "stopsequence",
    }
)
"""Stop reasons which mean that a text was not cut off.

The AI SDK writes `unknown` if the model's service gives no reason.
"""

_NATIVE_REASON_FIELDS = ("native_finish_reason", "nativeFinishReason")
"""Fields in which gateways repeat the stop reason of the model provider.

These fields count only if no other field has a reason.
"""

_METADATA_FIELDS = (
    "response_metadata",
    "generation_info",
    "generationInfo",
    "additional_kwargs",
    "metadata",
    "meta",
    "details",
    "llm_output",
)
"""Fields in which libraries keep information about a message or a response."""

_CUT_STATES = frozenset(
    {
        *("incomplete", "in_progress", "failed", "cancelled", "canceled"),
        *("interrupted", "aborted", "partial"),
    }
)

_SEARCH_CITATIONS = {"url_citation", "web_search_result_location"}
_FILE_CITATIONS = {"file_citation", "container_file_citation", "file_path"}
_SOURCE_PART_TYPES = {"source-url", "source-document", "source"}

_MAX_DEPTH = 6
"""Maximum depth at which a value is searched for signs of a call."""


def shows_activity(value: object, but: Iterable[str] = (), depth: int = _MAX_DEPTH) -> bool:
    """Return whether a value contains fields of a call, its input or its result at any depth.

    Args:
        value: Any JSON value.
        but: Names of outer fields that are ignored.
        depth: Maximum depth of the search.
    """
    if depth == 0:
        return False
    if isinstance(value, list):
        return any(
            shows_activity(inner, (), depth - 1)
            for inner in value
            if isinstance(inner, Mapping | list)
        )
    if not isinstance(value, Mapping):
        return False
    for name, inner in value.items():
        if name in but:
            continue
        if name in ACTIVITY_FIELDS and _is_filled(inner):
            return True
        if isinstance(inner, Mapping | list) and shows_activity(inner, (), depth - 1):
            return True
    return False


def _is_filled(value: object) -> bool:
    """Return whether a field of a tool call has content.

    A number does not count, because a number in `input` or `output` is a token count.
    """
    return value not in (None, "", [], {}) and not isinstance(value, int | float)


def find_stop_reason(record: Mapping[str, Any]) -> Any:
    """Return the reason why a model stopped, as stated by its message, a choice or a response.

    If there are several reasons, the first reason that means "cut off" is returned. The result is
    None if there is no reason.
    """
    inner_records = [
        record[name] for name in _METADATA_FIELDS if isinstance(record.get(name), Mapping)
    ]
    records = [record, *inner_records]
    # Only one reason per record counts: next to `finish_reason`, vLLM's `stop_reason` is the word
    # or token at which the model stopped.
    reasons = []
    for inner in records:
        reason = next((inner[name] for name in STOP_REASON_FIELDS if inner.get(name)), None)
        if reason is not None:
            reasons.append(reason)
    if isinstance(record.get("finish"), str):
        reasons.append(record["finish"])
    if not reasons:
        reasons = [
            inner[name] for inner in records for name in _NATIVE_REASON_FIELDS if inner.get(name)
        ]
    for reason in reasons:
        if _means_cut(reason):
            return reason
    return reasons[0] if reasons else None


def is_cut(message: Mapping[str, object]) -> bool:
    """Return whether a record reports that its text was cut off.

    The cause may be a token limit, a filter, the user or an error.
    """
    return (
        _means_cut(find_stop_reason(message))
        or message.get("status") in _CUT_STATES
        or bool(message.get("incomplete_details"))
        or any(message.get(name) is True for name in CUT_FLAGS)
        or message.get("done") is False
        or any(_is_streaming(part) for part in _list_parts(message))
    )


def _list_parts(message: Mapping[str, Any]) -> list[object]:
    """Return the list of parts of a message."""
    parts: list[Any] = []
    for name in PART_LIST_FIELDS:
        if isinstance(message.get(name), list):
            parts += message[name]
    return parts


def rests_on_a_search(message: Mapping[str, Any], follows_a_result: bool = False) -> bool:
    """Return whether an answer relies on search results that the conversation does not contain.

    The signs are OpenAI's and Anthropic's citations of web pages and files, Gemini's grounding, and
    the sources that Perplexity, xAI, Cohere and Azure's searches report.

    Args:
        message: The assistant's message.
        follows_a_result: Whether a tool result precedes the message. The sources of the answer may
            then be in that result.
    """
    additional = message.get("additional_kwargs")
    if isinstance(additional, Mapping) and additional.get("tool_outputs"):
        return True  # LangChain: the outputs of OpenAI's hosted tools
    records = [message]
    for name in ("response_metadata", "additional_kwargs"):
        if isinstance(message.get(name), Mapping):
            records.append(message[name])
    if any(record.get(name) for record in records for name in SEARCH_FIELDS):
        return True
    parts = [part for part in _list_parts(message) if isinstance(part, Mapping)]
    citations = {kind for record in (message, *parts) for kind in _list_citations(record)}
    if not citations.isdisjoint(_SEARCH_CITATIONS):
        return True
    if follows_a_result:
        return False
    azure_context = message.get("context")
    if isinstance(azure_context, Mapping) and azure_context.get("citations"):
        return True
    has_source_part = any(part.get("type") in _SOURCE_PART_TYPES for part in parts)
    if has_source_part and not shows_activity(parts):
        return True
    if not citations.isdisjoint(_FILE_CITATIONS):
        return True
    return any(record.get(name) for record in records for name in FINDING_FIELDS)


def _list_citations(record: Mapping[str, Any]) -> list[object]:
    """Return the kinds of citations in a message or a part."""
    holders = [record]
    if isinstance(record.get("text"), Mapping):  # OpenAI's threads have the citations in the text
        holders.append(record["text"])
    citations: list[Mapping[str, Any]] = []
    for holder in holders:
        for name in ("annotations", "citations"):
            if isinstance(holder.get(name), list):
                citations += [entry for entry in holder[name] if isinstance(entry, Mapping)]
    return [citation.get("type") for citation in citations]


def _is_streaming(part: object) -> bool:
    """Return whether a part was still being written when its message was stored.

    The AI SDK marks such parts.
    """
    return (
        isinstance(part, Mapping)
        and part.get("type") in ("text", "reasoning")
        and part.get("state") == "streaming"
    )


def _means_cut(reason: object) -> bool:
    """Return whether a stop reason means that the text was cut off."""
    if isinstance(reason, Mapping):  # the AI SDK: {"unified": "length", "raw": "max_tokens"}
        reason = reason.get("unified") or reason.get("type") or reason.get("reason")
    if isinstance(reason, list):
        return any(_means_cut(inner) for inner in reason)
    if isinstance(reason, int) and not isinstance(reason, bool):
        return reason not in (0, 1)  # Gemini's numbers: 0 is unspecified, 1 is the end
    if not isinstance(reason, str) or not reason.strip():
        return False
    plain = reason.strip().lower().replace("-", "_")
    name = plain.rpartition(".")[2].removeprefix("finish_reason_")
    if name in _COMPLETE_REASONS:
        return False
    # LangChain joins the reasons of a stream's pieces: "stopstop".
    return not any(
        name == complete * (len(name) // len(complete)) for complete in _COMPLETE_REASONS
    )
