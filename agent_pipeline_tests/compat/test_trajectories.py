"""Trajectories: the form, running agents, an endpoint with real tools, what is good enough, and rows."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.compat.sage.trajectories.collector import CollectorConfig, TrajectoryCollector
from agent_pipeline.compat.sage.trajectories.conversion import (
    SFTConversionConfig,
    TrajectoryFilter,
    TrajectoryToSFTConverter,
    collect_and_convert,
    render_chatml_text,
    write_react_text,
)
from agent_pipeline.compat.sage.trajectories.endpoint_agent import EndpointAgent, make_tool_schema
from agent_pipeline.compat.sage.trajectories.trajectory import (
    AgentTrajectory,
    TrajectoryStep,
    load_trajectories,
    make_run_messages,
    make_run_session,
    make_trajectory,
    save_trajectories,
)
from agent_pipeline.datasets.ledger import Ledger
from agent_pipeline.datasets.preferences import normalize_calls
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.errors import DataError, InfrastructureError, SettingsError, StoreError
from agent_pipeline.judging.llm_client import Endpoint
from agent_pipeline.sessions.repair import repair_messages
from agent_pipeline_tests.datasets.chats import answers, calls, chats, says, session, user
from agent_pipeline_tests.judging.endpoint import endpoint, refuses
from agent_pipeline_tests.judging.endpoint import says as replies

STEPS = [
    TrajectoryStep("I look.", "find", {"what": "spade"}, "in the shed", 0.5),
    TrajectoryStep("", "finish", {"answer": "It is in the shed."}, "", 0.5),
]
CHAT = [user("Where?"), calls(("a", "find", {})), answers("a", "shed"), says("There.")]
GOOD = AgentTrajectory("t1", "Where is the spade?", STEPS, True, 1.0)


def find(what: str, places: int = 1) -> dict[str, str]:
    """Finds a thing."""
    if what == "gold":
        raise LookupError("there is none")
    return {"place": "shed", "what": what, "places": str(places)}


def called(*made: tuple[str, str], words: str | None = None) -> tuple[int, dict[str, str], str]:
    """A completion that calls tools."""
    status, headers, body = replies(words)
    value = json.loads(body)
    value["choices"][0] |= {"finish_reason": "tool_calls"}
    value["choices"][0]["message"]["tool_calls"] = [
        {
            "id": f"id{number}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        for number, (name, arguments) in enumerate(made)
    ]
    return status, headers, json.dumps(value)


# The form


def test_a_trajectory_is_a_chat_with_its_calls_and_results() -> None:
    assert make_run_messages(GOOD) == [
        user("Where is the spade?"),
        calls(("call_1", "find", {"what": "spade"}), text="I look."),
        answers("call_1", "in the shed"),
        says("It is in the shed."),
    ]
    assert GOOD.answer == "It is in the shed."
    assert AgentTrajectory("t", "x", [TrajectoryStep("Done.")]).answer == "Done."
    assert AgentTrajectory("t", "x", STEPS[:1]).answer is None


def test_a_tool_called_finish_that_does_more_than_answer_is_a_call() -> None:
    for step in (
        TrajectoryStep("", "finish", {"a": "x", "b": "y"}),
        TrajectoryStep("", "finish", {"a": "x"}, "finished"),
    ):
        assert make_run_messages(AgentTrajectory("t", "x", [step]))[1]["tool_calls"]


@given(chats())
@settings(max_examples=100)
def test_a_session_survives_being_a_trajectory(messages) -> None:
    made = make_run_messages(
        make_trajectory(session("s", [{"role": "system", "content": "Be kind."}, *messages]))
    )
    assert normalize_calls(made) == normalize_calls(
        [{"role": "system", "content": "Be kind."}, *messages]
    )


@given(
    st.text(),
    st.dictionaries(st.text(), st.text() | st.integers() | st.none(), max_size=3),
    st.none() | st.text(),
)
def test_a_file_gives_back_what_was_saved(tmp_path_factory, text, values, observation) -> None:
    path = tmp_path_factory.getbasetemp() / "some.jsonl"
    text, observation = (
        each and each.encode("utf-8", "replace").decode() for each in (text, observation)
    )
    made = [AgentTrajectory("t", text, [TrajectoryStep(text, "f", values, observation)]), GOOD]
    save_trajectories(path, made)
    assert load_trajectories(path) == made


def test_a_line_that_is_no_trajectory_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(
        '{"task_id": "a", "instruction": "b", "more": 1}\n\n{"task_id": "a"}\n', encoding="utf-8"
    )
    with pytest.raises(DataError, match=r"Line 3 of .*instruction"):
        load_trajectories(path)
    with pytest.raises(StoreError, match="cannot be read"):
        load_trajectories(tmp_path / "none.jsonl")


# Collecting


@pytest.mark.parametrize(
    ("form", "action", "success", "reward"),
    [
        (GOOD, "find", True, 1.0),
        ({"messages": CHAT, "success": True}, "find", True, 1.0),
        (
            {"steps": [{"thought": "a", "action": "find"}, {"thought": "There."}], "reward": 0.75},
            "find",
            None,
            0.75,
        ),
        ("There.", "", None, None),
    ],
)
def test_an_agent_may_answer_with_a_whole_run(form, action, success, reward) -> None:
    collector = TrajectoryCollector(lambda task: form, CollectorConfig(require_success=False))
    run = collector.collect_single({"task_id": 7, "instruction": "Where is the spade?"})
    assert (run.task_id, run.error, bool(run.answer), run.steps[0].action) == (
        "7",
        None,
        True,
        action,
    )
    assert (run.success, run.total_reward) == (success, reward)


def test_an_agent_may_be_asynchronous_in_a_loop_too() -> None:
    async def agent(task):
        await asyncio.sleep(0)
        return f"{task}!"

    async def notebook():
        return TrajectoryCollector(agent).collect_single("Where?")

    assert (
        TrajectoryCollector(agent).collect_single("Where?").answer
        == asyncio.run(notebook()).answer
        == "Where?!"
    )


def test_an_agent_that_yields_steps_is_stopped_at_the_limit() -> None:
    made, stopped = [], []

    def endless(task):
        try:
            while True:
                made.append(task)
                yield TrajectoryStep("again", "find", {}, "nothing", 1.0)
        finally:
            stopped.append(task)

    run = TrajectoryCollector(
        endless, CollectorConfig(max_steps=3), judge=lambda run: True
    ).collect_single("Where?")
    assert (len(made), len(run.steps), run.cut, run.success, run.total_reward) == (
        3,
        3,
        True,
        False,
        3.0,
    )
    assert stopped == ["Where?"], "an agent that is stopped is told so"


def test_an_answer_at_the_limit_is_no_cut() -> None:
    run = TrajectoryCollector(
        lambda task: iter(STEPS), CollectorConfig(max_steps=2), judge=lambda run: 1.0
    ).collect_single("Where?")
    assert (run.cut, run.success, run.total_reward) == (False, True, 1.0)


def test_every_task_is_collected_or_left_out_with_a_reason() -> None:
    def agent(task):
        if task == "broken":
            raise ConnectionError("no database")
        return {"steps": [{"thought": task}], "success": {"good": True, "bad": False}.get(task)}

    collector = TrajectoryCollector(agent)
    assert [run.instruction for run in collector.collect(["good", "broken", "bad", "unknown"])] == [
        "good"
    ]
    assert collector.counts == {
        "tasks": 4,
        "collected": 1,
        "infrastructure_error": 1,
        "unsuccessful": 1,
        "success_unknown": 1,
    }
    failed = dict(collector.dropped)["infrastructure_error"]
    assert (failed.success, failed.total_reward, failed.error) == (
        None,
        None,
        "ConnectionError: no database",
    )


def test_an_infrastructure_that_fails_every_run_is_an_error_and_is_soon_left_alone() -> None:
    tried = []

    def agent(task):
        tried.append(task)
        raise InfrastructureError("The shop is closed: open it.")

    collector = TrajectoryCollector(agent)
    with pytest.raises(DataError, match=r"failed in all 5 runs.*9 tasks.*: The shop is closed"):
        collector.collect([f"task {number}" for number in range(9)])
    assert len(tried) == 5 and collector.counts["not_run"] == 4


@pytest.mark.parametrize(
    ("task", "answer", "says_why"),
    [
        ("", "x", "has no instruction"),
        ({"task_id": "a"}, "x", "has no instruction"),
        (None, "x", "has no instruction"),
        ("x", 7, "value of type int"),
    ],
)
def test_a_task_without_words_and_an_answer_that_is_no_run_are_refused(
    task, answer, says_why
) -> None:
    with pytest.raises(DataError, match=says_why):
        TrajectoryCollector(lambda task: answer).collect([task])


def test_a_run_that_was_recorded_badly_is_neither_good_nor_bad() -> None:
    reused = [
        user("x"),
        calls(("", "f", {})),
        answers("", "1"),
        calls(("", "g", {})),
        answers("", "2"),
        says("Done."),
    ]
    orphan = [user("x"), answers("a", "1"), says("Done.")]
    good, bad = (
        TrajectoryCollector(
            lambda task, form=form: {"messages": form, "success": True}
        ).collect_single("x")
        for form in (reused, orphan)
    )
    assert [step.observation for step in good.steps] == ["1", "2", None] and good.success
    assert (
        bad.error is not None
        and bad.error.startswith("the run was recorded with a result without a call")
        and bad.success is None
    )


def test_a_step_that_cannot_be_stored_costs_its_run_and_one_that_is_none_is_refused(
    tmp_path: Path,
) -> None:
    config = CollectorConfig(path=tmp_path / "x.jsonl", require_success=False)
    steps = {
        "nan": TrajectoryStep("", "f", {"x": float("nan")}),
        "fine": TrajectoryStep("half \ud83d", "", {}, None, float("nan")),
    }
    collector = TrajectoryCollector(lambda task: iter([steps[task]]), config)
    (run,) = collector.collect(["nan", "fine"])
    assert (run.steps, run.total_reward) == ([TrajectoryStep("half \ufffd")], None)
    assert [
        each.error and each.error.split(":")[0] for each in load_trajectories(tmp_path / "x.jsonl")
    ] == ["ValueError", None]
    for wrong in (
        TrajectoryStep("", "f", {}, {"a": 1}),
        {"thought": 1},
        7,
        {"action_input": object()},
    ):
        with pytest.raises(DataError, match="invalid step"):
            TrajectoryCollector(lambda task, wrong=wrong: iter([wrong])).collect_single("x")


def test_a_judge_that_raises_costs_its_own_run() -> None:
    run = TrajectoryCollector(lambda task: "x", judge=lambda run: 1 / 0).collect_single("x")
    assert (run.error, run.success) == ("ZeroDivisionError: division by zero", None)


@pytest.mark.parametrize("as_they_come", [True, False])
def test_a_collection_goes_on_where_it_was_stopped(tmp_path: Path, as_they_come: bool) -> None:
    path, ran = tmp_path / "runs" / "x.jsonl", []
    config = CollectorConfig(path=path, save_intermediate=as_they_come)

    def agent(task):
        ran.append(task)
        if task == "b" and len(ran) == 2:
            raise ConnectionError("gone")
        return {"steps": [{"thought": task}], "success": task != "c"}

    assert len(TrajectoryCollector(agent, config).collect(["a", "b", "c"])) == 1
    assert [run.error for run in load_trajectories(path)] == [None, "ConnectionError: gone", None]
    with path.open("a") as file:
        file.write('{"task_id": "half')  # the writer was killed
    collector = TrajectoryCollector(agent, config)
    assert [run.instruction for run in collector.collect(["a", "b", "c", "a"])] == ["a", "b", "a"]
    assert ran == ["a", "b", "c", "b", "a"] and collector.counts["known_before"] == 2
    assert sorted(run.instruction for run in load_trajectories(path)) == ["a", "a", "b", "c"]


def test_what_is_collected_and_written_is_redacted(tmp_path: Path) -> None:
    steps = [
        TrajectoryStep(
            "", "mail", {"to": "jane.doe@example.com"}, "sent to jane.doe@example.com", 1.0
        ),
        TrajectoryStep("Done."),
    ]
    config = CollectorConfig(path=tmp_path / "x.jsonl")
    (run,) = TrajectoryCollector(lambda task: {"steps": steps, "success": True}, config).collect(
        ["Mail jane.doe@example.com"]
    )
    text = msgspec.json.encode(run).decode() + (tmp_path / "x.jsonl").read_text()
    assert "jane.doe" not in text and text.count("EMAIL_1") == 6


# An endpoint


def test_an_endpoint_calls_python_tools_and_is_told_what_they_say() -> None:
    script = [
        called(
            ("find", '{"what": "spade", "places": "2"}'),
            ("find", '{"what": "gold"}'),
            words="I look.",
        ),
        called(("dig", "{}"), ("find", '{"where": 1}'), ("find", "[1]")),
        replies("In the shed."),
    ]
    with endpoint(lambda request, number: script[number]) as server:
        agent = EndpointAgent(Endpoint(server.url, "m"), [find], "Be brief.")
        (run,) = TrajectoryCollector(agent, judge=lambda run: "shed" in (run.answer or "")).collect(
            [{"id": "t", "prompt": "Where?"}]
        )
    assert [step.observation for step in run.steps] == [
        '{"place":"shed","what":"spade","places":"2"}',
        '{"error":"there is none"}',
        '{"error":"no such tool"}',
        '{"error":"wrong arguments"}',
        '{"error":"wrong arguments"}',
        None,
    ]
    assert [step.parallel for step in run.steps] == [False, True, False, True, True, False]
    assert (run.success, run.model_id, run.system_prompt, run.tools) == (
        True,
        "m",
        "Be brief.",
        [make_tool_schema(find)],
    )
    first, _, last = server.requests
    assert first["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Where?"},
    ]
    assert first["tools"] == [make_tool_schema(find)] and first["temperature"] == 0
    assert [message["role"] for message in last["messages"]] == [
        "system",
        "user",
        "assistant",
        *["tool"] * 2,
        "assistant",
        *["tool"] * 3,
    ]
    assert last["messages"][3]["tool_call_id"] == "id0"
    with pytest.raises(DataError, match="broken:invalid_arguments"):
        TrajectoryToSFTConverter().convert_single(run)


@pytest.mark.parametrize(
    ("answer", "says_why"),
    [
        (refuses(500), "did not answer \\(InternalServerError"),
        (refuses(400), "did not answer \\(BadRequestError"),
        ((200, {}, "<html>"), "did not answer"),
        ((200, {}, '{"choices": []}'), "did not answer"),
        (
            (200, {}, replies("half an ans")[2].replace('"stop"', '"length"')),
            "was cut off at its longest answer: raise max_tokens",
        ),
    ],
)
def test_an_endpoint_that_does_not_answer_in_full_makes_no_bad_run(answer, says_why: str) -> None:
    with endpoint(lambda request, number: answer) as server:
        agent = EndpointAgent(Endpoint(server.url, "m", retries=0), [find])
        collector = TrajectoryCollector(agent, CollectorConfig(require_success=False))
        with pytest.raises(DataError, match=says_why):
            collector.collect(["Where?"])
        assert [reason for reason, _ in collector.dropped] == ["infrastructure_error"]


def test_an_endpoint_without_a_url_is_refused_at_once() -> None:
    with pytest.raises(SettingsError, match="URL"):
        EndpointAgent(Endpoint("localhost", "m"))


def test_a_tool_whose_infrastructure_fails_ends_the_run_without_a_verdict() -> None:
    def book(what: str) -> str:
        raise InfrastructureError("The booking system is down: start it.")

    with endpoint(lambda request, number: called(("book", '{"what": "x"}'))) as server:
        run = TrajectoryCollector(
            EndpointAgent(Endpoint(server.url, "m"), [book]), judge=lambda run: False
        ).collect_single("Book x")
    assert (run.error, run.success) == ("The booking system is down: start it.", None) and len(
        server.requests
    ) == 1


def test_a_tools_schema_is_its_signature() -> None:
    assert make_tool_schema(find) == {
        "type": "function",
        "function": {
            "name": "find",
            "description": "Finds a thing.",
            "parameters": {
                "type": "object",
                "properties": {
                    "what": {"type": "string"},
                    "places": {"type": "integer", "default": 1},
                },
                "required": ["what"],
                "additionalProperties": False,
            },
        },
    }
    assert (
        make_tool_schema(test_a_tools_schema_is_its_signature)["function"]["parameters"][
            "properties"
        ]
        == {}
    )
    for wrong, sentence in (
        (lambda x: x, "does not accept the tool name"),
        (positional, "cannot be passed by name"),
        (held_by_no_json, "cannot represent"),
    ):
        with pytest.raises(SettingsError, match=sentence):
            make_tool_schema(wrong)


class Unknown:
    """A type that no JSON is of."""


def positional(x: int, /) -> None: ...


def held_by_no_json(x: Unknown) -> None: ...


# Filtering and rows


def test_the_filter_says_why_each_was_dropped() -> None:
    def run(**changed):
        return msgspec.structs.replace(GOOD, **changed)

    runs = [
        GOOD,
        run(total_reward=0.4),
        run(total_reward=None),
        run(total_reward=float("nan")),
        run(success=False),
        run(success=None),
        run(success=False, cut=True),
        run(error="gone"),
        run(steps=STEPS * 2),
    ]
    chosen = TrajectoryFilter(max_steps=3)
    assert chosen.filter(runs) == [GOOD]
    assert chosen.get_stats(runs) == {
        "total": 9,
        "kept": 1,
        "dropped": {
            "infrastructure_error": 1,
            "max_steps": 1,
            "reward_below_min": 2,
            "reward_unknown": 1,
            "success_unknown": 1,
            "too_many_steps": 1,
            "unsuccessful": 1,
        },
    }
    assert len(TrajectoryFilter(require_success=False).filter(runs)) == 5, (
        "a failure of the infrastructure is never one"
    )


def test_a_chatml_row_is_the_chat_with_tools_and_lineage() -> None:
    tools = [make_tool_schema(find)]
    row = TrajectoryToSFTConverter(SFTConversionConfig(system_prompt="Be brief.")).convert_single(
        msgspec.structs.replace(GOOD, tools=tools)
    )
    assert (
        row["messages"] == [{"role": "system", "content": "Be brief."}, *make_run_messages(GOOD)]
        and row["tools"] == tools
    )
    assert (
        row["task_key"] == "t1"
        and row["session_id"].startswith("t1:")
        and len(row["content_sha256"]) == 64
    )


def test_an_alpaca_row_is_the_run_in_words() -> None:
    row = TrajectoryToSFTConverter(SFTConversionConfig("alpaca")).convert_single(GOOD)
    assert (row["instruction"], row["input"]) == ("Where is the spade?", "")
    assert row["output"].split("\n") == [
        "Thought: I look.",
        "Action: find",
        'Action Input: {"what": "spade"}',
        "Observation: in the shed",
        "Final Answer: It is in the shed.",
    ]
    assert "system" not in row and "tools" not in row


def test_without_observations_the_run_is_one_text_of_the_agents() -> None:
    (asked, told) = TrajectoryToSFTConverter(
        SFTConversionConfig(include_observation=False)
    ).convert_single(GOOD)["messages"]
    assert asked == user("Where is the spade?") and "Observation" not in told["content"]
    assert told == says(write_react_text(make_run_messages(GOOD), include_observations=False))


def test_chatml_text_is_what_the_template_of_training_renders() -> None:
    row = TrajectoryToSFTConverter(SFTConversionConfig("chatml_text")).convert_single(
        msgspec.structs.replace(GOOD, tools=[make_tool_schema(find)])
    )
    assert (
        row["text"].startswith("<|im_start|>system\n# Tools\n") and '"name":"find"' in row["text"]
    )
    assert row["text"].endswith(
        '<|im_start|>assistant\nI look.\n<tool_call>\n{"name":"find","arguments":{"what":"spade"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\n<tool_response>\nin the shed\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nIt is in the shed.<|im_end|>\n"
    )


def test_what_makes_no_row_is_counted() -> None:
    twice = AgentTrajectory(
        "t",
        "x",
        [TrajectoryStep("Which?", observation="That."), TrajectoryStep("Done.")],
        True,
        1.0,
    )
    invalid = AgentTrajectory(
        "t",
        "x",
        [TrajectoryStep("", "find", invalid_input="{", observation="?"), TrajectoryStep("Done.")],
        True,
        1.0,
    )
    silent = AgentTrajectory("t", "x", [], True, 1.0)
    for name, expected in (
        ("chatml", {"rows": 2}),
        ("alpaca", {"rows": 1, "not_one_user_message": 1}),
    ):
        converter = TrajectoryToSFTConverter(SFTConversionConfig(name))
        rows = converter.convert([GOOD, twice, invalid, silent])
        assert (
            converter.counts
            == {"trajectories": 4, "broken:invalid_arguments": 1, "no_assistant_message": 1}
            | expected
        )
        assert len(rows) == expected["rows"]
    with pytest.raises(DataError, match=r"task t .* alpaca \(not_one_user_message\)"):
        converter.convert_single(twice)


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(SettingsError, match="chatml, chatml_text, alpaca"):
        SFTConversionConfig("csv")
    with pytest.raises(SettingsError, match="`max_steps` of the collector is 0"):
        CollectorConfig(max_steps=0)


def test_one_call_collects_filters_and_converts() -> None:
    def agent(task):
        return {"steps": [TrajectoryStep(task)], "success": True, "reward": float(task == "good")}

    rows = collect_and_convert(agent, ["good", "poor"])
    assert [row["messages"] for row in rows] == [[user("good"), says("good")]]
    with pytest.raises(
        DataError, match=r"collected 1, reward_below_min 1, tasks 1\): lower `min_reward`"
    ):
        collect_and_convert(agent, ["poor"])
    assert len(collect_and_convert(agent, ["good", "poor"], min_reward=0.0)) == 2
    for side in ("train", "test"):
        ledger = Ledger.from_splits(SplitSizes(), {rows[0]["task_key"]: side})
        assert collect_and_convert(agent, ["good"], split=ledger) == [rows[0] | {"split": side}]


def test_real_sessions_keep_every_word_call_and_result_as_trajectories(real_traces: Path) -> None:
    from agent_pipeline.sources import open_source

    source = open_source(real_traces / "tau-bench" / "gpt-4o-airline_tasks00-24.json")
    sessions = [each for key in source.partitions() for each in source.sessions(key)]
    runs = []
    for each in sessions:
        each.messages = repair_messages(each.messages).messages
        runs.append(make_trajectory(each))
        assert normalize_calls(make_run_messages(runs[-1])) == normalize_calls(each.messages)
    converter = TrajectoryToSFTConverter()
    rows = converter.convert(TrajectoryFilter().filter(runs))
    assert len(rows) > 20 and converter.counts["rows"] == converter.counts["trajectories"]
    assert all(make_run_session(run).judgment for run in runs)
    assert "<tool_call>" in render_chatml_text(rows[0]["messages"], [])
