"""The real files: every one is read, or refused with a sentence; the figures were counted by hand in the files themselves."""

import json
from collections import Counter
from pathlib import Path

import pytest

from agent_pipeline.errors import StoreError
from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.keys import make_key
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.sessions.damage import make_repair_policy
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources import TraceSource, find, open_source
from agent_pipeline.sources.benchmarks.agentdojo import AgentDojoSource
from agent_pipeline.sources.benchmarks.inspect_ai import InspectSource
from agent_pipeline.sources.benchmarks.swe_agent import SWEAgentSource
from agent_pipeline.sources.benchmarks.tau_bench import TauBenchSource
from agent_pipeline.sources.benchmarks.toolbench import ToolBenchSource
from agent_pipeline_tests.sources.test_plain import read


def judged(sessions: list[Session]) -> dict[str | None, int]:
    """How many sessions have each judgment."""
    return dict(Counter(session.judgment for session in sessions))


def test_all_2804_runs_without_attack_are_in_by_29_agents(real_traces: Path) -> None:
    source = AgentDojoSource(real_traces / "agentdojo" / "none_banking_slack_workspace.jsonl")
    sessions = read(source)
    assert len(sessions) == 2804
    assert [note for note in source.notes if "5 names" not in note] == []
    agents = {session.agent for session in sessions}
    assert (
        len(agents) == 29
        and make_key("p", "Meta-SecAlign-70B").agent in agents
        and not agents & {"local", "local-repeat_user_prompt"}
    )
    ids: dict[str, set[bool]] = {agent: set() for agent in agents}
    for session in sessions:
        ids[session.agent] |= {
            bool(call["id"])
            for message in session.messages
            for call in message.get("tool_calls", ())
        }
    assert sum(found == {False} for found in ids.values()) == 12
    assert all(len(found) == 1 for found in ids.values())
    assert sum(session.error is not None for session in sessions) == 12
    assert judged(sessions) == {"acceptable": 1707, "unacceptable": 1085, None: 12}
    assert {session.attack_succeeded for session in sessions} == {None}, (
        "security means nothing where no attack was made"
    )
    assert len({session.task_id for session in sessions}) == 77 + 28


def test_no_result_of_agentdojo_is_put_to_another_call(real_traces: Path) -> None:
    path = real_traces / "agentdojo" / "none_banking_slack_workspace.jsonl"
    asked: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    with path.open(encoding="utf-8") as file:
        for row in map(json.loads, file):
            agent = make_key("p", row["_path"].split("/")[1]).agent
            results = [
                message["tool_call"] for message in row["messages"] if message["role"] == "tool"
            ]
            asked[row["suite_name"], agent, row["user_task_id"]] = [
                (call["function"], json.dumps(call["args"])) for call in results
            ]
    source, compared = AgentDojoSource(path), 0
    keep = make_repair_policy({"duplicated_history": "keep"})  # a repeated call is a pair too
    as_it_is = ReadingOptions(redaction=RedactionOptions(enabled=False), repair=keep)
    for key in source.partitions():
        for session in read_sessions(source, key, as_it_is):
            calls = {
                call["id"]: (call["function"]["name"], call["function"]["arguments"])
                for message in session.messages
                for call in message.get("tool_calls", ())
            }
            answered = [
                calls[message["tool_call_id"]]
                for message in session.messages
                if message["role"] == "tool"
            ]
            truth = asked[key.project, key.agent, (session.task_id or "").split("/")[1]]
            assert [(name, json.loads(raw)) for name, raw in answered] == [
                (name, json.loads(raw)) for name, raw in truth
            ], session.session_id
            compared += len(truth)
    assert compared == 7860


