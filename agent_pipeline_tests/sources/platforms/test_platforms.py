"""Every tracing platform's export of one conversation gives that conversation; what is damaged is survived."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agent_pipeline.sources import SOURCES, open_source
from agent_pipeline.sources.platforms.span_source import metrics
from agent_pipeline_tests.sources import damage
from agent_pipeline_tests.sources.platforms import exports
from agent_pipeline_tests.sources.platforms.exports import CALLS, FIRST, TOOL, WHOLE, otlp, otlp_span, write

EXPORTS: dict[str, tuple[str, str, Callable[[], Any]]] = {
    "otlp lines": ("opentelemetry", "spans.jsonl", exports.opentelemetry),
    "otlp openinference": ("openinference", "spans.jsonl", exports.openinference),
    "phoenix": ("openinference", "spans.json", exports.phoenix),
    "langfuse": ("langfuse", "export.jsonl", exports.langfuse),
    "langfuse blobs": ("langfuse", "export.jsonl", exports.langfuse_blob),
    "mlflow": ("mlflow", "traces.jsonl", exports.mlflow),
    "litellm": ("litellm", "log.jsonl", exports.litellm),
    "openai traces": ("openai_agents_traces", "traces.jsonl", exports.openai_traces),
}

every_export = pytest.mark.parametrize(("reader", "file", "made"), EXPORTS.values(), ids=EXPORTS)


def only(path: Path) -> Any:
    source = open_source(path)
    (key,) = source.partitions()
    (session,) = source.sessions(key)
    return session


def unnumbered(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages with arguments decoded and without empty contents: spellings that do not matter."""
    plain = json.loads(json.dumps(messages))
    for message in plain:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return plain


@every_export
def test_calls_that_repeat_the_conversation_so_far_are_one_session_of_two_runs(tmp_path, reader, file, made):
    source = open_source(write(tmp_path / file, made()))
    assert source.name == reader
    assert len(source.partitions()) == 1
    (session,) = source.sessions(source.partitions()[0])
    assert unnumbered(session.messages) == unnumbered(WHOLE)
    assert (session.session_id, session.model_id, session.parent_session_id, session.error) == ("s1", "m-1", None, None)
    assert session.tools == [TOOL] and session.tools_origin == "source"
    assert (session.usage["input_tokens"], session.usage["output_tokens"]) == (30, 6)
    assert session.created_at.timestamp() == exports.START and session.ended_at > session.created_at
    assert not session.damage and not session.skipped


@every_export
def test_project_agent_and_metrics_come_from_the_export(tmp_path, reader, file, made):
    source = open_source(write(tmp_path / file, made()))
    assert source.partitions()[0].agent == "support"
    session = only(tmp_path / file)
    unjudged = reader in ("litellm", "openai_agents_traces")
    assert (session.judgment, session.score) == (None, None), "a metric is an opinion only where a setting says which way it points"
    assert session.scores.get("helpfulness") == (None if unjudged else 0.5)
    if reader in ("langfuse", "litellm"):
        assert session.cost_usd == 0.75
    if reader != "openinference" or file == "spans.jsonl":
        assert source.partitions()[0].project == "shop"


@every_export
def test_the_order_of_the_records_does_not_matter(tmp_path, reader, file, made):
    records = made()
    backwards = {**records, "data": records["data"][::-1]} if isinstance(records, dict) else records[::-1]
    assert only(write(tmp_path / "a" / file, backwards)).messages == only(write(tmp_path / "b" / file, records)).messages


@every_export
def test_a_thousand_damaged_exports_are_read_or_refused_with_a_sentence(tmp_path, reader, file, made):
    whole = write(tmp_path / file, made()).read_bytes()
    (kind,) = [each for each in SOURCES if each.name == reader]
    read = 0
    for seed in range(damage.COUNT):
        path = tmp_path / f"{seed}{Path(file).suffix}"
        path.write_bytes(damage.damaged(whole, seed))
        read += damage.must_survive(kind, path) > 0
        path.unlink()
    assert read > 0


# What models and tools leave unsaid


def test_a_retry_after_an_error_replaces_nothing_that_was_said(tmp_path):
    calls = exports.litellm()
    failed = {**calls[0], "id": "r9", "status": "failure", "response": None, "error_str": "429: slow down", "startTime": exports.START - 5}
    session = only(write(tmp_path / "log.jsonl", [failed, *calls]))
    assert unnumbered(session.messages) == unnumbered(WHOLE) and session.error is None


def test_a_session_whose_last_call_failed_has_the_error_and_no_verdict(tmp_path):
    calls = exports.langfuse()
    calls[2] |= {"level": "ERROR", "statusMessage": "overloaded", "output": None}
    session = only(write(tmp_path / "export.jsonl", calls))
    assert (session.error, session.judgment, session.score) == ("overloaded", None, None)
    assert session.messages[-1] == exports.SECOND and session.scores == {"helpfulness": 0.5, "grade": 1.0}


