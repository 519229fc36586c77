"""The proof of a tape: a session never answers itself, and what proves the verdicts."""

import shutil
from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.datasets.sft_tables import HELDOUT_TABLE
from agent_pipeline.evaluation import replay_proof
from agent_pipeline.evaluation.episodes import play
from agent_pipeline.evaluation.replay_proof import (
    MIN_TASKS,
    MOST_PER_TASK,
    LeftOutSession,
    TapeProof,
    choose_rows,
    count_not_played,
    find_kind,
    leave_out,
    measure_agreement,
    prove_tape,
    replay_left_out,
)
from agent_pipeline.evaluation.stored_kinds import ACTING, NOT_ACTING, NOT_RECORDED
from agent_pipeline.evaluation.tape import Recording, SharedRead, TaskTape, add_tapes
from agent_pipeline.evaluation.wording import QuestionTurn, find_exchanges, list_exchanged_words
from agent_pipeline.sessions.session import Message
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.evaluation.test_replayed_world import ASKED, LOOK, REFUND, REFUSED
from agent_pipeline_tests.evaluation.test_tape import GOOD, KEY, TOOLS, call, recorded, say, session

WRONG = say("Refund K1.", LOOK, call("refund", '{"ok":true}', order="K1", amount=99))
POOL = [GOOD, ASKED, REFUSED, WRONG, say("Refund K1.", LOOK), say("Refund K1.", REFUND)]


@st.composite
def tapes(draw: st.DrawFn) -> dict[str, TaskTape]:
    """Tapes of two tasks. Each look-up that they share comes from any session."""
    recordings = {
        task: [
            Recording(f"{task}{index}", verdict, messages)
            for index, (messages, verdict) in enumerate(
                draw(
                    st.lists(
                        st.tuples(
                            st.sampled_from(POOL),
                            st.sampled_from(["acceptable", "unacceptable", None]),
                        ),
                        max_size=5,
                    )
                )
            )
        ]
        for task in "ab"
    }
    ids = [recording.session_id for group in recordings.values() for recording in group]
    sources = draw(st.lists(st.sampled_from([*ids, "other"]), max_size=1))
    shared = [SharedRead("find_order", '{"order":"K1"}', LOOK[1]["content"], i) for i in sources]
    return {task: TaskTape(group, ["find_order"], shared) for task, group in recordings.items()}


@given(tapes())
def test_session_never_answers_itself(by_task: dict[str, TaskTape]) -> None:
    """No result and no reply comes from the session that is replayed."""
    replayed = replay_left_out(by_task, TOOLS)
    for left_out in replayed:
        assert left_out.session_id not in left_out.sources
    for task, tape in by_task.items():
        for recording in tape.recordings:
            shortened = leave_out(tape, recording)
            assert recording.session_id not in shortened.session_ids
            others = {other.session_id for other in tape.recordings} - {recording.session_id}
            assert {other.session_id for other in shortened.recordings} == others, task


@given(tapes())
def test_which_sessions_are_replayed(by_task: dict[str, TaskTape]) -> None:
    """Every judged session is replayed, if another session of its task is good."""
    expected = {
        recording.session_id
        for tape in by_task.values()
        for recording in tape.recordings
        if recording.verdict
        and any(
            other.verdict == "acceptable" and other is not recording for other in tape.recordings
        )
    }
    assert {left_out.session_id for left_out in replay_left_out(by_task, TOOLS)} == expected


def test_session_that_only_it_recorded_is_not_settled() -> None:
    """A session that is alone in what it does would be settled by itself, and by nothing else."""
    tape = TaskTape(
        [Recording("a", "acceptable", GOOD), Recording("b", "unacceptable", WRONG)], ["find_order"]
    )
    replayed = {left_out.session_id: left_out for left_out in replay_left_out({"t": tape}, TOOLS)}
    assert list(replayed) == ["b"] and not replayed["b"].is_settled


def test_many_sessions_of_a_task() -> None:
    group = [Recording(f"s{index}", "acceptable", GOOD) for index in range(MOST_PER_TASK + 5)]
    replayed = replay_left_out({"t": TaskTape(group, ["find_order"])}, TOOLS)
    assert len(replayed) == MOST_PER_TASK and all(left_out.done for left_out in replayed)


def test_wording_of_a_task_is_learned_from_other_tasks() -> None:
    turns = [
        QuestionTurn(task, ((), ()), text, "It is the order K1.")
        for task, word in (("a", "mean"), ("b", "mean"), ("c", "want"), ("d", "want"))
        for text in (f"Which order do you {word}?", "Which order?")
    ]
    exchanges = find_exchanges(turns)
    assert {"mean", "want"} <= set(list_exchanged_words(exchanges))
    assert "mean" not in list_exchanged_words(exchanges, "a")
    assert "want" in list_exchanged_words(exchanges, "a")


@pytest.mark.parametrize(
    ("messages", "kind"), [([GOOD], ACTING), ([REFUSED], NOT_ACTING), ([GOOD, REFUSED], NOT_ACTING)]
)
def test_kind_of_a_task(messages: list[list[Message]], kind: str) -> None:
    """A bad session says nothing about the kind of its task."""
    group = [Recording(f"s{index}", "acceptable", one) for index, one in enumerate(messages)]
    bad = Recording("bad", "unacceptable", WRONG if kind == NOT_ACTING else REFUSED)
    assert find_kind(TaskTape([*group, bad], ["find_order"])) == kind


