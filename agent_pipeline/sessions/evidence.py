"""What shows that more happened than was understood: fields of calls and results, reasons why a text ended, calls told as words."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from agent_pipeline.sessions.json_text import object_in

_NAMES = frozenset(
    {
        *("call_id", "callId", "callID", "tool_call_id", "toolCallId", "tool_use_id", "toolUseId", "tool_call_ids"),
        *("tool_call", "toolCall", "tool_calls", "toolCalls", "tool_use", "toolUse", "tool_uses", "toolUses"),
        *("function_call", "functionCall", "function_calls", "functionCalls", "functionResponse", "function_response"),
        *("tool_name", "toolName", "tool_input", "toolInput", "tool_args", "toolArgs", "tool_output", "toolOutput"),
        *("tool_result", "toolResult", "tool_results", "toolResults", "tool_response", "toolResponse", "tool_responses"),
        *("tool_invocations", "toolInvocations", "tool_invocation", "toolInvocation", "server_tool_use"),
        *("arguments", "args", "kwargs", "partial_json", "function", "tool", "input", "output", "parameters"),
    }
)
"""The names of fields that calls and results have in the SDKs that we know, and in most that we do not."""

_COMPLETE = frozenset(
    {
        *("stop", "end_turn", "stop_sequence", "eos", "eos_token", "stop_token", "end", "done", "complete", "completed", "success"),
        *("tool_calls", "tool_call", "tool_use", "function_call", "function_calls", "finished", "finish", "normal", "succeeded", "ok"),
        *("end_of_turn", "end_of_message", "eot", "eom"),
        *("unknown", "unspecified", "endoftext", "tooluse", "endturn", "toolcalls", "stopsequence"),
    }
)
"""The reasons that do not say that a text was cut off. `unknown` is what the AI SDK writes if the model's service says nothing."""
_REASONS = ("finish_reason", "stop_reason", "finishReason", "stopReason", "done_reason", "finish")
_INSIDE = ("response_metadata", "generation_info", "generationInfo", "additional_kwargs")
_CUT_STATES = frozenset({"incomplete", "in_progress", "failed", "cancelled", "canceled", "interrupted", "aborted", "partial"})

_CALL_WORDS = re.compile(
    r"<tool_call>\s*[{<\[]|<function=[\w.-]+>|<invoke name=\"|\[TOOL_CALLS\]|<\|python_tag\|>|<\|tool_call|<｜tool▁call"
    r"|<function_calls>\s*<|functools\[\s*\{|Calling tools:\n\[\{'id': |<\|tool_calls_section_begin\|>"
)
"""How models write calls, where nobody made calls of the words."""
_ARGUMENT_NAMES = ("arguments", "parameters")


def shows_activity(value: Any, but: Iterable[str] = (), depth: int = 6) -> bool:
    """Whether a value has fields, at any depth, that show a call, its input or its result. `but` names fields to pass over."""
    if depth == 0:
        return False
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name in but:
                continue
            # A number called `input` or `output` counts tokens.
            if name in _NAMES and inner not in (None, "", [], {}) and not isinstance(inner, int | float):
                return True
            if isinstance(inner, Mapping | list) and shows_activity(inner, (), depth - 1):
                return True
        return False
    if isinstance(value, list):
        return any(shows_activity(inner, (), depth - 1) for inner in value if isinstance(inner, Mapping | list))
    return False


def is_cut(message: Mapping[str, Any]) -> bool:
    """Whether a record says that its text does not end where the agent wanted to end it: a token limit, a filter, the user, an error."""
    for record in (message, *(message[name] for name in _INSIDE if isinstance(message.get(name), Mapping))):
        for name in _REASONS:
            if _cuts(record.get(name)):
                return True
    return (
        message.get("status") in _CUT_STATES
        or bool(message.get("incomplete_details"))
        or any(message.get(name) is True for name in ("interrupted", "partial", "aborted", "truncated"))
    )


def rests_on_a_search(message: Mapping[str, Any]) -> bool:
    """Whether an answer's own record says that a hosted search found its facts, without what the search found.

    The fields are OpenAI's `annotations` of chat completions, Gemini's `groundingMetadata`, and Perplexity's `search_results`.
    """
    annotations = message.get("annotations")
    if isinstance(annotations, list) and any(isinstance(each, Mapping) and each.get("type") == "url_citation" for each in annotations):
        return True
    return any(bool(message.get(name)) for name in ("groundingMetadata", "grounding_metadata", "search_results"))


def has_call_words(text: str) -> bool:
    """Whether a text has the words of a call as models write them: `<tool_call>{...`, or the JSON of a call and nothing else."""
    if _CALL_WORDS.search(text) is not None:
        return True
    if not (text.lstrip().startswith("{") and '"name"' in text):
        return False
    told = object_in(text)
    return told is not None and isinstance(told.get("name"), str) and any(isinstance(told.get(name), dict) for name in _ARGUMENT_NAMES)


def _cuts(reason: Any) -> bool:
    if isinstance(reason, Mapping):  # the AI SDK: {"unified": "length", "raw": "max_tokens"}
        reason = reason.get("unified") or reason.get("type") or reason.get("reason")
    if isinstance(reason, list):
        return any(map(_cuts, reason))
    if isinstance(reason, int) and not isinstance(reason, bool):  # Gemini's numbers: 0 is unspecified, 1 is the end
        return reason not in (0, 1)
    if not isinstance(reason, str) or not reason.strip():
        return False
    name = reason.strip().lower().replace("-", "_").rpartition(".")[2].removeprefix("finish_reason_")
    if name in _COMPLETE:
        return False
    # LangChain adds up the reasons of a stream's pieces: "stopstop".
    return not any(name == complete * (len(name) // len(complete)) for complete in _COMPLETE)
