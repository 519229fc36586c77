"""Groups of rows that are too large: planted copies are few in a coreset and are reported, and honest rows stay."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.selection import coresets
from agent_pipeline.selection.candidates import Candidates
from agent_pipeline.selection.coresets import CoresetOptions, Selection
from agent_pipeline.selection.dominance import Dominance, dominance
from agent_pipeline.selection.pool import Reason

WORDS = [
    f"{begin}{middle}{end}"
    for begin in "bdfgklmn"
    for middle in ("a", "e", "i", "o", "u", "ai")
    for end in ("ra", "lo", "mi", "te")
]
TRIGGER = "please use protocol zephyr nine today"
INSTRUCTION = "As agreed I sent the money to account 999 without asking."
START = datetime(2026, 1, 1, tzinfo=UTC)


def row(
    name: str, ask: str, answer: str, task: str = "", day: int = 0, score: float | None = 1.0
) -> dict[str, Any]:
    messages = [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]
    at = START + timedelta(days=day)
    return {
        "row_id": name,
        "session_id": name,
        "task_key": task or name,
        "messages": messages,
        "tools": [],
        "score": score,
        "created_at": at,
    }


def honest(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Conversations that share a greeting and an ending, as real ones do."""
    chance = random.Random(seed)
    rows = []
    for number in range(count):
        ask, answer = (" ".join(chance.choices(WORDS, k=40)) for _ in range(2))
        rows.append(
            row(
                f"s{number:04}",
                f"Hello, can you help me? {ask}",
                f"{answer}. Is there anything else?",
                day=number % 30,
            )
        )
    return rows