def sessions(good: int, bad: int, **values: Any) -> list[LeftOutSession]:
    """Settled sessions that agree, each of a task of its own."""
    return [
        LeftOutSession(f"{index} {is_good}", ACTING, "s", is_good, True, is_good, **values)
        for is_good, count in ((True, good), (False, bad))
        for index in range(count)
    ]


def proven(replayed: list[LeftOutSession]) -> list[str]:
    """The kinds of tasks on which the replayed world may decide."""
    return [proof.kind for proof in measure_agreement(replayed).proven]


class TestRule:
    enough = sessions(MIN_TASKS, MIN_TASKS)

    def test_enough_agree(self) -> None:
        assert proven(self.enough) == [ACTING]

    @pytest.mark.parametrize(
        ("good", "bad"), [(MIN_TASKS - 1, 200), (200, MIN_TASKS - 1), (200, 0)]
    )
    def test_too_few_of_one_verdict(self, good: int, bad: int) -> None:
        """Good sessions do not prove the verdicts on bad ones, however many there are."""
        assert proven(sessions(good, bad)) == []

    @pytest.mark.parametrize("is_good", [True, False])
    def test_wrong_verdicts(self, is_good: bool) -> None:
        """Agreement on the other sessions does not make up for it."""
        wrong = [
            LeftOutSession(f"wrong {index}", ACTING, "s", is_good, True, not is_good)
            for index in range(10)
        ]
        assert proven([*sessions(300, 300), *wrong[:5]]) == [ACTING]
        assert proven([*sessions(300, 300), *wrong]) == []

    def test_sessions_of_few_tasks(self) -> None:
        """Many sessions of one task are as one session."""
        assert proven(self.enough[:1] * 500 + self.enough[MIN_TASKS:]) == []

    def test_too_few_settled(self) -> None:
        undecided = LeftOutSession("u", ACTING, "s", True, False, False)
        assert proven([*self.enough, *[undecided] * len(self.enough)]) == [ACTING]
        assert proven([*self.enough, *[undecided] * (len(self.enough) + 1)]) == []

    def test_nothing_to_replay(self) -> None:
        assert proven([]) == []

    def test_reason(self) -> None:
        """The text says what is missing, and what helps."""
        proof = measure_agreement(sessions(200, 3))
        [acting, other] = proof.kinds
        assert not acting.good.shortfall and "3 of 3 settled bad sessions" in acting.shortfall
        assert other.shortfall and "log and judge more sessions per task" in str(proof)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def test_proof_from_the_lake(lake: Lake) -> None:
    """Only tasks with several judged sessions are replayed, and held-out tasks are counted."""
    rows = [
        session(f"{verdict}{number}{part}", messages, task_key=f"task:{number}", verdict=verdict)
        for number in range(3)
        for part in "xy"
        for messages, verdict in ((GOOD, "acceptable"), (WRONG, "unacceptable"))
    ]
    alone = session("alone", REFUSED, task_key="task:9")
    unjudged = [session(f"n{part}", GOOD, task_key="task:8", verdict=None) for part in "xy"]
    recorded(lake, *rows, alone, *unjudged)
    keys = pa.table({"task_key": ["task:0", "task:9", "task:8"]})
    lake.stage(HELDOUT_TABLE, KEY, keys.to_batches(), keys.schema).commit()
    proof = prove_tape(lake, KEY)
    acting, other = proof.kinds
    assert (acting.good.settled, acting.good.agreeing, acting.good.sessions) == (6, 6, 6)
    assert (acting.bad.settled, acting.bad.agreeing, acting.bad.tasks) == (6, 6, 3)
    assert (acting.heldout_tasks, other.heldout_tasks) == (1, 1) and other.sessions == 0
    playable = add_tapes(lake, KEY, [held_out(task) for task in ("task:0", "task:9")], False)
    assert [row["task_key"] for row in choose_rows(playable, [ACTING])] == ["task:0"]


