"""What shows that more happened than was understood: fields of calls and results, reasons why a text ended, what an answer rests on."""

from collections.abc import Iterable, Mapping
from typing import Any

_NAMES = frozenset(
    {
        *(
            "call_id",
            "callId",
            "callID",
            "tool_call_id",
            "toolCallId",
            "tool_use_id",
            "toolUseId",
            "tool_call_ids",
        ),
        *(
            "tool_call",
            "toolCall",
            "tool_calls",
            "toolCalls",
            "tool_use",
            "toolUse",
            "tool_uses",
            "toolUses",
        ),
        *(
            "function_call",
            "functionCall",
            "function_calls",
            "functionCalls",
            "functionResponse",
            "function_response",
        ),
        *(
            "tool_name",
            "toolName",
            "tool_input",
            "toolInput",
            "tool_args",
            "toolArgs",
            "tool_output",
            "toolOutput",
        ),
        *(
            "tool_result",
            "toolResult",
            "tool_results",
            "toolResults",
            "tool_response",
            "toolResponse",
            "tool_responses",
        ),
        *(
            "tool_invocations",
            "toolInvocations",
            "tool_invocation",
            "toolInvocation",
            "server_tool_use",
        ),
        *(
            "arguments",
            "args",
            "kwargs",
            "partial_json",
            "function",
            "tool",
            "input",
            "output",
            "parameters",
        ),
    }
)
"""The names of fields that calls and results have in the SDKs that we know, and in most that we do not."""

_COMPLETE = frozenset(
    {
        *(
            "stop",
            "end_turn",
            "stop_sequence",
            "eos",
            "eos_token",
            "stop_token",
            "end",
            "done",
            "complete",
            "completed",
            "success",
        ),
        *(
            "tool_calls",
            "tool_call",
            "tool_use",
            "function_call",
            "function_calls",
            "finished",
            "finish",
            "normal",
            "succeeded",
            "ok",
        ),
        *("end_of_turn", "end_of_message", "eot", "eom"),
        *("unknown", "unspecified", "endoftext", "tooluse", "endturn", "toolcalls", "stopsequence"),
    }
)
"""The reasons that do not say that a text was cut off. `unknown` is what the AI SDK writes if the model's service says nothing."""
_REASONS = ("finish_reason", "stop_reason", "finishReason", "stopReason", "done_reason")
_NATIVE = ("native_finish_reason", "nativeFinishReason")
"""Gateways repeat the reason in the words of the model's service. They count if nothing else says the reason."""
_INSIDE = (
    "response_metadata",
    "generation_info",
    "generationInfo",
    "additional_kwargs",
    "metadata",
    "meta",
    "details",
    "llm_output",
)
"""Where libraries keep what they say of a message or of a response."""
_PARTS = ("content", "parts")
_CUT_STATES = frozenset(
    {
        "incomplete",
        "in_progress",
        "failed",
        "cancelled",
        "canceled",
        "interrupted",
        "aborted",
        "partial",
    }
)

_SEARCHES = (
    "groundingMetadata",
    "grounding_metadata",
    "urlContextMetadata",
    "url_context_metadata",
)
"""What Gemini found for an answer on the web, of which its record keeps only the addresses."""
_FOUND = (
    *("search_results", "citations", "documents", "sources", "sourceDocuments", "source_documents"),
    *("statusHistory", "retrieved_context", "retrieved_contexts", "contexts"),
)
"""What a service or an application found for an answer: Perplexity, xAI, Cohere, Open WebUI, LangChain. It may be what a tool gave."""
SOURCE_FIELDS = (*_SEARCHES, *_FOUND)
"""The fields of a response that say what an answer rests on besides the conversation."""
_OF_SEARCHES = {"url_citation", "web_search_result_location"}
_OF_FILES = {"file_citation", "container_file_citation", "file_path"}
_SOURCE_PARTS = {"source-url", "source-document", "source"}


def shows_activity(value: Any, but: Iterable[str] = (), depth: int = 6) -> bool:
    """Whether a value has fields, at any depth, that show a call, its input or its result. `but` names fields to pass over."""
    if depth == 0:
        return False
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name in but:
                continue
            # A number called `input` or `output` counts tokens.
            if (
                name in _NAMES
                and inner not in (None, "", [], {})
                and not isinstance(inner, int | float)
            ):
                return True
            if isinstance(inner, Mapping | list) and shows_activity(inner, (), depth - 1):
                return True
        return False
    if isinstance(value, list):
        return any(
            shows_activity(inner, (), depth - 1)
            for inner in value
            if isinstance(inner, Mapping | list)
        )
    return False


