"""Names of the fields that messages have in the supported SDKs.

Lists of field names that several modules need belong here. `chat` reads these fields, and
`evidence` searches them for signs of calls, cuts and searches. A list that only one module needs
stays in that module.
"""

CONTENT_FIELDS = ("parts", "blocks")
"""Fields that may hold a message's content instead of the field `content`.

OpenTelemetry and Gemini write `parts`; llama-index writes `blocks`.
"""

PART_LIST_FIELDS = ("content", "parts")
"""Fields in which a message may have a list of parts."""

STOP_REASON_FIELDS = (
    "finish_reason",
    "stop_reason",
    "finishReason",
    "stopReason",
    "done_reason",
)
"""Fields that hold the reason why a model stopped writing."""

CUT_FLAGS = (
    *("interrupted", "partial", "aborted", "unfinished"),
    *("truncated", "is_truncated", "completion_truncated"),
)
"""Flags that are true if a message, or the last message of a record, was cut off.

verifiers writes `is_truncated`.
"""

ATTACHMENT_FIELDS = (
    "images",
    "attachments",
    "experimental_attachments",
    "files",
    "file_ids",
    "videos",
    "audios",
)
"""Fields that list the pictures and files of a message."""

UNTRAINED_FLAGS = ("train", "training", "trainable", "loss")
"""Flags in datasets that are `false` if a message must not be used for training.

axolotl, LLaMA-Factory and ms-swift use these flags; OpenAI uses `weight: 0`.
"""

THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking", "reasoning_details")
"""Fields that hold the model's thoughts before a message. The first field that has a value counts.
"""

SEARCH_FIELDS = (
    "groundingMetadata",
    "grounding_metadata",
    "urlContextMetadata",
    "url_context_metadata",
)
"""Fields for web pages that Gemini found for an answer. The record keeps only their addresses."""

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
"""Fields for documents that a service or an application found for an answer.

Perplexity, xAI, Cohere, Open WebUI and LangChain write these fields. A document may also be the
result of a tool in the conversation.
"""

SOURCE_FIELDS = (*SEARCH_FIELDS, *FINDING_FIELDS)
"""Fields of a response that show that its answer relies on sources outside the conversation."""

PLAIN_FIELDS = {"role", "content", "type", "id", "name", "tool_call_id", "weight"}
"""Fields of a message that contains only text."""

UNTRAINED_WEIGHTS = (0, "0", "0.0")
"""Values of the field `weight` of a message that is not trained on. CSV files hold texts."""

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
"""Fields of a message that the readers use."""

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
"""Fields of a message that hold no content: names, times, counts, and copies of other fields."""

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
"""Fields of calls and results in the supported SDKs and in most other SDKs."""