def test_the_attacked_runs_know_which_injection_was_obeyed(real_traces: Path) -> None:
    sessions = read(
        AgentDojoSource(real_traces / "agentdojo" / "important_instructions_slack_3pipelines.jsonl")
    )
    assert len(sessions) == 315 and len({session.agent for session in sessions}) == 3
    assert Counter(session.attack_succeeded for session in sessions) == {True: 155, False: 160}
    assert judged(sessions) == {"acceptable": 134, "unacceptable": 181}
    assert len({session.task_id for session in sessions}) == 21, (
        "each was attacked in five ways by three agents"
    )


def test_tau_bench_is_25_tasks_of_4_trials(real_traces: Path) -> None:
    sessions = read(TauBenchSource(real_traces / "tau-bench" / "gpt-4o-airline_tasks00-24.json"))
    assert len(sessions) == 100
    assert Counter(session.task_id for session in sessions) == {str(task): 4 for task in range(25)}
    assert judged(sessions) == {"unacceptable": 69, "acceptable": 31}
    assert {session.tools_origin for session in sessions} == {"none"}, (
        "airline_tools.json is taken only where a setting names it"
    )


def test_inspect_logs_of_both_forms_agree(real_traces: Path) -> None:
    source = InspectSource(real_traces / "inspect-logs")
    sessions = read(source)
    assert len(sessions) == 44 and judged(sessions) == {
        "acceptable": 23,
        "unacceptable": 9,
        None: 12,
    }, "one has a bare number"
    assert sum("without samples" in note for note in source.notes) == 4
    folder = real_traces / "inspect-logs" / "tests" / "log" / "test_eval_log"
    for name in ("log_formats", "log_read_sample"):
        (one,), (other,) = (
            read(InspectSource(folder / f"{name}.{form}")) for form in ("json", "eval")
        )
        assert (one.messages, one.scores, one.judgment, one.task_id) == (
            other.messages,
            other.scores,
            other.judgment,
            other.task_id,
        )
    (browser,) = read(
        InspectSource(
            folder.parents[1] / "analysis" / "test_logs" / "2025-05-12T20-27-36-04-00_browser.json"
        )
    )
    assert len(browser.tools) > 5 and browser.usage["total_tokens"] == 15516
    assert "attachment://" not in json.dumps([browser.messages, browser.tools])


def test_toolbench_and_swe_agent_are_read_whole(real_traces: Path) -> None:
    answers = read(ToolBenchSource(real_traces / "toolbench"))
    assert judged(answers) == {"acceptable": 9, "unacceptable": 6} and all(
        session.tools for session in answers
    )
    assert sum(len(session.messages) == 1 for session in answers) == 2, "two have no finished chain"
    runs = read(SWEAgentSource(real_traces / "swe-agent"))
    assert len(runs) == 19 and judged(runs) == {None: 19}
    assert len({session.session_id for session in runs}) == 19


@pytest.mark.parametrize(
    "name",
    [
        "tau-bench/airline_tools.json",
        "tau-bench/MockAirlineDomainEnv-few_shot.jsonl",
        "stores/openai_agents_labels.json",
    ],
)
def test_what_is_no_conversation_is_refused_with_what_it_is(name: str, real_traces: Path) -> None:
    with pytest.raises(StoreError, match=r"it has records with the fields \w+"):
        open_source(real_traces / name)


def test_every_file_is_in_a_store_or_left_out_by_name(real_traces: Path) -> None:
    found = find(real_traces)
    assert not found.errors
    known = {reader.name for _, reader in found.stores}
    assert {
        "agentdojo",
        "inspect_ai",
        "omniagents",
        "openai_agents",
        "swe_agent",
        "tau_bench",
        "toolbench",
    } <= known
    said = [str(path) for path in found.unknown] + [
        note for where, reader in found.stores for note in _notes(reader(where))
    ]
    for name in (
        "airline_tools.json",
        "MockAirlineDomainEnv-few_shot.jsonl",
        "G1_query.json",
        "log_invalid.txt",
        "anthropic_demo.yaml",
    ):
        assert any(name in sentence for sentence in said), f"{name} is passed over without a word"


def _notes(source: TraceSource) -> list[str]:
    source.partitions()
    return source.notes