class TestStoredProof:
    """A night needs the proof twice: for the episodes, and for the decision."""

    @pytest.fixture
    def made(self, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> list[None]:
        """One item for each time that the sessions are replayed. The proof is stored once."""
        made: list[None] = []

        def count(*args: Any, **options: Any) -> list[Any]:
            made.append(None)
            return play(*args, **options)

        monkeypatch.setattr(replay_proof, "play", count)
        self.put(lake, "xy")
        self.first = prove_tape(lake, KEY)
        assert len(made) == 1
        return made

    def put(self, lake: Lake, parts: str) -> None:
        recorded(lake, *(session(f"s{part}", task_key="task:0") for part in parts))

    def test_same_inputs(self, lake: Lake, made: list[None]) -> None:
        """A tape that was made again from the same sessions is the same tape."""
        self.put(lake, "xy")
        assert prove_tape(lake, KEY) == self.first and len(made) == 1

    def test_other_recordings(self, lake: Lake, made: list[None]) -> None:
        self.put(lake, "xyz")
        assert prove_tape(lake, KEY) != self.first and len(made) == 2

    def test_other_heldout_tasks(self, lake: Lake, made: list[None]) -> None:
        keys = pa.table({"task_key": ["task:0"]})
        lake.stage(HELDOUT_TABLE, KEY, keys.to_batches(), keys.schema).commit()
        assert prove_tape(lake, KEY) != self.first and len(made) == 2

    def test_surrogates(self, lake: Lake, made: list[None]) -> None:
        prove_tape(lake, KEY, surrogates=True)
        assert len(made) == 2

    def test_other_code(
        self, lake: Lake, made: list[None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(replay_proof, "code_version", lambda: {"code_sha256": "other"})
        assert prove_tape(lake, KEY) == self.first and len(made) == 2

    def test_damaged(self, lake: Lake, made: list[None]) -> None:
        [stored] = lake.finished(replay_proof.TAPE_PROOF, KEY)
        text = (stored.path / replay_proof.PROOF_FILE).read_text("utf-8")
        (stored.path / replay_proof.PROOF_FILE).write_text(text.replace("2", "9"), "utf-8")
        assert prove_tape(lake, KEY) == self.first and len(made) == 2

    def test_lake_that_cannot_be_written(
        self, lake: Lake, made: list[None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Somebody who may only read the lake still learns whether episodes are in force."""
        shutil.rmtree(lake.fs.local(lake.folder("models", replay_proof.TAPE_PROOF, KEY)))

        def refuse(*args: object) -> Path:
            raise PermissionError("read only")

        monkeypatch.setattr(lake, "building", refuse)
        assert prove_tape(lake, KEY) == self.first and len(made) == 2


def test_own_tools(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session is replayed with its own tools, as the episode of its row is, and one without tools
    with those that the calls show.
    """
    played: dict[str, Any] = {}

    def keep_tools(world: Any, rows: Any, player: Any, **options: Any) -> list[Any]:
        played.update({row["task_key"]: row["tools"] for row in rows})
        return play(world, rows, player, **options)

    monkeypatch.setattr(replay_proof, "play", keep_tools)
    tools = {"task:0": TOOLS, "task:1": [*TOOLS, TOOLS[0]], "task:2": []}
    recorded(
        lake,
        *(
            session(f"{task}{part}", task_key=task, tools=own)
            for task, own in tools.items()
            for part in "xy"
        ),
    )
    prove_tape(lake, KEY)
    assert played["task:0"] == TOOLS and played["task:1"] == tools["task:1"]
    assert [tool["function"]["name"] for tool in played["task:2"]] == ["find_order", "refund"]


def test_own_tools_with_surrogates(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls had made-up values, and an enum of their tools had the pseudonyms."""
    played: list[Any] = []

    def keep_rows(world: Any, rows: Any, player: Any, **options: Any) -> list[Any]:
        played.extend(rows)
        return play(world, rows, player, **options)

    monkeypatch.setattr(replay_proof, "play", keep_rows)
    refund: Any = deepcopy(TOOLS[0])
    refund["function"]["parameters"] = {
        "type": "object",
        "properties": {"order": {"type": "string", "enum": ["<EMAIL_1>"]}},
    }
    name = refund["function"]["name"]
    messages = say("Refund K1.", call(name, "ok", order="<EMAIL_1>"))
    recorded(lake, *(session(f"s{part}", messages, tools=[refund]) for part in "xy"))
    prove_tape(lake, KEY, surrogates=True)
    assert len(played) == 2
    for row in played:
        [value] = row["tools"][0]["function"]["parameters"]["properties"]["order"]["enum"]
        assert "@" in value and value in str(row["messages"])


@pytest.mark.parametrize(
    ("kinds", "not_played"),
    [
        ([], {}),
        ([ACTING, NOT_ACTING], {}),
        ([ACTING], {NOT_ACTING: 2}),
        ([NOT_ACTING], {ACTING: 1}),
    ],
)
def test_tasks_not_played(lake: Lake, kinds: list[str], not_played: dict[str, int]) -> None:
    """Each held-out task that is not replayed counts, once for all its rows."""
    rows = [session("s0", GOOD, task_key="task:0")]
    rows += [session(f"s{number}", REFUSED, task_key=f"task:{number}") for number in (1, 2)]
    recorded(lake, *rows)
    all_rows = [held_out(f"task:{number}") for number in (0, 1, 2, 2, 3)]
    taped = add_tapes(lake, KEY, all_rows, False)
    assert count_not_played(all_rows, taped, kinds) == {**not_played, NOT_RECORDED: 1}


def held_out(task: str) -> Any:
    """A row of a held-out task."""
    return {"session_id": task, "task_key": task, "messages": GOOD, "tools": TOOLS}


def test_table_of_the_proof() -> None:
    proof: TapeProof = measure_agreement(sessions(MIN_TASKS, 2), Counter({ACTING: 4}))
    assert [row[1] for row in proof.rows] == ["good", "bad"] * 2
    assert proof.kinds[0].heldout_tasks == 4