def test_an_answer_that_was_given_again_counts_once_and_the_first_is_counted_as_superseded(tmp_path):
    calls = exports.litellm()
    again = json.loads(json.dumps(calls[2]))
    again |= {"id": "r9", "startTime": calls[2]["startTime"] + 1}
    again["response"]["choices"][0]["message"]["content"] = "My pleasure."
    session = only(write(tmp_path / "log.jsonl", [*calls, again]))
    assert session.messages[-1]["content"] == "My pleasure." and session.skipped == {"superseded_item": 1}


def test_a_span_that_two_instrumentations_wrote_counts_once_tokens_too(tmp_path):
    calls = exports.litellm()
    session = only(write(tmp_path / "log.jsonl", [*calls, {**calls[1], "id": "twice"}]))
    assert unnumbered(session.messages) == unnumbered(WHOLE)
    assert session.usage["input_tokens"] == 30 and session.skipped == {"repeated_span": 1}


def test_another_agents_conversation_within_is_a_session_that_names_its_parent(tmp_path):
    told = [{"role": "system", "content": "You are a judge."}, {"role": "user", "content": "Is this polite?"}]
    guard = otlp_span("t1", 1, exports.openinference_attributes(told, {"role": "assistant", "content": "yes"}))
    source = open_source(write(tmp_path / "spans.jsonl", [*exports.openinference(), otlp([guard])]))
    main, side = source.sessions(source.partitions()[0])
    assert unnumbered(main.messages) == unnumbered(WHOLE) and main.scores
    assert (side.session_id, side.parent_session_id, side.scores) == ("s1~side1", "s1", {})
    assert [message["content"] for message in side.messages] == ["You are a judge.", "Is this polite?", "yes"]
    assert main.usage["input_tokens"] == 30 and side.usage["input_tokens"] == 10


def test_a_service_that_keeps_the_conversation_is_sent_only_what_is_new(tmp_path):
    inputs = [[*WHOLE[:2]], [WHOLE[3]], [WHOLE[5]]]
    calls = [{**call, "messages": told} for call, told in zip(exports.litellm(), inputs, strict=True)]
    assert unnumbered(only(write(tmp_path / "log.jsonl", calls)).messages) == unnumbered(WHOLE)


def test_a_run_that_repeats_the_words_of_earlier_runs_without_their_calls_goes_on_with_them(tmp_path):
    calls = exports.litellm()
    calls[2]["messages"] = [WHOLE[0], WHOLE[1], WHOLE[4], WHOLE[5]]
    assert unnumbered(only(write(tmp_path / "log.jsonl", calls)).messages) == unnumbered(WHOLE)


def test_the_last_calls_result_is_found_in_the_tools_own_span(tmp_path):
    spans = exports.openai_traces()
    first = [span for span in spans if span.get("trace_id") != "t2" and span.get("id") not in ("t2", "span_t1_1")]
    function = {"type": "function", "name": "look_up", "input": '{"order": 7}', "output": "in Ulm"}
    session = only(write(tmp_path / "traces.jsonl", [*first, {**exports.openai_span("t1", 2, function), "id": "f"}]))
    assert unnumbered(session.messages) == unnumbered(WHOLE[:4])


def test_runs_without_text_give_the_tools_calls_and_say_so(tmp_path):
    spans = exports.openai_traces()
    for span in spans:
        if span["object"] == "trace.span" and span["span_data"]["type"] == "generation":
            span["span_data"] = {"type": "response", "response_id": "resp_1"}
    session = only(write(tmp_path / "traces.jsonl", spans))
    assert [message["role"] for message in session.messages] == ["assistant", "tool"]
    assert session.skipped == {"model_call_without_text": 3}


def test_a_trace_without_model_calls_is_told_by_its_root(tmp_path):
    root = {**exports.langfuse()[-1], "input": "Where is order 7?", "output": "In Ulm."}
    tool = {
        "id": "o",
        "traceId": "t2",
        "type": "TOOL",
        "name": "look_up",
        "startTime": exports.iso(1),
        "input": {"order": 7},
        "output": "Ulm",
    }
    session = only(write(tmp_path / "export.jsonl", [root, tool]))
    assert [message["role"] for message in session.messages] == ["user", "assistant", "tool", "assistant"]
    assert session.task_id == "7"


def test_a_saved_table_of_mlflows_search_is_the_same_session(tmp_path):
    rows = [
        {
            "trace_id": each["info"]["trace_id"],
            "trace_metadata": json.dumps(each["info"]["trace_metadata"]),
            "tags": json.dumps(each["info"]["tags"]),
            "assessments": json.dumps(each["info"].get("assessments", [])),
            "spans": json.dumps(each["data"]["spans"]),
        }
        for each in exports.mlflow()
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "traces.parquet")
    session = only(tmp_path / "traces.parquet")
    assert (session.source, session.session_id, session.scores) == ("mlflow", "s1", {"helpfulness": 0.5, "grade": 1.0})
    assert unnumbered(session.messages) == unnumbered(WHOLE)


