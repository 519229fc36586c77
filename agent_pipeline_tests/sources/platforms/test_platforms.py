"""Every tracing platform's export of one conversation gives that conversation; what is damaged is survived."""

import json
import math
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from agent_pipeline.errors import StoreError
from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.judging import VerdictPolicy
from agent_pipeline.sources import SOURCES, open_source, open_sources, parse_location
from agent_pipeline.sources.formats.databases import Traces
from agent_pipeline.sources.formats.record_files import RecordReader, records
from agent_pipeline.sources.platforms.attributes import plain_value
from agent_pipeline.sources.platforms.span_source import metrics
from agent_pipeline_tests.judging.sessions import judge
from agent_pipeline_tests.judging.sessions import session as small_session
from agent_pipeline_tests.sources import damage
from agent_pipeline_tests.sources.platforms import exports
from agent_pipeline_tests.sources.platforms.exports import TOOL, WHOLE, write

LANGSMITH = "11111111-2222-3333-4444-555555555555"

EXPORTS: dict[str, tuple[str, str, str, Callable[[], Any] | None]] = {
    "ag2.jsonl": ("opentelemetry", "shop", "support", None),
    "ai_sdk.jsonl": ("opentelemetry", "shop", "support", None),
    "anthropic.jsonl": ("openinference", "shop", "support", None),
    "genai_calls.jsonl": ("opentelemetry", "shop", "support", None),
    "genai_messages.jsonl": ("opentelemetry", "shop", "support", None),
    "google_adk.jsonl": ("opentelemetry", "shop", "support", None),
    "google_genai.jsonl": ("openinference", "shop", "support", None),
    "langgraph.jsonl": ("openinference", "shop", "support", None),
    "langsmith.jsonl": ("langsmith", LANGSMITH, "support", None),
    "langsmith_langgraph.jsonl": ("langsmith", LANGSMITH, "support", None),
    "litellm.jsonl": ("litellm", "shop", "support", exports.litellm),
    "llama_index.jsonl": ("openinference", "shop", "support", None),
    "mlflow.db": ("mlflow", "1", "support", None),
    "mlflow.jsonl": ("mlflow", "1", "support", None),
    "mlflow_frame.jsonl": ("mlflow", "mlflow_frame", "support", None),
    "openinference_console.json": ("openinference", "shop", "support", None),
    "openinference_otlp.jsonl": ("openinference", "shop", "support", None),
    "opentelemetry_console.json": ("opentelemetry", "shop", "support", None),
    "opentelemetry_otlp.jsonl": ("opentelemetry", "shop", "support", None),
    "pydantic_ai.jsonl": ("opentelemetry", "shop", "support", None),
    "phoenix.db": ("openinference", "shop", "support", None),
    "phoenix_frame.parquet": ("openinference", "phoenix_frame", "default", None),
    "phoenix_page.json": ("openinference", "phoenix_page", "default", None),
    "langfuse.jsonl": ("langfuse", "shop", "support", exports.langfuse),
    "langfuse_api.jsonl": ("langfuse", "shop", "support", None),
    "langfuse_traces.jsonl": ("langfuse", "shop", "support", None),
    "openai_traces.jsonl": ("openai_agents_traces", "shop", "support", exports.openai_traces),
}
"""By file: the reader, project, agent, and what makes it; without a maker it is a file that an SDK wrote."""


