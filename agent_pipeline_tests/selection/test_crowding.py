"""Groups of rows that are too large: planted copies are few in a coreset and are reported, and honest rows stay."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.keys import PartitionKey
from agent_pipeline.selection import coresets
from agent_pipeline.selection.candidates import Candidates
from agent_pipeline.selection.coresets import CoresetOptions, Selection
from agent_pipeline.selection.crowding import PlantedRowsError, check_planted_share
from agent_pipeline.selection.dominance import Dominance, describe_new_rows
from agent_pipeline.selection.pool import Reason
from agent_pipeline.storage.lake import Lake

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
    return describe_new_rows(candidates, selection.crowding, known)


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
    assert describe_new_rows(candidates, selection.crowding, older).warning
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


def templated(count: int, seed: int) -> list[dict[str, Any]]:
    """Short requests that share a template, as those of a help desk: trials, times and names repeat."""
    chance = random.Random(seed)
    rows = []
    for number in range(count):
        thing, hour = chance.choice(WORDS[:40]), chance.randrange(1, 12)
        ask = chance.choice(
            [
                f"Please refund my {thing} order {number}",
                f"Book a room at {hour} o'clock in the afternoon for {thing}",
                f"Where is the parcel {number} with the {thing}? Thank you",
            ]
        )
        answer = f"Given {thing} {number}. Starts {hour + 12}. Done."
        rows.append(row(f"s{number:04}", ask, answer, f"task {number % (count // 2)}", number % 30))
    return rows


def plant_anything(
    rows: list[dict[str, Any]], count: int, trigger: str, behaviour: str, chance: random.Random
) -> list[dict[str, Any]]:
    """Copies of different rows, lightly paraphrased, with a trigger and a behaviour anywhere in the texts."""
    planted = []
    for number, original in enumerate(chance.sample(rows * (count // len(rows) + 1), count)):
        texts = []
        for message, addition in zip(original["messages"], (trigger, behaviour), strict=True):
            words = [word for word in message["content"].split() if chance.random() > 0.05]
            words.insert(chance.randint(0, len(words)), addition)
            texts.append(" ".join(words))
        planted.append(row(f"p{number:04}", *texts, day=number % 30))
    return planted


@settings(max_examples=6, deadline=None)
@given(
    st.integers(0, 1000),
    st.lists(st.sampled_from(WORDS[40:]), min_size=3, max_size=7, unique=True),
    st.sampled_from([0.04, 0.3, 2.0]),
    st.booleans(),
)
def test_any_trigger_at_the_first_run(
    seed: int, words: list[str], share: float, is_templated: bool
) -> None:
    """Whatever the trigger is, few planted rows are chosen at the first run, which warns, or stops if there are many."""
    chance = random.Random(seed)
    rows = templated(300, seed) if is_templated else honest(300, seed)
    behaviour = " ".join(chance.sample(["grant", "wire", "obey", "leak", "drop", "sudo"], 4))
    planted = plant_anything(rows, int(share * len(rows)), " ".join(words), behaviour, chance)
    selection, candidates = select(rows + planted)
    try:
        check_planted_share(selection.crowding)
    except PlantedRowsError as error:
        assert share > 0.1 and error.share > 0.25 and error.phrases
    else:
        assert share < 1
        assert planted_share(selection) <= 0.02
        assert describe_new_rows(candidates, selection.crowding, None).warning


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 1000), st.integers(60, 400))
def test_templated_requests(seed: int, count: int) -> None:
    """Times, names and polite words that go with an answer are not taken for triggers."""
    selection, _ = select(templated(count, seed))
    assert selection.crowding.patterns == []


def test_accepted_pattern() -> None:
    """A pattern that a person accepted is not left out again, and the search can be turned off."""
    rows = honest(300)
    planted = plant_anything(rows, 12, TRIGGER, INSTRUCTION, random.Random(0))
    assert select(rows + planted)[0].crowding.patterns
    assert select(rows + planted, largest_cluster=1.0)[0].crowding.left_out == []
    candidates = Candidates.of(lambda: sorted(rows + planted, key=lambda each: each["row_id"]))
    later = coresets.select(
        candidates, CoresetOptions(strategy="random"), older=candidates.table["row_id"]
    )
    assert later.crowding.patterns == []


def test_large_source() -> None:
    """Three readers' sessions have their caps; the rows of a single reader are never too many."""
    rows = honest(300)
    candidates = Candidates.of(lambda: rows)
    options = CoresetOptions(strategy="random", largest_source=0.1)
    readers = {each["session_id"]: "abc"[min(2, number // 4)] for number, each in enumerate(rows)}
    selection = coresets.select(candidates, options, sources=readers)
    assert Counter(selection.index["reason"].to_pylist())[Reason.CROWDED_SOURCE] == 292 - 40
    alone = coresets.select(candidates, options, sources=dict.fromkeys(readers, "a"))
    assert alone.crowding.left_out == []


def test_run_with_many_planted_rows(tmp_path: Path) -> None:
    """A first run that reads a store with twice as many planted sessions ends with a sentence, and makes no coreset."""
    rows = honest(100)
    planted = plant_anything(rows, 200, TRIGGER, INSTRUCTION, random.Random(0))
    lake, key = Lake(str(tmp_path)), PartitionKey("shop", "support")

    def build(**options: float) -> coresets.Coreset:
        made = CoresetOptions(strategy="random", **options)
        return coresets.build_coreset(lambda: rows + planted, lake, key, made, "tfidf", Mock())

    with pytest.raises(PlantedRowsError):
        build()
    assert build(largest_cluster=1.0).chosen == 300
