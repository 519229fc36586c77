"""The names of the fields that messages have in the SDKs that the readers know.

Lists of field names that more than one module needs belong here. `chat` reads these fields, and
`evidence` looks for signs of calls, cuts and searches in them. A list that only one module needs
stays in that module.
"""

CONTENT_FIELDS = ("parts", "blocks")
"""A message's content, if its name is not `content`.

OpenTelemetry and Gemini write `parts`; llama-index writes `blocks`.
"""

PART_LIST_FIELDS = ("content", "parts")
"""The fields in which a message may have a list of parts."""

STOP_REASON_FIELDS = (
    "finish_reason",
    "stop_reason",
    "finishReason",
    "stopReason",
    "done_reason",
)
"""Why a model stopped writing."""

CUT_FLAGS = ("interrupted", "partial", "aborted", "truncated", "unfinished")
"""Flags that are true if a message was cut off."""

ATTACHMENT_FIELDS = (
    "images",
    "attachments",
    "experimental_attachments",
    "files",
    "file_ids",
    "videos",
    "audios",
)
"""Lists of the pictures and files of a message."""

UNTRAINED_FLAGS = ("train", "training", "trainable", "loss")
"""Flags of datasets that are `false` if a message is not trained on.

axolotl, LLaMA-Factory and ms-swift use these flags; OpenAI uses `weight: 0`.
"""

THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking", "reasoning_details")
"""What the model thought before a message; the first field that is set counts."""

SEARCH_FIELDS = (
    "groundingMetadata",
    "grounding_metadata",
    "urlContextMetadata",
    "url_context_metadata",
)
"""What Gemini found on the web for an answer. Its record keeps only the addresses."""

FINDING_FIELDS = (
    "search_results",
    "citations",
    "documents",
    "sources",
    "sourceDocuments",
    "source_documents",
    "statusHistory",
    "retrieved_context",
    "retrieved_contexts",
    "contexts",
)
"""What a service or an application found for an answer.

Perplexity, xAI, Cohere, Open WebUI and LangChain write these fields. A finding may also be the
result of a tool in the conversation.
"""

SOURCE_FIELDS = (*SEARCH_FIELDS, *FINDING_FIELDS)
"""The fields of a response with which an answer rests on more than the conversation."""

PLAIN_FIELDS = {"role", "content", "type", "id", "name", "tool_call_id", "weight"}
"""The fields of a message that holds nothing besides its words."""

UNDERSTOOD_FIELDS = {
    *PLAIN_FIELDS,
    *CONTENT_FIELDS,
    *THOUGHT_FIELDS,
    *STOP_REASON_FIELDS,
    *CUT_FLAGS,
    *ATTACHMENT_FIELDS,
    *UNTRAINED_FLAGS,
    *("text", "refusal", "audio", "tool_plan"),
    *("tool_calls", "function_call", "toolInvocations", "invalid_tool_calls"),
    *("additional_kwargs", "kind", "instructions", "source"),
    *("error", "is_error", "isError", "status", "outcome"),
    *("toolCallId", "tool_call_ids", "call_id", "tool_responses"),
    *("finish", "incomplete_details"),
}
"""The fields of a message that a reader takes into account."""

HARMLESS_FIELDS = {
    *("timestamp", "created_at", "createdAt", "created", "updated_at", "time", "date"),
    *("timestamp_ms", "turn_idx", "tick", "index"),
    *("uuid", "parent_id", "thread_id", "run_id", "vendor_id", "revisionId"),
    *("metadata", "response_metadata", "meta", "details", "vendor_details", "generation_info"),
    *("usage", "usage_metadata", "usageMetadata", "usageStats", "token_usage", "tokens", "cost"),
    *("model", "model_name", "provider", "api", "system_fingerprint", "container"),
    *("provider_details", "provider_name", "provider_url", "provider_response_id"),
    *("providerOptions", "providerMetadata", "experimental_providerMetadata"),
    *("annotations", "logprobs", "example", "lc", "lc_attributes", "lc_kwargs"),
    *("tool_call_chunks", "tool_call_functions", "toolName", "tool_name", "artifact"),
    *("cache_control", "context_management", "stop_sequence", "raw_data"),
    *("citations", "sources", "search_results", "documents", "done", "phase"),
    *("internal", "agent", "agentName", "channel", "recipient"),
}
"""The fields of a message that nobody said: names, times, counts, and copies of other fields."""

ACTIVITY_FIELDS = frozenset(
    {
        *("call_id", "callId", "callID", "tool_call_id", "toolCallId", "tool_call_ids"),
        *("tool_use_id", "toolUseId", "tool_call", "toolCall", "tool_calls", "toolCalls"),
        *("tool_use", "toolUse", "tool_uses", "toolUses", "server_tool_use"),
        *("function_call", "functionCall", "function_calls", "functionCalls"),
        *("functionResponse", "function_response", "tool_name", "toolName"),
        *("tool_input", "toolInput", "tool_args", "toolArgs", "tool_output", "toolOutput"),
        *("tool_result", "toolResult", "tool_results", "toolResults"),
        *("tool_response", "toolResponse", "tool_responses"),
        *("tool_invocation", "toolInvocation", "tool_invocations", "toolInvocations"),
        *("arguments", "args", "kwargs", "partial_json", "function", "tool"),
        *("input", "output", "parameters"),
    }
)
"""The fields that calls and results have in the SDKs that we know, and in most others."""
