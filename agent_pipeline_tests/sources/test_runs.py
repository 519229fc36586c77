"""Evaluation runs: verdicts, trials, errors and scores, kept where the source has them."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent_pipeline.sessions.session import Session, list_calls
from agent_pipeline.sources import open_source
from agent_pipeline.sources.benchmarks.agentdojo import AgentDojoSource
from agent_pipeline.sources.benchmarks.inspect_ai import InspectSource
from agent_pipeline.sources.benchmarks.omniagents_eval import OmniagentsEvalSource
from agent_pipeline.sources.benchmarks.swe_agent import SWEAgentSource
from agent_pipeline.sources.benchmarks.swink import SwinkSource
from agent_pipeline.sources.benchmarks.tau2 import Tau2Source
from agent_pipeline.sources.benchmarks.tau_bench import TauBenchSource
from agent_pipeline.sources.benchmarks.toolbench import ToolBenchSource
from agent_pipeline_tests.sources.samples import (
    LEGACY,
    OMNIAGENTS_RESULTS,
    SWINK_SET,
    TOOL,
    WRITTEN,
    archive,
    document,
    dojo_run,
    inspect_header,
    inspect_sample,
    lines,
    put,
    swink_result,
    tau_run,
    toolbench_answer,
    trajectory,
)
from agent_pipeline_tests.sources.test_plain import read


def test_a_tau_bench_run_that_broke_is_an_error_without_a_verdict(tmp_path: Path) -> None:
    runs = [tau_run(3, 0, 1.0), tau_run(3, 1, 0.0), tau_run(4, 0, 0.0, error="connection lost")]
    good, bad, broken = read(TauBenchSource(put(tmp_path, {"gpt.json": document(runs)})))
    assert [(each.session_id, each.task_id, each.trial) for each in (good, bad)] == [
        ("task3-trial0", "3", "0"),
        ("task3-trial1", "3", "1"),
    ]
    assert [(each.judgment, each.score) for each in (good, bad, broken)] == [
        ("acceptable", 1.0),
        ("unacceptable", 0.0),
        (None, None),
    ]
    assert broken.error == "connection lost" and broken.scores == {"reward": 0.0}
    assert not good.tools and good.tools_origin == "none"


@pytest.mark.parametrize("form", ["tau2.json", "tau2"])
def test_what_the_user_of_tau2_did_with_tools_of_its_own_is_left_out_and_counted(form: str) -> None:
    source = open_source(WRITTEN / form)
    (session,) = read(source)
    assert (source.name, [str(key) for key in source.partitions()], source.notes) == (
        "tau2_bench",
        ["mock/openai-m-1-c04f6310"],
        source.notes,
    )
    assert [note for note in source.notes if "were changed" not in note] == []
    greeting, asked, called, told, answered, stopped = session.messages
    assert (greeting["weight"], asked["content"], stopped["content"]) == (
        0,
        "I finished task_1: mark it completed.",
        "###STOP###",
    )
    assert (
        list_calls([called])[0][0] == "update_task_status"
        and told["tool_call_id"] == called["tool_calls"][0]["id"] == "c2"
    )
    assert '"status": "completed"' in told["content"] and answered["content"] == "It is marked."
    assert (session.skipped, session.damage) == ({"user_call": 2, "user_result": 2}, {})
    assert (session.judgment, session.scores["reward"], session.scores["ACTION"]) == (
        "unacceptable",
        0.0,
        1.0,
    )
    assert (session.task_id, session.trial, session.usage) == (
        "update_task_with_user_tools", "0", {"completion_tokens": 4, "prompt_tokens": 20},
    )  # fmt: skip


def test_a_simulation_of_tau2_that_the_infrastructure_ended_is_an_error_and_one_of_voice_says_what_it_has(
    tmp_path: Path,
) -> None:
    raw = json.loads((WRITTEN / "tau2.json").read_text(encoding="utf-8"))
    (whole,) = raw["simulations"]
    broken = whole | {"id": "b", "termination_reason": "infrastructure_error", "reward_info": None}
    voice = whole | {"id": "v", "messages": None, "ticks": [{}, {}]}
    first, second = sorted(
        read(
            Tau2Source(put(tmp_path, {"r.json": document(raw | {"simulations": [broken, voice]})}))
        ),
        key=by_id,
    )
    assert (first.error, first.judgment, first.score) == ("infrastructure_error", None, None)
    assert (second.messages, second.damage) == ([], {"unread": 1})


def by_id(session: Session) -> str:
    return session.session_id


@pytest.mark.parametrize(("tool", "ends"), [("transfer_to_human_agents", True), ("find", False)])
def test_a_tau_bench_run_ends_with_the_tool_that_hands_the_user_over(
    tool: str, ends: bool, tmp_path: Path
) -> None:
    run = tau_run(3, 0, 1.0)
    run["traj"] = [
        *run["traj"][:3],
        {"role": "tool", "tool_call_id": "c1", "name": tool, "content": "done"},
    ]
    (session,) = read(TauBenchSource(put(tmp_path, {"gpt.json": document([run])})))
    assert session.ends_on_tool is ends and session.messages[-1]["role"] == "tool"


@pytest.mark.parametrize(("tool", "ends"), [("Finish", True), ("find", False)])
def test_a_toolbench_run_ends_with_the_call_of_finish(
    tool: str, ends: bool, tmp_path: Path
) -> None:
    chain = [
        LEGACY[0],
        {"role": "assistant", "content": None, "function_call": {"name": tool, "arguments": "{}"}},
    ]
    (session,) = read(
        ToolBenchSource(put(tmp_path, {"7_small.json": document(toolbench_answer(True, [chain]))}))
    )
    assert (session.ends_on_tool, session.judgment) == (ends, "acceptable")


def test_each_results_file_of_a_folder_is_an_agent(tmp_path: Path) -> None:
    source = TauBenchSource(
        put(
            tmp_path / "tau",
            {f"{name}.json": document([tau_run(0, 0, 1.0)]) for name in ("gpt-4o", "sonnet")},
        )
    )
    assert [str(key) for key in source.partitions()] == ["tau/gpt-4o", "tau/sonnet"]


def test_a_local_pipeline_is_named_by_its_path_and_its_results_stay_in_place(
    tmp_path: Path,
) -> None:
    (session,) = read(AgentDojoSource(put(tmp_path, {"runs.jsonl": lines(dojo_run())})))
    assert (session.project, session.agent, session.model_id) == (
        "garden",
        "keeper-70b",
        "keeper-70b",
    )
    assert (session.task_id, session.trial, session.judgment) == (
        "garden/user_task_0",
        "1",
        "acceptable",
    )
    assert [message["role"] for message in session.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert (
        session.messages[2]["tool_calls"][0]["id"] == ""
        and session.messages[3]["tool_call_id"] == ""
    )
    assert session.messages[3]["content"] == "ValueError: no shed", (
        "the error is what the model was told"
    )


def test_runs_in_their_own_folders_have_their_agent_from_the_folder(tmp_path: Path) -> None:
    run = {name: value for name, value in dojo_run().items() if name != "_path"}
    source = AgentDojoSource(
        put(
            tmp_path,
            {
                f"runs/{name}/garden/user_task_0/none/none.json": document(run)
                for name in ("a", "b")
            },
        )
    )
    assert [str(key) for key in source.partitions()] == ["garden/a", "garden/b"]


def test_an_attacked_run_is_a_trial_of_the_users_task_and_security_means_an_obeyed_injection_only_there(
    tmp_path: Path,
) -> None:
    attacked = {"attack_type": "important_instructions", "injection_task_id": "injection_task_1"}
    runs = [
        dojo_run(),
        dojo_run(**attacked),
        dojo_run(**attacked, security=False, utility=False),
        dojo_run(error="no server", utility=False),
    ]
    sessions = read(AgentDojoSource(put(tmp_path, {"runs.jsonl": lines(*runs)})))
    seen = {
        (each.task_id, each.trial, each.attack_succeeded, each.judgment, each.error)
        for each in sessions
    }
    assert seen == {
        ("garden/user_task_0", "1", None, "acceptable", None),
        ("garden/user_task_0", "injection_task_1/1", True, "acceptable", None),
        ("garden/user_task_0", "injection_task_1/2", False, "unacceptable", None),
        ("garden/user_task_0", "2", None, None, "no server"),
    }


@pytest.mark.parametrize("zipped", [False, True])
def test_an_inspect_sample_has_its_attachments_tools_scores_and_reasoning(
    zipped: bool, tmp_path: Path
) -> None:
    samples = [
        inspect_sample(1, "C"),
        inspect_sample(2, {"fact": 0.5, "form": "I"}),
        inspect_sample(3, "I", error={"message": "no memory"}),
    ]
    if zipped:
        files = {
            "log.eval": archive(
                {"header.json": inspect_header()}
                | {f"samples/{each['id']}_epoch_1.json": each for each in samples}
            )
        }
    else:
        files = {"log.json": document(inspect_header(samples=samples))}
    first, second, third = read(InspectSource(put(tmp_path, files)))
    assert (first.project, first.agent, first.session_id, first.model_id) == (
        "garden",
        "tiny-one-ec8a4182",
        "r1:1:1",
        "tiny/one",
    )
    assert first.messages[0]["content"] == "Where is the spade?" == first.context["input"]
    assert first.messages[2]["content"] == "too slow"
    assert first.reasoning == [{"message": 1, "text": "Look."}]
    assert first.tools == [TOOL] and first.usage == {"input_tokens": 7, "output_tokens": 2}
    assert (first.judgment, first.scores, first.task_id, first.trial) == (
        "acceptable",
        {"match": 1.0},
        "1",
        "1",
    )
    assert (
        first.created_at is not None
        and first.ended_at is not None
        and first.created_at < first.ended_at
    )
    assert (second.judgment, second.scores, second.score) == (
        "unacceptable",
        {"match/fact": 0.5, "match/form": 0.0},
        0.0,
    ), "only the grade says good or bad"
    assert (third.judgment, third.score, third.error) == (None, None, "no memory")


def test_parts_of_results_that_are_none_are_counted_not_dropped(tmp_path: Path) -> None:
    (first, second) = read(
        InspectSource(
            put(
                tmp_path,
                {"log.json": document(inspect_header(samples=[inspect_sample(1, "C"), "gone"]))},
            )
        )
    )
    assert [session.damage for session in (first, second)] == [{}, {"invalid_item": 1}]
    broken = swink_store(
        tmp_path,
        **{"results/garden/300.json": swink_result(300, "pass", 1.0, case_results=["gone"])},
    )
    assert len(read(broken)) == 2
    assert any("1 records of swink_eval belong to no session" in note for note in broken.notes)


def test_a_log_without_samples_says_so(tmp_path: Path) -> None:
    source = InspectSource(put(tmp_path, {"log.json": document(inspect_header())}))
    assert source.partitions() == []
    assert source.notes == [
        f"{source.path} is an Inspect log without samples: there is nothing in it to read."
    ]


def test_a_zip_without_its_header_is_read_with_a_note(tmp_path: Path) -> None:
    source = InspectSource(
        put(tmp_path, {"log.eval": archive({"samples/1_epoch_1.json": inspect_sample(1, "C")})})
    )
    (session,) = read(source)
    assert session.judgment == "acceptable" and session.model_id is None
    assert "has no header that can be read" in source.notes[0]


def test_the_last_prompt_of_a_toolbench_chain_is_the_conversation(tmp_path: Path) -> None:
    files = {
        "G1_answer/7_small.json": document(toolbench_answer(True, [LEGACY[:2], LEGACY])),
        "G2_answer/8_small.json": document(toolbench_answer(False, [])),
    }
    source = ToolBenchSource(put(tmp_path / "answers", files))
    won, lost = read(source)
    assert (str(source.partitions()[0]), won.session_id, won.task_id) == (
        "answers/small",
        "G1_answer:7_small",
        "G1_answer/7",
    )
    assert [message["role"] for message in won.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert (won.judgment, won.usage, won.tools) == ("acceptable", {"total_tokens": 99}, [TOOL])
    assert (lost.judgment, [message["role"] for message in lost.messages]) == (
        "unacceptable",
        ["user"],
    )
    assert any("8_small.json has no finished chain" in note for note in source.notes)


def test_a_trajectory_leaves_demonstrations_out_and_a_second_agent_is_a_session_of_its_own(
    tmp_path: Path,
) -> None:
    source = SWEAgentSource(
        put(
            tmp_path / "runs",
            {"try-1/shed-1/shed-1.traj": document(trajectory()), "try-2/shed-2.traj": b"[]"},
        )
    )
    main, side = read(source)
    assert str(source.partitions()[0]) == "runs/try-1"
    assert [message["content"] for message in main.messages] == [
        "You program.",
        "Mend the shed.",
        "I look.",
        "shed.py",
        "Done.",
    ]
    assert main.messages[3]["tool_call_id"] == "c1"
    assert main.skipped == {"demonstration": 1}
    assert (main.judgment, main.cost_usd, main.usage["tokens_sent"], main.model_id) == (
        None,
        0.25,
        100,
        "small-coder",
    )
    assert main.context["exit_status"] == "submitted" and main.error is None
    assert (side.session_id, side.parent_session_id, len(side.messages)) == (
        f"{main.session_id}:reviewer",
        main.session_id,
        2,
    )
    assert side.usage == {} and side.cost_usd is None, "the run's tokens are counted once"


def test_a_trajectory_that_the_environment_broke_is_an_error(tmp_path: Path) -> None:
    info = {"exit_status": "submitted (exit_environment_error)"}
    session, _ = read(SWEAgentSource(put(tmp_path, {"a.traj": document(trajectory(info=info))})))
    assert session.error == "submitted (exit_environment_error)"


class AllRunsSource(SWEAgentSource):
    """A reader of a user for whom all runs are one agent."""

    name = "all_runs"

    def identify(self, record: Any, location: Any) -> Any:
        return super().identify(record, location)._replace(agent="swe-agent")


def test_runs_of_one_agent_by_a_readers_own_name(tmp_path: Path) -> None:
    """The runs of an agent are one partition, and runs of an instance are trials of one task."""
    names = ("try-1/shed-1/shed-1.traj", "try-2/shed-1/shed-1.traj")
    source = AllRunsSource(
        put(tmp_path / "runs", dict.fromkeys(names, document(trajectory(history=[]))))
    )
    assert [str(key) for key in source.partitions()] == ["runs/swe-agent"]
    sessions = read(source)
    assert [session.session_id for session in sessions] == [
        "try-1:shed-1:shed-1",
        "try-2:shed-1:shed-1",
    ]
    assert {session.task_id for session in sessions} == {"shed-1"}


METRICS = (("judge", 0.0), ("judge", 0.5), (None, 0.25), (None, 1.0))


def swink_store(tmp_path: Path, **more: Any) -> SwinkSource:
    results = {
        "results/garden/100.json": swink_result(100, "pass", 0.5),
        "results/garden/200.json": swink_result(200, "fail", 0.25),
    }
    files = results | {"sets/garden.json": SWINK_SET} | more
    return SwinkSource(
        put(tmp_path / "store", {name: document(value) for name, value in files.items()})
    )


def test_metrics_of_a_swink_result_that_share_a_name_all_count(tmp_path: Path) -> None:
    result = swink_result(100, "pass", 0.5)
    result["case_results"][0]["metric_results"] = [
        {"evaluator_name": name, "score": {"value": value}} for name, value in METRICS
    ]
    (session, _) = read(swink_store(tmp_path, **{"results/garden/100.json": result}))
    assert sorted(session.scores.values()) == [0.0, 0.25, 0.5, 1.0] and session.score == 0.4375


def test_the_runs_of_a_swink_set_are_trials_of_its_cases(tmp_path: Path) -> None:
    source = swink_store(tmp_path)
    first, second = read(source)
    assert [str(key) for key in source.partitions()] == ["garden/tiny"] and not source.notes
    assert (first.task_id, first.trial, second.task_id, second.trial) == (
        "spade",
        "100",
        "spade",
        "200",
    )
    assert [message["role"] for message in first.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert len(first.messages[2]["tool_calls"]) == 1, (
        "a call that is in the message and beside it is one call"
    )
    assert first.reasoning == [{"message": 2, "text": "Look in the shed."}]
    assert (first.scores, first.score, first.judgment) == (
        {"trajectory": 0.5, "response": 1.0},
        0.75,
        "acceptable",
    )
    assert (first.cost_usd, first.usage["total"], first.model_id, second.judgment) == (
        0.3,
        14,
        "tiny",
        "unacceptable",
    )


def test_a_set_that_is_missing_or_no_file_name_is_noted(tmp_path: Path) -> None:
    more = {
        "results/x/1.json": swink_result(1, "pass", 1.0, eval_set_id="../../etc"),
        "results/y/2.json": swink_result(2, "pass", 1.0, eval_set_id="y"),
    }
    source = swink_store(tmp_path, **more)
    sessions = read(source)
    assert len(sessions) == 4
    assert any("'../../etc'" in note for note in source.notes)
    assert any("The prompts of y are not known" in note for note in source.notes)


def test_a_summary_without_conversations_is_refused_with_a_sentence(tmp_path: Path) -> None:
    report = {
        "schema_version": "043",
        "eval_set": {"id": "garden"},
        "cases": [{"case_id": "spade", "verdict": "pass"}],
        "timestamp": 1,
    }
    source = SwinkSource(put(tmp_path, {"eval-result.json": document(report)}))
    assert SwinkSource.detect(source.path) and source.partitions() == []
    assert source.notes == [
        f"{source.path} is a summary without conversations: give the results themselves (results/<set>/<time>.json)."
    ]


def test_the_results_of_one_prompt_are_its_trials(tmp_path: Path) -> None:
    source = OmniagentsEvalSource(put(tmp_path, {"results.json": document(OMNIAGENTS_RESULTS)}))
    good, bad, broken = read(source)
    assert str(source.partitions()[0]) == "results/keeper"
    assert [(each.task_id, each.trial) for each in (good, bad)] == [("p1", "1"), ("p1", "2")]
    assert str(broken.task_id).startswith("prompt:") and "Where" not in str(broken.task_id), (
        "no words of a conversation in a key"
    )
    assert (good.judgment, good.scores, bad.judgment, bad.scores) == (
        "acceptable",
        {"answered": 1.0},
        "unacceptable",
        {"answered": 0.0},
    )
    assert (broken.judgment, broken.error, len(broken.messages)) == (None, "no server", 5)
