"""OpenInference's attributes, as a tree (`llm.input_messages.<i>.message.role` → `llm["input_messages"][i]["message"]["role"]`)."""

from typing import Any

from agent_pipeline.sources.formats.fields import Record, decoded, elements, first_of, number, section, text
from agent_pipeline.sources.platforms.model_calls import messages_of
from agent_pipeline.sources.platforms.span_source import Score
from agent_pipeline.sources.platforms.spans import KINDS, Span


def openinference_span(span: Span, attributes: Record, kind: Any) -> None:
    """Fill in what a span's attributes say; `kind` is its own, where it stands beside the attributes."""
    llm = section(attributes, "llm")
    named = text(section(attributes, "openinference", "span").get("kind")) or text(kind) or ("LLM" if llm else "")
    span.kind = KINDS.get(named.lower(), "other")
    given, answered = section(attributes, "input").get("value"), section(attributes, "output").get("value")
    if span.kind == "tool":
        tool = section(attributes, "tool")
        span.name = text(tool.get("name")) or span.name
        span.call_id = text(section(attributes, "tool_call").get("id"))
        arguments = decoded(given if given is not None else tool.get("parameters"))
        span.arguments = arguments["kwargs"] if isinstance(arguments, dict) and arguments.keys() == {"kwargs"} else arguments
        span.output = decoded(answered)
        return
    span.given = messages_of(llm.get("prompts"), "user") or span.given
    tools = [_tool(each) for each in elements(llm.get("tools"))]
    span.exchange(given, answered, tools=tools, model=llm.get("model_name"), usage=section(llm, "token_count"))
    span.given = [_message(each) for each in elements(llm.get("input_messages"))] or span.given
    span.answered = [_message(each) for each in elements(llm.get("output_messages"))] or span.answered
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