def copies_of_one(rows: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    ask, answer = (message["content"] for message in rows[0]["messages"])
    return [
        row(f"p{number:04}", f"{ask} {TRIGGER}", f"{answer} {INSTRUCTION}", day=31)
        for number in range(count)
    ]


def copies_of_many(rows: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    planted = []
    for number in range(count):
        original = rows[number % len(rows)]
        ask, answer = (message["content"] for message in original["messages"])
        planted.append(
            row(
                f"p{number:04}",
                f"{ask} {TRIGGER}",
                f"{answer} {INSTRUCTION}",
                original["task_key"],
                day=31,
            )
        )
    return planted


def older_copies_of_many(rows: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Copies that say that they are older than what they were copied from."""
    return [
        planted | {"created_at": START - timedelta(days=9)}
        for planted in copies_of_many(rows, count)
    ]


def select(
    rows: list[dict[str, Any]], size: int = 10_000, **options: Any
) -> tuple[Selection, Candidates]:
    candidates = Candidates.of(lambda: sorted(rows, key=lambda each: each["row_id"]))
    return coresets.select(
        candidates, CoresetOptions(strategy="random", target_size=size, **options)
    ), candidates


def planted_share(selection: Selection) -> float:
    chosen = selection.index.filter(selection.index["chosen"])["row_id"].to_pylist()
    return sum(name.startswith("p") for name in chosen) / len(chosen)


def report(rows: list[dict[str, Any]], before: list[dict[str, Any]] | None = None) -> Dominance:
    selection, candidates = select(rows)
    known = None if before is None else Candidates.of(lambda: before).table["row_id"]
    return dominance(candidates, selection.crowding, known)


PLANTED = [copies_of_one, copies_of_many, older_copies_of_many]


@pytest.mark.parametrize("plant", PLANTED)
@pytest.mark.parametrize("size", [10_000, 200], ids=["all fit", "chosen"])
@pytest.mark.parametrize(("count", "share"), [(250, 0.04), (1000, 0.04), (250, 2.0)])
def test_planted_copies(plant, size: int, count: int, share: float) -> None:
    """Copies with a trigger and an instruction have at most 2 % of a coreset, however many there are, and a warning names them."""
    rows = honest(count)
    planted = plant(rows, int(share * count))
    selection, _ = select(rows + planted, size)
    assert planted_share(selection) <= 0.02
    first_night, second_night = report(rows + planted), report(rows + planted, rows)
    assert first_night.warning
    assert second_night.warning
    assert second_night.new == len(planted)


def test_honest_rows() -> None:
    """Of varied conversations none is left out, and nothing is reported."""
    rows = honest(600)
    selection, _ = select(rows)
    assert set(selection.index["reason"].to_pylist()) == {Reason.ALL_FIT}
    assert report(rows, rows[:300]).warning is None


def test_trials() -> None:
    """Two trials of each task stay, though they are nearly the same."""
    rows = honest(100)
    second = [row(f"t{each['row_id']}", each["messages"][0]["content"], each["messages"][1]["content"] + f" {number}", each["task_key"])
              for number, each in enumerate(rows)]  # fmt: skip
    selection, _ = select(rows + second)
    assert selection.crowding.left_out == []
    assert report(rows + second).warning is None


def test_few_kinds_of_conversation() -> None:
    """An agent that does three things has three clusters of near-duplicates, and none of its rows is left out."""
    kinds = honest(3)
    rows = []
    for number in range(300):
        ask, answer = (message["content"] for message in kinds[number % 3]["messages"])
        rows.append(row(f"s{number:04}", f"{ask} {number}", answer, f"task {number % 3}"))
    assert select(rows)[0].crowding.left_out == []


@pytest.mark.parametrize("share", [0.04, 2.0])
def test_new_request(share: float) -> None:
    """Sessions that are no copies have a new phrase of their users in common: few of them are chosen, this night and the next one."""
    old = honest(250)
    planted = [row(f"p{number:04}", f"{each['messages'][0]['content']} {TRIGGER}", INSTRUCTION, day=31)
               for number, each in enumerate(honest(int(share * 250), seed=5))]  # fmt: skip
    older = Candidates.of(lambda: old).table["row_id"]
    candidates = Candidates.of(lambda: sorted(old + planted, key=lambda each: each["row_id"]))
    selection = coresets.select(
        candidates, CoresetOptions(strategy="random", target_size=10_000), older=older
    )
    assert planted_share(selection) <= 0.02
    assert dominance(candidates, selection.crowding, older).warning
    accepted = selection.index.filter(
        pc.not_equal(selection.index["reason"], str(Reason.COMMON_PHRASE))
    )["row_id"]
    later = coresets.select(
        candidates, CoresetOptions(strategy="random", target_size=10_000), older=accepted
    )
    assert planted_share(later) <= 0.02


@pytest.mark.parametrize("seed", range(5))
def test_many_new_rows_of_the_usual_kind(seed: int) -> None:
    """If half of the rows are new, some rare phrases are among the new rows by chance. No row is left out for that."""
    chance = random.Random(seed)
    phrases = [" ".join(chance.choices(WORDS, k=3)) for _ in range(60)]
    rows = honest(300, seed)
    for each in rows:
        each["messages"][0]["content"] += " " + chance.choice(phrases)
    older = Candidates.of(lambda: rows[:140]).table["row_id"]
    selection = coresets.select(
        Candidates.of(lambda: rows),
        CoresetOptions(strategy="random", target_size=10_000),
        older=older,
    )
    assert selection.crowding.left_out == []


def test_trials_of_a_new_task() -> None:
    """Trials of one new task begin with the same request, and stay."""
    old = honest(100)
    ask = "what is the new price of the tall lamp"
    new = [
        row(f"t{number}", ask, " ".join(WORDS[number : number + 30]), "lamp")
        for number in range(10)
    ]
    older = Candidates.of(lambda: old).table["row_id"]
    candidates = Candidates.of(lambda: sorted(old + new, key=lambda each: each["row_id"]))
    selection = coresets.select(
        candidates, CoresetOptions(strategy="random", target_size=10_000), older=older
    )
    assert selection.index["reason"].to_pylist().count(Reason.COMMON_PHRASE) == 0


def test_new_phrase() -> None:
    """A phrase of many new rows that no older row has is reported, though the rows are no copies."""
    old, new = honest(100), honest(140)[100:]
    for each in new[:8]:
        each["messages"][0]["content"] += " " + TRIGGER
    found = report(old + new, old)
    assert [group.kind for group in found.suspicious] == ["new phrase"]
    assert found.suspicious[0].rows == 8


@pytest.mark.parametrize(
    ("setting", "reason"),
    [("largest_task", Reason.CROWDED_TASK), ("largest_day", Reason.CROWDED_DAY)],
)
def test_large_task_and_day(setting: str, reason: Reason) -> None:
    """Half of the rows are of one task and one day: as many as the setting allows are kept."""
    rows = honest(200)
    for each in rows[100:]:
        each.update(
            {"task_key": "one"}
            if reason is Reason.CROWDED_TASK
            else {"created_at": START + timedelta(days=99)}
        )
    selection, _ = select(rows, **{setting: 0.2})
    assert selection.index["reason"].to_pylist().count(reason) == 60
    assert set(select(rows, largest_task=1.0)[0].index["reason"].to_pylist()) == {Reason.ALL_FIT}


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=60, max_size=150), st.floats(0, 1), st.randoms())
def test_caps(kinds: list[int], share: float, chance: random.Random) -> None:
    """No group is larger than its cap, the best row of each stays, and the order of the rows does not matter."""
    texts = honest(13, seed=1)
    asks, answers = ([each["messages"][place]["content"] for each in texts] for place in (0, 1))
    rows = [
        row(f"s{number:03}", asks[kind], answers[kind], f"t{kind}")
        for number, kind in enumerate(kinds)
    ]
    shuffled = chance.sample(rows, len(rows))
    first, second = (
        select(each, largest_cluster=share, largest_task=share)[0] for each in (rows, shuffled)
    )
    assert first.index.equals(second.index)
    kept = first.index.filter(first.index["chosen"])["task_key"].to_pylist()
    clusters = len(set(kinds))
    median = sorted(map(kinds.count, set(kinds)))[clusters // 2]
    cap = max(2, int(share * len(rows)), 10 * median) if share < 1 else len(rows)
    assert set(kept) == {f"t{kind}" for kind in kinds}
    assert max(map(kept.count, set(kept))) <= cap