@pytest.fixture(params=EXPORTS)
def export(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return exports.placed(request.param, EXPORTS[request.param][3], tmp_path)


WITHOUT_TOOLS = ("ag2.jsonl", "genai_calls.jsonl", "genai_messages.jsonl")
"""Files whose SDKs do not record the tools."""


def only(path: Path) -> Any:
    source = open_source(path)
    (key,) = source.partitions()
    (session,) = source.sessions(key)
    return session


def unnumbered(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages with arguments decoded, the one call's id, and what Google's SDKs say as others do: spellings that do not matter."""
    text = json.dumps(messages).replace(json.dumps('{"result": "in Ulm"}'), '"in Ulm"')
    plain = json.loads(
        text.replace(json.dumps('\n\nYou are an agent. Your internal name is "support".')[1:-1], "")
    )
    for message in plain:
        message |= {"tool_call_id": "c1"} if message["role"] == "tool" else {}
        message.pop("name", None)  # the tool of a result without an id, until repair pairs it
        for call in message.get("tool_calls", ()):
            call |= {"id": "c1"}
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return plain


def signatures(tools: list[dict[str, Any]]) -> list[Any]:
    """The names and types of tools, which are alike whatever framework describes the function."""
    functions = [tool["function"] for tool in tools]
    return [
        (
            each["name"],
            {name: about["type"] for name, about in each["parameters"]["properties"].items()},
        )
        for each in functions
    ]


def test_calls_that_repeat_the_conversation_so_far_are_one_session_of_two_runs(export):
    reader, project, agent, _ = EXPORTS[export.name]
    source = open_source(export)
    assert (source.name, source.partitions()) == (reader, [(project, agent)])
    session = only(export)
    assert unnumbered(session.messages) == unnumbered(WHOLE[export.name == "ag2.jsonl" :])
    assert (session.session_id, session.parent_session_id, session.error) == ("s1", None, None)
    assert session.model_id == ("gemini-m-1" if export.name == "google_adk.jsonl" else "m-1")
    recorded = [] if export.name in WITHOUT_TOOLS else signatures([TOOL])
    assert (signatures(session.tools), session.tools_origin) == (
        recorded,
        "source" if recorded else "none",
    )
    assert (session.usage["input_tokens"], session.usage["output_tokens"]) == (30, 6)
    assert session.ended_at > session.created_at
    assert not session.damage and not session.skipped
    said = (
        "acceptable" if export.name == "phoenix.db" else None
    )  # by people; a metric is an opinion only where a setting says which way
    assert (session.judgment, session.score) == (said, None)
    assert session.scores.get("helpfulness") == (
        0.5 if reader in ("langfuse", "mlflow") or said else None
    )
    assert session.cost_usd == {"langfuse": 0.75, "langsmith": 0.75, "litellm": 0.0}.get(reader)


@pytest.mark.parametrize(
    "row", exports.written("messages.jsonl"), ids=lambda row: row["session_id"]
)
def test_messages_as_an_sdk_keeps_them_are_the_conversation_without_what_only_its_service_knows(
    tmp_path, row
):
    session = only(write(tmp_path / "messages.jsonl", [row]))
    kept = (
        WHOLE if row["session_id"] == "pydantic_ai" else WHOLE[1:]
    )  # others give the system prompt to the agent
    assert (session.source, unnumbered(session.messages)) == ("openai_chat", unnumbered(kept))
    assert not session.damage and not session.skipped


def test_a_crews_session_is_what_was_said_and_the_id_that_each_run_gives_its_task_names_no_task(
    tmp_path,
):
    session = only(exports.placed("crewai.jsonl", None, tmp_path))
    assert (session.source, session.project, session.agent, session.session_id) == (
        "openinference",
        "shop",
        "support",
        "s1",
    )
    assert [message["role"] for message in session.messages] == [
        message["role"] for message in WHOLE
    ]
    said = [
        (message["content"], told["content"])
        for message, told in zip(session.messages, WHOLE, strict=True)
    ]
    assert all(words in framed for framed, words in said), (
        "CrewAI puts its own words around what it is told"
    )
    assert (
        unnumbered(session.messages)[2:4] == unnumbered(WHOLE)[2:4]
        and not session.damage
        and not session.skipped
    )
    assert session.task_id is None, "runs of one task would be in several splits"


READ = {
    "agno": (
        "Agent.run",
        "system user call:duckduckgo_search tool assistant",
        ["duckduckgo_search", "duckduckgo_news"],
    ),
    "google-adk": (
        "invocation [hello_app]",
        "system user call:say_hello tool assistant",
        ["say_hello"],
    ),
    "langgraph-js": ("LangGraph", "user call:get_weather tool assistant", []),
    "langgraph-python": ("LangGraph", "user user call:Web-Search tool assistant", ["Web-Search"]),
    "llamaindex": ("llama-index-trace", "user assistant", []),
    "microsoft": ("invoke_agent", "system user call:get_weather tool assistant", ["get_weather"]),
    "openai-agents": (
        "Agent workflow",
        "system user call:get_weather tool assistant",
        ["get_weather"],
    ),
    "vercel": ("ai.generateText", "user call:getWeather tool", ["getWeather"]),
}
"""By framework: the trace's name, what a person reads in it, the tools."""


@pytest.mark.parametrize(
    ("framework", "download"), zip(READ, exports.written("langfuse.jsonl"), strict=True)
)
def test_a_trace_that_langfuse_downloads_is_read_as_a_person_reads_it(
    tmp_path, framework, download
):
    name, conversation, tools = READ[framework]
    assert download["trace"]["name"].startswith(name)
    source = open_source(write(tmp_path / "export.json", download))
    (session,) = read_sessions(source, source.partitions()[0], ReadingOptions())
    said = [
        [
            *(f"call:{call['function']['name']}" for call in each.get("tool_calls", ())),
            each["role"],
        ][0]
        for each in session.messages
    ]
    assert " ".join(said) == conversation
    assert [tool["function"]["name"] for tool in session.tools] == tools or not tools
    assert session.session_id == (download["trace"]["sessionId"] or download["trace"]["id"])
    assert set(session.scores) == {each["name"] for each in download["trace"]["scores"]}
    assert not session.broken and session.judgment is None


def test_scores_of_langfuse_name_what_they_are_of_and_what_a_person_wrote_instead_is_no_zero(
    tmp_path,
):
    now = only(exports.placed("langfuse_api.jsonl", None, tmp_path))
    assert (now.scores, now.task_id) == ({"helpfulness": 0.5, "grade": 1.0, "polite": 1.0}, "7")
    correction = {
        "id": "z",
        "traceId": "t1",
        "name": "output",
        "dataType": "CORRECTION",
        "value": 0,
        "stringValue": "Gladly.",
    }
    of_session = {
        "id": "z",
        "traceId": None,
        "sessionId": "s1",
        "projectId": "shop",
        "name": "all",
        "dataType": "NUMERIC",
        "value": 1,
    }
    before = only(write(tmp_path / "export.jsonl", [*exports.langfuse(), correction, of_session]))
    assert before.scores == {"helpfulness": 0.5, "grade": 1.0, "all": 1.0}
    assert before.context["labels"] == now.context["labels"] == {"output": "Gladly."}


def test_a_trace_of_langfuse_without_empty_fields_keeps_its_name_and_its_session(tmp_path):
    """The SDK leaves out fields that are null, `public` among them: the trace was no trace any more, and its calls had no agent."""
    traces = exports.written("langfuse_traces.jsonl")
    for trace in traces:
        del trace["public"]
    session = only(write(tmp_path / "traces.jsonl", traces))
    assert (session.project, session.agent) == ("shop", "support")
    assert session == only(exports.placed("langfuse_traces.jsonl", None, tmp_path))


def test_what_a_page_of_langfuse_holds_beside_what_is_known_is_counted(tmp_path):
    (page, *_) = exports.written("langfuse_api.jsonl")
    page["data"] += [{"id": "o9", "traceId": "t9", "type": "OF_TOMORROW"}, "no object"]
    source = open_source(write(tmp_path / "page.json", page))
    list(source.sessions(source.partitions()[0]))
    assert any("2 records of langfuse belong to no session" in note for note in source.notes)


def test_attributes_that_langfuse_4_spells_flat_in_metadata_say_what_they_say_as_objects(tmp_path):
    for at, download in enumerate(exports.written("langfuse.jsonl")):
        before = only(write(tmp_path / f"{at}.json", download))
        for step in download["observations"]:
            step["metadata"] = {
                f"attributes.{name}": value
                for name, value in step["metadata"].get("attributes", {}).items()
            }
        after = only(write(tmp_path / "flat" / f"{at}.json", download))
        assert (after.messages, after.tools, after.usage) == (
            before.messages,
            before.tools,
            before.usage,
        )
    flat = {"attributes.llm.system": "words", "scope.name": "x", "plan.name": "gold"}
    root = {**exports.written("langfuse_api.jsonl")[0]["data"][2], "metadata": flat}
    assert only(write(tmp_path / "root.jsonl", [root])).context == {
        "plan.name": "gold",
        "tags": None,
    }


@pytest.mark.parametrize(
    ("update", "judgment"),
    [
        ("span_annotations SET label = 'bad' WHERE annotator_kind = 'HUMAN'", None),
        (
            "span_annotations SET annotator_kind = 'HUMAN', label = 'fail' WHERE name = 'helpfulness'",
            None,
        ),
        ("span_annotations SET label = 'yes' WHERE annotator_kind = 'HUMAN'", "acceptable"),
        (
            "span_annotations SET span_rowid = (SELECT id FROM spans WHERE parent_id IS NOT NULL), label = 'bad'",
            "acceptable",
        ),
        (
            "project_session_annotations SET annotator_kind = 'LLM', label = 'unacceptable'",
            "acceptable",
        ),
    ],
    ids=[
        "who disagree",
        "of whom one disagrees",
        "a word that needs its question",
        "of a step within",
        "of a model",
    ],
)
def test_a_run_is_judged_by_words_of_people_about_it_that_agree(tmp_path, update, judgment):
    path = exports.placed("phoenix.db", None, tmp_path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE {update}")
        connection.commit()
    assert only(path).judgment == judgment


def test_a_database_is_read_while_its_server_writes_and_without_what_other_versions_added(tmp_path):
    path = exports.placed("phoenix.db", None, tmp_path)
    with closing(sqlite3.connect(path)) as server:
        server.executescript(
            "PRAGMA journal_mode = WAL; DROP TABLE trace_annotations; DROP TABLE project_session_annotations; BEGIN IMMEDIATE"
        )
        server.execute("DELETE FROM spans")
        assert unnumbered(only(path).messages) == unnumbered(WHOLE)
    path = exports.placed("mlflow.db", None, tmp_path)
    with closing(sqlite3.connect(path)) as server:
        server.executescript(
            "DROP TABLE assessments; ALTER TABLE trace_info DROP COLUMN session_id; ALTER TABLE trace_info DROP COLUMN trace_name"
        )
    source = open_source(path)
    assert [str(key) for key in source.partitions()] == ["1/default"], (
        "older versions keep them in other tables"
    )
    with closing(sqlite3.connect(path)) as server:
        server.executescript("UPDATE experiments SET lifecycle_stage = 'deleted'")
    assert open_sources([parse_location(f"mlflow:{path}")]).partitions() == [], (
        "what was deleted is not read"
    )


@pytest.mark.parametrize(
    ("name", "statement"),
    [
        (
            "phoenix.db",
            "INSERT INTO traces SELECT max(id) + 1, project_rowid, '0', start_time, end_time, NULL FROM traces",
        ),
        ("phoenix.db", "DELETE FROM traces WHERE rowid = 1"),
        ("mlflow.db", "DELETE FROM trace_info WHERE rowid = 1"),
    ],
)
def test_a_trace_that_comes_or_goes_while_a_database_is_read_puts_no_trace_in_anothers_place(
    name, statement, tmp_path
):
    path = exports.placed(name, None, tmp_path)
    indexed, read = dict(records(path, [])), {}
    with closing(sqlite3.connect(path)) as server, server:
        server.execute(statement)
    reader = RecordReader()
    for place in indexed:
        try:
            read[place] = reader.record(place)
        except StoreError as error:
            assert "changed while it was being read" in str(error) and statement.startswith(
                "DELETE"
            )
    assert (
        len(read) == len(indexed) - statement.startswith("DELETE")
        and read.items() <= indexed.items()
    )


def test_a_table_of_spans_that_another_is_renamed_over_while_it_is_read_is_a_failure(
    tmp_path, monkeypatch
):
    path = exports.placed("phoenix_frame.parquet", None, tmp_path)
    source = open_source(path)
    index = source._new_index
    others = pq.read_table(path)

    def then_replaced():
        made = index()
        pq.write_table(others.take(list(range(len(others)))[::-1]), tmp_path / "new")
        (tmp_path / "new").replace(path)
        return made

    monkeypatch.setattr(source, "_new_index", then_replaced)
    with pytest.raises(StoreError, match="changed"):
        list(read_sessions(source, source.partitions()[0], ReadingOptions()))
    monkeypatch.undo()
    assert unnumbered(only(path).messages) == unnumbered(WHOLE)


def test_a_trace_that_goes_while_a_database_is_listed_takes_no_other_with_it(tmp_path):
    path = exports.placed("phoenix.db", None, tmp_path)
    traces = Traces(path)
    with closing(sqlite3.connect(path)) as server, server:
        server.execute("DELETE FROM traces WHERE rowid = ?", traces._rows[:1])
    assert [row for row, _ in traces.items()] == traces._rows[1:] and traces._rows[1:]


def test_a_database_of_no_platform_is_refused_with_a_sentence(tmp_path):
    with closing(sqlite3.connect(tmp_path / "own.db")) as connection:
        connection.executescript("CREATE TABLE traces (id INTEGER)")
    with pytest.raises(StoreError, match="not a session store"):
        open_source(tmp_path / "own.db")
    with pytest.raises(StoreError, match="MLflow or Phoenix"):
        open_source(parse_location(f"mlflow:{tmp_path / 'own.db'}")).partitions()


def test_log_records_without_spans_are_calls_too_and_a_record_that_was_sent_twice_counts_once(
    tmp_path,
):
    records = [each for each in exports.written("genai_messages.jsonl") if "resourceLogs" in each]
    source = open_source(write(tmp_path / "logs.jsonl", records + records))
    first, second = sorted(
        (len(each.messages), each) for key in source.partitions() for each in source.sessions(key)
    )
    assert (unnumbered(first[1].messages), unnumbered(second[1].messages)) == (
        unnumbered(WHOLE[:5]),
        unnumbered(WHOLE),
    )
    console = open_source(
        Path(shutil.copy(exports.WRITTEN / "genai_messages_console.json", tmp_path))
    )
    assert [len(each.messages) for each in console.sessions(console.partitions()[0])] in (
        [5, 7],
        [7, 5],
    )


def test_calls_whose_words_were_not_recorded_are_a_session_that_says_so(tmp_path):
    records = [each for each in exports.written("genai_messages.jsonl") if "resourceSpans" in each]
    session = only(write(tmp_path / "spans.jsonl", records))
    assert session.messages == [] and session.skipped == {"model_call_without_text": 3}


@pytest.mark.parametrize(
    "told", ["system: You are helpful.\nuser: Where is order 7?", {"content": "role"}]
)
def test_several_messages_in_one_text_or_a_fields_name_for_it_are_damage_and_not_words_of_the_user(
    tmp_path, told
):
    calls = exports.litellm()[:1]
    calls[0]["messages"] = told
    assert only(write(tmp_path / "log.jsonl", calls)).damage == {"invalid_item": 1}


@pytest.mark.parametrize("name", [name for name in EXPORTS if name.endswith(".jsonl")])
def test_the_order_of_the_records_does_not_matter(tmp_path, name):
    made = EXPORTS[name][3]
    records = made() if made else exports.written(name)
    assert (
        only(write(tmp_path / name, records[::-1])).messages
        == only(write(tmp_path / "b" / name, records)).messages
    )


def test_damaged_exports_are_read_or_refused_with_a_sentence(tmp_path, export):
    (kind,) = [each for each in SOURCES if each.name == EXPORTS[export.name][0]]
    assert damage.survivors(kind, export.read_bytes(), tmp_path, export.suffix) > 0


# What models and tools leave unsaid


def test_a_retry_after_an_error_replaces_nothing_that_was_said(tmp_path):
    calls = exports.litellm()
    failed = {
        **calls[0],
        "id": "r9",
        "status": "failure",
        "response": None,
        "error_str": "429: slow down",
        "startTime": calls[0]["startTime"] - 5,
    }
    session = only(write(tmp_path / "log.jsonl", [failed, *calls]))
    assert unnumbered(session.messages) == unnumbered(WHOLE) and session.error is None


def test_a_session_whose_last_call_failed_has_the_error_and_no_verdict(tmp_path):
    calls = exports.langfuse()
    calls[2] |= {"level": "ERROR", "statusMessage": "overloaded", "output": None}
    session = only(write(tmp_path / "export.jsonl", calls))
    assert (session.error, session.judgment, session.score) == ("overloaded", None, None)
    assert session.messages[-1] == exports.SECOND and session.scores == {
        "helpfulness": 0.5,
        "grade": 1.0,
    }


def test_answers_that_nobody_asked_for_beside_calls_are_damage(tmp_path):
    calls = exports.litellm()
    tokens = json.loads(
        json.dumps([{**calls[2], "id": f"token{at}", "messages": []} for at in range(3)])
    )
    for token, word in zip(tokens, ("My", " plea", "sure."), strict=True):
        token["response"]["choices"][0]["message"]["content"] = word
    source = open_source(write(tmp_path / "log.jsonl", [*calls, *tokens]))
    assert [
        (len(each.messages), each.damage) for each in source.sessions(source.partitions()[0])
    ] == [(7, {}), (1, {"invalid_item": 1})]


def test_an_answer_that_was_given_again_counts_once_and_the_first_is_counted_as_superseded(
    tmp_path,
):
    calls = exports.litellm()
    again = json.loads(json.dumps(calls[2]))
    again |= {"id": "r9", "startTime": calls[2]["startTime"] + 1}
    again["response"]["choices"][0]["message"]["content"] = "My pleasure."
    session = only(write(tmp_path / "log.jsonl", [*calls, again]))
    assert session.messages[-1]["content"] == "My pleasure." and session.skipped == {
        "superseded_item": 1
    }


def test_a_span_that_two_instrumentations_wrote_counts_once_tokens_too(tmp_path):
    calls = exports.litellm()
    session = only(write(tmp_path / "log.jsonl", [*calls, {**calls[1], "id": "twice"}]))
    assert unnumbered(session.messages) == unnumbered(WHOLE)
    assert session.usage["input_tokens"] == 30 and session.skipped == {"repeated_span": 1}


def test_another_agents_conversation_within_is_a_session_that_names_its_parent(tmp_path):
    evaluated = exports.with_attributes(
        exports.guard(), evaluation__name="polite", evaluation__score=1
    )
    source = open_source(
        write(tmp_path / "spans.jsonl", [*exports.written("openinference_otlp.jsonl"), evaluated])
    )
    main, side = source.sessions(source.partitions()[0])
    assert unnumbered(main.messages) == unnumbered(WHOLE) and main.scores == {"polite": 1.0}
    assert (side.session_id, side.parent_session_id, side.scores) == ("s1~side1", "s1", {})
    assert [message["content"] for message in side.messages] == [
        "You are a judge.",
        "Is this polite?",
        "yes",
    ]
    assert main.usage["input_tokens"] == 30 and side.usage["input_tokens"] == 10


def test_a_service_that_keeps_the_conversation_is_sent_only_what_is_new(tmp_path):
    inputs = [[*WHOLE[:2]], [WHOLE[3]], [WHOLE[5]]]
    calls = exports.litellm()
    for call, told in zip(calls, inputs, strict=True):
        call |= {"messages": told, "session_id": "s1", "trace_id": told[0]["role"]}
    assert unnumbered(only(write(tmp_path / "log.jsonl", calls)).messages) == unnumbered(WHOLE)


def test_a_run_that_repeats_the_words_of_earlier_runs_without_their_calls_goes_on_with_them(
    tmp_path,
):
    calls = exports.litellm()
    calls[2]["messages"] = [WHOLE[0], WHOLE[1], WHOLE[4], WHOLE[5]]
    assert unnumbered(only(write(tmp_path / "log.jsonl", calls)).messages) == unnumbered(WHOLE)


def test_the_last_calls_result_is_found_in_the_tools_own_span(tmp_path):
    spans = exports.openai_traces()
    first = [
        span
        for span in spans
        if span.get("trace_id") != "t2" and span.get("id") not in ("t2", "span_t1_1")
    ]
    function = {"type": "function", "name": "look_up", "input": '{"order": 7}', "output": "in Ulm"}
    session = only(
        write(
            tmp_path / "traces.jsonl",
            [*first, {**exports.openai_span("t1", 2, function), "id": "f"}],
        )
    )
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
    assert [message["role"] for message in session.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert session.task_id == "7"


def test_spans_of_other_things_are_passed_over_and_counted(tmp_path):
    records = exports.written("opentelemetry_otlp.jsonl")
    http = exports.with_attributes(records[0], ("gen_ai", "llm"), http__route="/")
    source = open_source(write(tmp_path / "spans.jsonl", [*records, http, http]))
    assert len(list(source.sessions(source.partitions()[0]))) == 1
    assert any("2 records of opentelemetry belong to no session" in note for note in source.notes)


def test_an_attribute_of_otlp_keeps_its_value_where_the_types_that_it_has_not_are_null(tmp_path):
    records = exports.written("opentelemetry_otlp.jsonl")
    for span in (span for record in records for span in exports.spans_in(record)):
        for each in span["attributes"]:
            each["value"] = (
                {"boolValue": None, "stringValue": None, "intValue": None}
                | each["value"]
                | {"doubleValue": None}
            )
    assert unnumbered(only(write(tmp_path / "spans.jsonl", records)).messages) == unnumbered(WHOLE)
    assert plain_value([{"key": "a", "value": {"stringValue": None, "boolValue": True}}]) == {
        "a": True
    }


def test_a_failed_span_says_why_and_an_evaluation_of_it_is_a_metric(tmp_path):
    records = exports.written("opentelemetry_otlp.jsonl")[:1]
    (span,) = exports.spans_in(records[0])
    verdict = [
        exports.attribute("gen_ai.evaluation.name", "correctness"),
        exports.attribute("gen_ai.evaluation.score.value", 0),
    ]
    span |= {
        "status": {"code": 2, "message": "timeout"},
        "events": [{"name": "gen_ai.evaluation.result", "attributes": verdict}],
    }
    session = only(write(tmp_path / "spans.json", records))
    assert (session.error, session.scores) == ("timeout", {"correctness": 0.0})


def test_sessions_of_one_id_in_two_projects_are_two(tmp_path):
    text = (exports.WRITTEN / "openinference_otlp.jsonl").read_text(encoding="utf-8")
    (tmp_path / "spans.jsonl").write_text(
        text + text.replace('"shop"', '"bank"').replace('"traceId":"', '"traceId":"f'),
        encoding="utf-8",
    )
    assert [str(key) for key in open_source(tmp_path / "spans.jsonl").partitions()] == [
        "bank/support",
        "shop/support",
    ]


# Metrics


def with_metric(reader: str, name: str, value: Any) -> list[dict[str, Any]]:
    """An export in which the only evaluation measured this."""
    if reader == "mlflow":
        records = exports.written("mlflow.jsonl")
        valid = {"assessment_name": name, "feedback": {"value": value}}
        records[0]["info"]["assessments"] = [
            {"assessment_name": "withdrawn", "feedback": {"value": 0}, "valid": False},
            valid,
        ]
        return records
    if reader == "langfuse":
        word = {"dataType": "CATEGORICAL", "value": 0, "stringValue": value}
        score = (
            word
            if isinstance(value, str)
            else {"dataType": "BOOLEAN" if isinstance(value, bool) else "NUMERIC", "value": value}
        )
        return [
            *(each for each in exports.langfuse() if "dataType" not in each),
            {"traceId": "t2", "name": name} | score,
        ]
    records = exports.written("openinference_otlp.jsonl")
    evaluated = {
        "evaluation__name": name,
        "evaluation__label" if isinstance(value, str) else "evaluation__score": value,
    }
    return [exports.with_attributes(records[0], **evaluated), *records[1:]]


@pytest.mark.parametrize("reader", ["mlflow", "langfuse", "openinference"])
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("toxicity", 1, 1.0),
        ("is_toxic", True, 1.0),
        ("correctness", 0, 0.0),
        ("grade", "incorrect", 0.0),
        ("incorrectness", 1, 1.0),
    ],
)
def test_a_metric_of_a_platform_is_recorded_and_judges_nothing(
    tmp_path, reader, name, value, expected
):
    session = only(write(tmp_path / "export.jsonl", with_metric(reader, name, value)))
    assert (session.judgment, session.score, session.scores) == (None, None, {name: expected})


def test_words_that_are_no_value_are_labels_and_the_last_value_of_a_name_counts():
    scores = [
        ("a", 0.25),
        ("a", 0.5),
        ("b", True),
        ("c", "Hallucinated"),
        ("d", math.inf),
        ("e", "incorrect"),
        ("f", None),
        ("g", ""),
    ]
    assert metrics(scores) == ({"a": 0.375, "b": 1.0, "e": 0.0}, {"c": "Hallucinated"})


@pytest.mark.parametrize("scores", [[0, 1], [1, 0], [1, 0, 1]])
def test_a_session_of_which_one_run_was_bad_is_not_good_by_its_last_one(scores):
    named = metrics(("correctness", each) for each in scores)[0]
    assert (
        judge(
            small_session(scores=named), [], VerdictPolicy(metrics={"correctness": "higher"})
        ).verdict
        is None
    )