def find_stop_reason(record: Mapping[str, Any]) -> Any:
    """Return why a model stopped, as its message, a choice or a response says it; `None` if none of them says it.

    Of several reasons, the first that says that the text was cut off is returned.
    """
    inside = (record[name] for name in _INSIDE if isinstance(record.get(name), Mapping))
    records = [record, *inside]
    # vLLM's `stop_reason` beside `finish_reason` is the word or the token at which it stopped.
    named = [
        reason
        for each in records
        if (reason := next(filter(None, map(each.get, _REASONS)), None)) is not None
    ]
    if isinstance(record.get("finish"), str):
        named.append(record["finish"])
    if not named:
        named = [each[name] for each in records for name in _NATIVE if each.get(name)]
    return next((reason for reason in named if _cuts(reason)), named[0] if named else None)


def is_cut(message: Mapping[str, Any]) -> bool:
    """Whether a record says that its text does not end where the agent wanted to end it: a token limit, a filter, the user, an error."""
    return (
        _cuts(find_stop_reason(message))
        or message.get("status") in _CUT_STATES
        or bool(message.get("incomplete_details"))
        or any(
            message.get(name) is True
            for name in ("interrupted", "partial", "aborted", "truncated", "unfinished")
        )
        or message.get("done") is False
        or any(
            _is_streaming(part)
            for name in _PARTS
            if isinstance(message.get(name), list)
            for part in message[name]
        )
    )


def rests_on_a_search(message: Mapping[str, Any], follows_a_result: bool = False) -> bool:
    """Whether an answer's own record says that something was found for it that the conversation does not hold.

    The fields are OpenAI's and Anthropic's citations of the web and of files, Gemini's grounding, and what Perplexity, xAI, Cohere and
    Azure's searches give.

    Args:
        message: The assistant's message.
        follows_a_result: Whether a tool's result stands before the message. Sources of an answer may be in it then.
    """
    more = message.get("additional_kwargs")
    if isinstance(more, Mapping) and more.get(
        "tool_outputs"
    ):  # LangChain: what OpenAI's hosted tools did
        return True
    inside = (
        message[name]
        for name in ("response_metadata", "additional_kwargs")
        if isinstance(message.get(name), Mapping)
    )
    records = [message, *inside]
    if any(each.get(name) for each in records for name in _SEARCHES):
        return True
    parts = [
        part
        for name in _PARTS
        if isinstance(message.get(name), list)
        for part in message[name]
        if isinstance(part, Mapping)
    ]
    kinds = {kind for each in (message, *parts) for kind in _citations_of(each)}
    if not kinds.isdisjoint(_OF_SEARCHES):
        return True
    if follows_a_result:
        return False
    context = message.get("context")
    is_azures = isinstance(context, Mapping) and bool(context.get("citations"))
    is_sourced = any(
        part.get("type") in _SOURCE_PARTS and not shows_activity(parts) for part in parts
    )
    found = (each.get(name) for each in records for name in _FOUND)
    return (
        is_azures
        or is_sourced
        or not kinds.isdisjoint(_OF_FILES)
        or any(bool(each) for each in found)
    )


def _citations_of(record: Mapping[str, Any]) -> Iterable[Any]:
    """The kinds of citations in a message or a part."""
    text = record.get("text")
    for holder in (
        record,
        text if isinstance(text, Mapping) else {},
    ):  # OpenAI's threads have them in the text
        for name in ("annotations", "citations"):
            listed = holder.get(name)
            yield from (
                (each.get("type") for each in listed if isinstance(each, Mapping))
                if isinstance(listed, list)
                else ()
            )


def _is_streaming(part: Any) -> bool:
    """Whether a part was still being written when its message was stored (the AI SDK)."""
    return (
        isinstance(part, Mapping)
        and part.get("type") in ("text", "reasoning")
        and part.get("state") == "streaming"
    )


def _cuts(reason: Any) -> bool:
    if isinstance(reason, Mapping):  # the AI SDK: {"unified": "length", "raw": "max_tokens"}
        reason = reason.get("unified") or reason.get("type") or reason.get("reason")
    if isinstance(reason, list):
        return any(map(_cuts, reason))
    if isinstance(reason, int) and not isinstance(
        reason, bool
    ):  # Gemini's numbers: 0 is unspecified, 1 is the end
        return reason not in (0, 1)
    if not isinstance(reason, str) or not reason.strip():
        return False
    name = (
        reason.strip().lower().replace("-", "_").rpartition(".")[2].removeprefix("finish_reason_")
    )
    if name in _COMPLETE:
        return False
    # LangChain adds up the reasons of a stream's pieces: "stopstop".
    return not any(name == complete * (len(name) // len(complete)) for complete in _COMPLETE)