def test_spans_of_other_things_are_passed_over_and_counted(tmp_path):
    http = otlp_span("t3", 3, {"http.route": "/"})
    source = open_source(write(tmp_path / "spans.jsonl", [*exports.opentelemetry(), otlp([http, http])]))
    assert len(list(source.sessions(source.partitions()[0]))) == 1
    assert any("2 records of opentelemetry belong to no session" in note for note in source.notes)


def test_a_failed_span_says_why(tmp_path):
    failed = otlp_span("t9", 3, exports.genai_attributes(FIRST, CALLS[0][2]), status={"code": 2, "message": "timeout"})
    assert only(write(tmp_path / "spans.json", otlp([failed]))).error == "timeout"


def test_a_data_frame_of_phoenix_is_a_table_of_the_same_spans(tmp_path):
    rows = []
    for step, (trace, told, answer) in enumerate(CALLS):
        attributes = {
            "llm.input_messages": [_flat_message(each) for each in told],
            "llm.output_messages": [_flat_message(answer)],
            "llm.model_name": "m-1",
            "session.id": "s1",
        }
        row = {"name": "x", "span_kind": "LLM", "context.trace_id": trace, "context.span_id": f"s{step}", "start_time": exports.iso(step)}
        rows.append(
            row | {f"attributes.{name}": json.dumps(value) if isinstance(value, list) else value for name, value in attributes.items()}
        )
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "spans.parquet")
    source = open_source(tmp_path / "spans.parquet")
    assert source.name == "openinference"
    assert unnumbered(only(tmp_path / "spans.parquet").messages) == unnumbered(WHOLE)


def _flat_message(message: dict[str, Any]) -> dict[str, Any]:
    found = {"message.role": message["role"], "message.content": message["content"]}
    found |= {"message.tool_call_id": message["tool_call_id"]} if "tool_call_id" in message else {}
    calls = [
        {"tool_call.id": each["id"], "tool_call.function.name": "look_up", "tool_call.function.arguments": each["function"]["arguments"]}
        for each in message.get("tool_calls", ())
    ]
    return found | ({"message.tool_calls": calls} if calls else {})


def test_sessions_of_one_id_in_two_projects_are_two(tmp_path):
    records = [
        *exports.openinference(),
        *(otlp(each["resourceSpans"][0]["scopeSpans"][0]["spans"], "bank") for each in exports.openinference()),
    ]
    for number, record in enumerate(records[3:]):
        record["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["traceId"] = f"other{min(number, 1)}"
    source = open_source(write(tmp_path / "spans.jsonl", records))
    assert [str(key) for key in source.partitions()] == ["bank/support", "shop/support"]


# Metrics


def with_metric(reader: str, name: str, value: Any) -> list[dict[str, Any]]:
    """An export in which the only evaluation measured this."""
    if reader == "mlflow":
        records = exports.mlflow()
        records[1]["info"]["assessments"] = [{"assessment_name": name, "feedback": {"value": value}}]
        return records
    if reader == "langfuse":
        word = {"dataType": "CATEGORICAL", "value": 0, "stringValue": value}
        score = word if isinstance(value, str) else {"dataType": "BOOLEAN" if isinstance(value, bool) else "NUMERIC", "value": value}
        return [*(each for each in exports.langfuse() if "dataType" not in each), {"traceId": "t2", "name": name} | score]
    spans = exports.openinference()
    verdict = {"evaluation.name": name, "evaluation.label" if isinstance(value, str) else "evaluation.score": value}
    attributes = spans[1]["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"]
    attributes[:] = [each for each in attributes if not each["key"].startswith("evaluation.")] + [
        exports.attribute(*each) for each in verdict.items()
    ]
    return spans


@pytest.mark.parametrize("reader", ["mlflow", "langfuse", "openinference"])
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("toxicity", 1, 1.0), ("is_toxic", True, 1.0), ("correctness", 0, 0.0), ("grade", "incorrect", 0.0), ("incorrectness", 1, 1.0)],
)
def test_a_metric_of_a_platform_is_recorded_and_judges_nothing(tmp_path, reader, name, value, expected):
    session = only(write(tmp_path / "export.jsonl", with_metric(reader, name, value)))
    assert (session.judgment, session.score, session.scores) == (None, None, {name: expected})


def test_words_that_are_no_value_are_labels_and_the_last_value_of_a_name_counts():
    scores = [("a", 0.25), ("a", 0.5), ("b", True), ("c", "Hallucinated"), ("d", math.inf), ("e", "incorrect"), ("f", None), ("g", "")]
    assert metrics(scores) == ({"a": 0.5, "b": 1.0, "e": 0.0}, {"c": "Hallucinated"})
