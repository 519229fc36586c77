"""Attributes of spans in the dialects of OpenTelemetry.

The dialects are the GenAI conventions (`gen_ai.input.messages`, …), OpenInference
(`llm.input_messages.<i>.message.role`, …) and the AI SDK's own attributes (`ai.prompt.messages`,
…). A span may use several dialects.
"""

from agent_pipeline.sessions.items import mark_cut_text, mark_unread
from agent_pipeline.sources.formats.cut_texts import is_cut_json
from agent_pipeline.sources.formats.fields import (
    Record,
    decoded,
    decoded_object,
    decoded_text,
    elements,
    first_of,
    number,
    section,
    text,
)
from agent_pipeline.sources.formats.model_calls import (
    first_choice,
    messages_of,
    request_of,
    with_reason,
)
from agent_pipeline.sources.platforms.attributes import (
    OF_ADK,
    OF_GENAI,
    OF_OPENINFERENCE,
    has,
    tree,
)
from agent_pipeline.sources.platforms.span_source import Score
from agent_pipeline.sources.platforms.spans import KINDS, MISSING_MESSAGE, Span

_USAGE = "gen_ai.usage."
_FINISH_REASONS = (
    "gen_ai.response.finish_reasons",
    "gen_ai.response.finish_reason",
    "llm.finish_reason",
    "llm.response.finish_reason",
    "llm.response.stop_reason",
    "ai.response.finishReason",
    "gen_ai.completion.0.finish_reason",
)
_CHOICE_COUNTS = ("n", "candidate_count", "candidateCount")
_EVALUATIONS = {
    "gen_ai.evaluation.name": ("gen_ai.evaluation.score.value", "gen_ai.evaluation.score.label"),
    "evaluation.name": ("evaluation.score", "evaluation.label"),
}


def fill_in(span: Span, attributes: Record, kind: object = None) -> None:
    """Fill in the fields of a span from its attributes in any dialect.

    `kind` is OpenInference's kind, if the record states it outside of the attributes.
    """
    if is_openinference(attributes, kind):
        _openinference_span(span, tree(attributes), kind)
    if has(attributes, OF_GENAI):
        _genai_span(span, attributes)
    if "ai.operationId" in attributes:
        _ai_sdk_span(span, attributes)
    if has(attributes, OF_ADK):
        _adk_span(span, attributes)
    if span.kind == "model":
        span.answered = with_reason(span.answered, finish_reason(attributes))


def finish_reason(attributes: Record) -> str | None:
    """Return the reason why a span's model stopped, in any dialect.

    If there are several choices, the first choice counts.
    """
    reason = decoded(first_of(attributes, *_FINISH_REASONS))
    reason = reason[0] if isinstance(reason, list) and reason else reason
    return text(reason)


def is_openinference(attributes: Record, kind: object) -> bool:
    """Return whether a span uses OpenInference."""
    return bool(kind) or has(attributes, OF_OPENINFERENCE)


def evaluations_in(attributes: Record) -> list[Score]:
    """Return the evaluations in a span's attributes."""
    values = {
        name: first_of(attributes, *value_names) for name, value_names in _EVALUATIONS.items()
    }
    return [
        (text(attributes.get(name)) or "evaluation", value)
        for name, value in values.items()
        if value is not None
    ]


def _openinference_span(span: Span, attributes: Record, kind: object) -> None:
    """Fill in a span from a tree of OpenInference's attributes."""
    llm = section(attributes, "llm")
    named = (
        text(section(attributes, "openinference", "span").get("kind"))
        or text(kind)
        or ("LLM" if llm else "")
    )
    span.kind = KINDS.get(named.lower(), "other")
    prompt, answered = (
        section(attributes, "input").get("value"),
        section(attributes, "output").get("value"),
    )
    if span.kind == "tool":
        tool = section(attributes, "tool")
        span.name = text(tool.get("name")) or span.name
        span.call_id = text(section(attributes, "tool_call").get("id"))
        arguments = decoded(prompt if prompt is not None else tool.get("parameters"))
        span.arguments = (
            arguments["kwargs"]
            if isinstance(arguments, dict) and arguments.keys() == {"kwargs"}
            else arguments
        )
        span.output = decoded(answered)
        return
    prompt, answered = (
        _whole_json(section(attributes, name), value)
        for name, value in (("input", prompt), ("output", answered))
    )
    span.prompt = messages_of(llm.get("prompts"), "user") or span.prompt
    tools = [_tool(element) for element in elements(llm.get("tools"))]
    span.exchange(
        prompt,
        answered,
        tools=tools,
        model=llm.get("model_name"),
        usage=section(llm, "token_count"),
    )
    span.prompt = [
        _message(message) for message in elements(llm.get("input_messages"))
    ] or span.prompt
    answered = [_message(message) for message in elements(llm.get("output_messages"))]
    parameters = decoded_object(llm.get("invocation_parameters"))
    count = first_of(parameters, *_CHOICE_COUNTS)
    span.answered = first_choice(answered, count) or span.answered
    span.cost = number(section(llm, "cost").get("total"))


def _whole_json(attribute: Record, value: object) -> object:
    """Decode the value of an attribute whose type is JSON.

    If the end of the JSON is missing, return an item of damage.
    """
    if attribute.get("mime_type") != "application/json" or not isinstance(value, str):
        return value
    return [mark_cut_text("json", value)] if is_cut_json(value, is_json=True) else decoded(value)


