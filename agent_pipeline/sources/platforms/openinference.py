"""OpenInference's attributes, as a tree (`llm.input_messages.<i>.message.role` → `llm["input_messages"][i]["message"]["role"]`)."""

from typing import Any

from agent_pipeline.sources.formats.fields import Record, decoded, elements, first_of, number, section, text
from agent_pipeline.sources.platforms.conversations import Kind, Span
from agent_pipeline.sources.platforms.model_calls import messages_of, request_of, response_of
from agent_pipeline.sources.platforms.span_source import Score

_KINDS: dict[str, Kind] = {"LLM": "model", "TOOL": "tool", "AGENT": "agent"}


def openinference_span(span: Span, attributes: Record, kind: Any) -> None:
    """Fill in what a span's attributes say; `kind` is its own, where it stands beside the attributes."""
    llm = section(attributes, "llm")
    named = text(section(attributes, "openinference", "span").get("kind")) or text(kind) or ("LLM" if llm else "")
    span.kind = _KINDS.get(named.upper(), "other")
    given, answered = section(attributes, "input").get("value"), section(attributes, "output").get("value")
    if span.kind == "tool":
        tool = section(attributes, "tool")
        span.name = text(tool.get("name")) or span.name
        span.call_id = text(section(attributes, "tool_call").get("id"))
        arguments = decoded(given if given is not None else tool.get("parameters"))
        span.arguments = arguments["kwargs"] if isinstance(arguments, dict) and arguments.keys() == {"kwargs"} else arguments
        span.output = decoded(answered)
        return
    request, response = request_of(given), response_of(answered)
    told = request.messages or messages_of(llm.get("prompts"), "user") or span.given
    span.given = [_message(each) for each in elements(llm.get("input_messages"))] or told
    span.answered = [_message(each) for each in elements(llm.get("output_messages"))] or response.messages or span.answered
    span.tools = [_tool(each) for each in elements(llm.get("tools"))] or request.tools or span.tools
    span.model = llm.get("model_name") or response.model or request.model
    span.usage = section(llm, "token_count") or response.usage
    span.cost = number(section(llm, "cost").get("total"))


def openinference_scores(attributes: Record) -> list[Score]:
    """`evaluation.name`, `.score` and `.label`."""
    value = first_of(attributes, "evaluation.score", "evaluation.label")
    return [] if value is None else [(text(attributes.get("evaluation.name")) or "evaluation", value)]


def _message(raw: Any) -> Any:
    """A chat message from `{"message": {role, content or contents, tool_calls, tool_call_id}}`."""
    raw = raw if isinstance(raw, dict) else {}
    message = section(raw, "message") or raw
    chat: Record = {"role": message.get("role"), "content": message.get("content")}
    if parts := elements(message.get("contents")):
        chat["content"] = [section(each, "message_content") | section(each, "tool_call") or each for each in parts]
    if calls := elements(message.get("tool_calls")):
        chat["tool_calls"] = [section(each, "tool_call") or each for each in calls]
    if message.get("tool_call_id") is not None:
        chat["tool_call_id"] = message["tool_call_id"]
    return chat


def _tool(raw: Any) -> Any:
    schema = decoded(section(raw, "tool").get("json_schema") or (raw.get("json_schema") if isinstance(raw, dict) else None))
    return schema if isinstance(schema, dict) else raw
