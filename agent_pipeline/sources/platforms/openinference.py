"""OpenInference's attributes, as a tree (`llm.input_messages.<i>.message.role` → `llm["input_messages"][i]["message"]["role"]`)."""

from typing import Any

from agent_pipeline.sources.formats.fields import elements, number, section
from agent_pipeline.sources.formats.files import Record, text
from agent_pipeline.sources.platforms.requests import decoded, request_of, response_of
from agent_pipeline.sources.platforms.threads import Kind, Score, Span
from agent_pipeline.sources.platforms.trees import tree

_KINDS: dict[str, Kind] = {"LLM": "model", "TOOL": "tool", "AGENT": "agent"}


def openinference_span(span: Span, attributes: Record, kind: Any) -> None:
    """Fill in what a span's attributes say; `kind` is its own, where it stands beside the attributes."""
    llm = section(attributes, "llm")
    said = text(section(attributes, "openinference", "span").get("kind")) or text(kind) or ("LLM" if llm else "")
    span.kind = _KINDS.get(said.upper(), "other")
    given, answered = section(attributes, "input").get("value"), section(attributes, "output").get("value")
    if span.kind == "tool":
        tool = section(attributes, "tool")
        span.name = text(tool.get("name")) or span.name
        span.call_id = text(section(attributes, "tool_call").get("id"))
        span.arguments = decoded(given if given is not None else tool.get("parameters"))
        span.output = decoded(answered)
        return
    span.given = [_message(each) for each in elements(llm.get("input_messages"))]
    span.answered = [_message(each) for each in elements(llm.get("output_messages"))]
    request, response = request_of(given), response_of(answered)
    span.given, span.answered = span.given or request.messages, span.answered or response.messages
    span.tools = [_tool(each) for each in elements(llm.get("tools"))] or request.tools
    span.model = llm.get("model_name") or response.model or request.model
    span.usage = section(llm, "token_count") or response.usage
    span.cost = number(section(llm, "cost").get("total"))


def openinference_scores(attributes: Record) -> list[Score]:
    """`evaluation.name/.score/.label`, one or indexed."""
    found = section(tree({name: value for name, value in attributes.items() if name.startswith("evaluation.")}), "evaluation")
    several = elements(tree({name: value for name, value in attributes.items() if name.startswith("evaluations.")}).get("evaluations"))
    each_of = [found, *(section(each, "evaluation") or each for each in several if isinstance(each, dict))]
    return [
        Score(text(each.get("name")) or "evaluation", each.get("score"), each.get("label"))
        for each in each_of
        if each.get("score") is not None or each.get("label") is not None
    ]


def _message(raw: Any) -> Any:
    """A chat message from `{"message": {role, content or contents, tool_calls, tool_call_id}}`."""
    raw = section({"of": raw}, "of")
    message = section(raw, "message") or raw
    calls = [section({"of": each}, "of") for each in elements(message.get("tool_calls"))]
    found: Record = {"role": message.get("role"), "content": message.get("content")}
    if parts := elements(message.get("contents")):
        found["content"] = [section({"of": each}, "of").get("message_content", each) for each in parts]
    if calls:
        found["tool_calls"] = [section(each, "tool_call") or each for each in calls]
    if message.get("function_call_name"):
        found["function_call"] = {"name": message["function_call_name"], "arguments": message.get("function_call_arguments_json")}
    if message.get("tool_call_id") is not None:
        found["tool_call_id"] = message["tool_call_id"]
    return found


def _tool(raw: Any) -> Any:
    inner = section({"of": raw}, "of")
    schema = decoded(section(inner, "tool").get("json_schema") or inner.get("json_schema"))
    return schema if isinstance(schema, dict) else inner or raw