def _genai_span(span: Span, attributes: Record) -> None:
    """Fill in a span from the attributes of the GenAI conventions."""
    is_model = "gen_ai.output.messages" in attributes
    span.kind = KINDS.get(
        str(attributes.get("gen_ai.operation.name")), "model" if is_model else span.kind
    )
    if span.kind == "tool":
        span.name = text(attributes.get("gen_ai.tool.name")) or span.name
        span.call_id = text(attributes.get("gen_ai.tool.call.id"))
        span.arguments = decoded(attributes.get("gen_ai.tool.call.arguments", span.arguments))
        span.output = decoded(attributes.get("gen_ai.tool.call.result", span.output))
        return
    system = decoded(attributes.get("gen_ai.system_instructions"))
    prompt = (
        messages_of(attributes.get("gen_ai.input.messages"), "user", is_json=True) or span.prompt
    )
    has_system = not system or any(
        isinstance(message, dict) and message.get("role") == "system" for message in prompt
    )
    is_cut = isinstance(system, str) and is_cut_json(system, is_json=True)
    head = (
        [mark_cut_text("system prompt", system)]
        if is_cut
        else [{"role": "system", "content": system}]
    )
    span.prompt = prompt if has_system else [*head, *prompt]
    answered = messages_of(attributes.get("gen_ai.output.messages"), "assistant", is_json=True)
    count = attributes.get("gen_ai.request.choice.count")
    span.answered = first_choice(answered, count) or span.answered
    pydantic = decoded_object(attributes.get("model_request_parameters"))
    pydantic_tools = [
        *elements(pydantic.get("function_tools")),
        *elements(pydantic.get("output_tools")),
    ]
    span.tools = decoded(attributes.get("gen_ai.tool.definitions")) or pydantic_tools or span.tools
    span.model = (
        attributes.get("gen_ai.response.model")
        or attributes.get("gen_ai.request.model")
        or span.model
    )
    counts = {
        name.removeprefix(_USAGE): value
        for name, value in attributes.items()
        if name.startswith(_USAGE) and name.endswith("tokens")
    }
    span.usage = counts or span.usage


def _ai_sdk_span(span: Span, attributes: Record) -> None:
    """Fill in a span from the attributes of Vercel's AI SDK.

    A step of the SDK's loop is a model call, and the loop is an agent.
    """
    operation = str(attributes["ai.operationId"])
    if operation == "ai.toolCall":
        span.kind, span.name, span.call_id = (
            "tool",
            text(attributes.get("ai.toolCall.name")),
            attributes.get("ai.toolCall.id"),
        )
        span.arguments = decoded(attributes.get("ai.toolCall.args", span.arguments))
        span.output = decoded_text(attributes.get("ai.toolCall.result", span.output))
        return
    span.kind = "model" if operation.endswith((".doGenerate", ".doStream")) else "other"
    prompt = first_of(attributes, "ai.prompt.messages", "ai.prompt")
    is_cut = isinstance(prompt, str) and is_cut_json(prompt, is_json=True)
    request = request_of([mark_cut_text("prompt", prompt)] if is_cut else prompt)
    calls = decoded(attributes.get("ai.response.toolCalls"))
    answered = [
        {"text": attributes[name]}
        for name in ("ai.response.text", "ai.response.object")
        if attributes.get(name)
    ]
    response = messages_of([*answered, *elements(calls)], "assistant")
    if isinstance(calls, str) and calls.strip():  # the end of the JSON is missing
        response = [*response, mark_cut_text("tool calls", calls)]
    span.prompt, span.answered = request.messages or span.prompt, response or span.answered
    span.tools = [
        decoded(element) for element in elements(decoded(attributes.get("ai.prompt.tools")))
    ] or span.tools


def _adk_span(span: Span, attributes: Record) -> None:
    """Fill in a span from the attributes that Google's ADK adds to the GenAI conventions.

    These attributes hold a request and a response of Gemini as JSON.
    """
    if span.kind == "tool":
        span.arguments = decoded(attributes.get(f"{OF_ADK[0]}tool_call_args", span.arguments))
        span.output = decoded(attributes.get(f"{OF_ADK[0]}tool_response", span.output))
        return
    request, answer = (
        attributes.get(f"{OF_ADK[0]}{name}") for name in ("llm_request", "llm_response")
    )
    if request is not None or answer is not None:
        span.kind = "model"
        span.exchange(decoded(request), decoded(answer))


def _message(raw: object) -> object:
    """Return a chat message from a message in OpenInference's format.

    The form is `{"message": {role, content or contents, tool_calls, tool_call_id}}`.
    """
    if raw is None:
        return mark_unread(MISSING_MESSAGE)
    raw = raw if isinstance(raw, dict) else {}
    message = section(raw, "message") or raw
    chat: Record = {"role": message.get("role"), "content": message.get("content")}
    if parts := elements(message.get("contents")):
        chat["content"] = [
            section(part, "message_content") | section(part, "tool_call") or part for part in parts
        ]
    if calls := elements(message.get("tool_calls")):
        chat["tool_calls"] = [section(call, "tool_call") or call for call in calls]
    if name := message.get("function_call_name"):  # older versions allow only one call per message
        chat["function_call"] = {
            "name": name,
            "arguments": message.get("function_call_arguments_json"),
        }
    if message.get("name") is not None:
        chat["name"] = message["name"]
    if message.get("tool_call_id") is not None:
        chat["tool_call_id"] = message["tool_call_id"]
    return chat


def _tool(raw: object) -> object:
    schema = decoded(
        section(raw, "tool").get("json_schema")
        or (raw.get("json_schema") if isinstance(raw, dict) else None)
    )
    return schema if isinstance(schema, dict) else raw
