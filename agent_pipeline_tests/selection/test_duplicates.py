"""Duplicates: what is found, what stands for it, and what is not taken for one."""

import os
import random
import subprocess
import sys
from datetime import UTC, datetime
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.datasets.sketches import choose_bands, split_into_shingles
from agent_pipeline.errors import SettingsError
from agent_pipeline.selection import duplicates as dedup
from agent_pipeline.selection.candidates import Candidates
from agent_pipeline.selection.duplicates import (
    Duplicate,
    NearPairs,
    find_near_across_splits,
    find_near_pairs,
)
from agent_pipeline_tests.conftest import REPOSITORY
from agent_pipeline_tests.datasets.chats import says, user

VOCABULARY = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in "bdfgklmnprst"]


def row(
    row_id: str,
    text: str,
    system: str = "You help.",
    call_id: str = "c1",
    arguments: str = "{}",
    **more,
) -> dict:
    call = {"id": call_id, "type": "function", "function": {"name": "find", "arguments": arguments}}
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": text},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": "found"},
        {"role": "assistant", "content": "Done."},
    ]
    return {"row_id": row_id, "messages": messages, "tools": [], **more}


def duplicates(rows: list[dict], *arguments, **options):
    return dedup.find_duplicates(Candidates.of(lambda: rows), *arguments, **options)


def text(rng: random.Random, words: int = 60) -> str:
    return " ".join(rng.choice(VOCABULARY) for _ in range(words))


def changed(rng: random.Random, of: str, words: int) -> str:
    parts = of.split()
    for place in rng.sample(range(len(parts)), words):
        parts[place] = rng.choice(VOCABULARY)
    return " ".join(parts)


def test_the_system_prompt_and_the_ids_of_calls_do_not_make_rows_differ_but_arguments_do():
    rows = [
        row("a", "hi"),
        row("b", "hi", system="Other.", call_id="c2"),
        row("c", "hi", arguments='{"city": "Oslo"}'),
    ]
    assert duplicates(rows, near=None).rows == [Duplicate("b", "a", "exact", 1.0)]


def test_the_better_judged_stands_then_the_earlier_then_the_first_by_id():
    day = datetime(2026, 1, 2, tzinfo=UTC)
    rows = [
        row("a", "x"),
        row("b", "x", score=0.4, created_at=datetime(2026, 1, 1, tzinfo=UTC)),
        row("c", "x", score=0.9, created_at=datetime(2026, 1, 3, tzinfo=UTC)),
        row("d", "x", score=0.9, created_at=day),
        row("e", "x", score=0.9, created_at=day),
    ]
    found = duplicates(rows).rows
    assert [(each.row_id, each.duplicate_of, each.kind) for each in found] == [
        (name, "d", "exact") for name in "abce"
    ]


def test_planted_near_duplicates_are_found_and_unlike_rows_are_not():
    rng = random.Random(0)
    texts = [text(rng) for _ in range(1500)]
    planted = {len(texts) + i: of for i, of in enumerate(rng.sample(range(1500), 200))}
    texts += [changed(rng, texts[of], 3) for of in planted.values()]
    found = find_near_pairs(texts)
    pairs = [(pair.row, pair.stands, pair.similarity) for pair in found.pairs]
    highest = found.similarities
    found = {index: of for index, of, _ in pairs}
    assert sum(found.get(index) == of for index, of in planted.items()) >= 198
    assert not set(found) - set(planted)
    assert all(similar >= 0.8 for _, _, similar in pairs) and len(highest) >= len(pairs)


def test_a_prompt_that_all_rows_share_does_not_make_them_duplicates():
    rng = random.Random(1)
    prompt = text(rng, 2000)
    rows = [row(f"r{i:03d}", text(rng, 20), system=prompt) for i in range(200)]
    assert not duplicates(rows).rows


def test_what_a_duplicate_names_is_a_row_that_stands():
    rng = random.Random(2)
    first = text(rng)
    chain = [first]
    for _ in range(12):
        chain.append(changed(rng, chain[-1], 3))
    rows = [row(f"r{i:02d}", each) for i, each in enumerate(chain)] + [row("z", chain[1])]
    found = duplicates(rows).rows
    gone = {each.row_id for each in found}
    assert found and not gone & {each.duplicate_of for each in found}
    stands_for = {each.row_id: each.duplicate_of for each in found}
    assert stands_for["z"] == stands_for.get("r01", "r01")


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_duplicates_do_not_depend_on_order(data):
    rng = random.Random(data.draw(st.integers(0, 99)))
    texts = [text(rng, 12) for _ in range(6)]
    texts += [changed(rng, rng.choice(texts), rng.randrange(0, 3)) for _ in range(8)]
    rows = [row(f"r{i}", each, score=rng.choice([None, 0.2, 0.8])) for i, each in enumerate(texts)]
    found = duplicates(rows, 0.7)
    assert duplicates(data.draw(st.permutations(rows)), 0.7) == found
    kept = {one["row_id"] for one in rows} - {each.row_id for each in found.rows}
    assert {each.duplicate_of for each in found.rows} <= kept


def test_bands_find_pairs_at_the_threshold():
    for threshold in (0.5, 0.8, 0.95):
        count, width = choose_bands(threshold)
        assert count * width <= 256 and 1 - (1 - threshold**width) ** count >= 0.995
    assert (
        choose_bands(0.8) == (29, 8)
        and choose_bands(1.0) == (1, 256)
        and choose_bands(0.01) == (256, 1)
    )


def test_few_rows_and_texts_without_words_have_no_near_duplicates():
    assert find_near_pairs([]) == find_near_pairs(["a"]) == NearPairs([], [])
    assert find_near_pairs(["", "", "..."]).pairs == []
    assert duplicates([]).rows == []


def test_a_threshold_out_of_range_is_refused():
    with pytest.raises(SettingsError):
        duplicates([], near=2)


WORDS = [f"word{number}" for number in range(2000)]


def split_row(session_id, split, words, system="You help."):
    messages = [
        {"role": "system", "content": system},
        user(" ".join(words[:40])),
        says(" ".join(words[40:])),
    ]
    return {"session_id": session_id, "split": split, "messages": messages}


def replaced(words, share, seed=1):
    """The words with a share of them replaced, in one place."""
    number = int(len(words) * share)
    return [*words[: len(words) - number], *random.Random(seed).sample(WORDS, number)]


def test_a_held_out_row_that_is_nearly_a_training_row_is_found_with_its_nearest():
    words = random.Random(0).sample(WORDS, 200)
    rows = [
        split_row("near", "test", replaced(words, 0.03)),
        split_row("far", "test", replaced(words, 0.6)),
        split_row("between", "select", replaced(words, 0.05, seed=2)),
        split_row("train-1", "train", words),
        split_row("train-2", "train", replaced(words, 0.3)),
        split_row("twin", "train", words),
    ]
    found = find_near_across_splits(lambda: rows)
    assert {(each.session_id, each.split, each.other_session_id) for each in found} == {
        ("near", "test", "train-1"),
        ("between", "select", "train-1"),
    }
    assert all(0.8 <= each.similarity < 1 for each in found)
    assert found == find_near_across_splits(lambda: reversed(rows)), (
        "the order of rows does not matter"
    )


def test_rows_of_one_split_may_be_alike():
    words = random.Random(0).sample(WORDS, 50)
    assert (
        find_near_across_splits(
            lambda: [split_row("a", "train", words), split_row("b", "train", words)]
        )
        == []
    )
    assert [
        each.similarity
        for each in find_near_across_splits(
            lambda: [split_row("a", "train", words), split_row("b", "test", words)]
        )
    ] == [1.0]


def test_rows_are_read_again_only_where_some_share_hashes_across_the_split():
    words, other = random.Random(0).sample(WORDS, 50), random.Random(1).sample(WORDS, 50)
    for held_out, readings in ((other, 1), (words, 2)):
        rows = [
            split_row("a", "train", words),
            split_row("b", "train", words),
            split_row("c", "test", held_out),
        ]
        read = Mock(return_value=rows)
        assert (
            bool(find_near_across_splits(read)) == (readings == 2) and read.call_count == readings
        )


def test_an_agents_system_prompt_makes_no_two_rows_alike():
    a, b = random.Random(0).sample(WORDS, 100), random.Random(1).sample(WORDS, 100)
    assert (
        find_near_across_splits(
            lambda: [
                split_row("a", "train", a, "Be kind. " * 500),
                split_row("b", "test", b, "Be kind. " * 500),
            ]
        )
        == []
    )


def test_shingles_are_five_words_in_a_row():
    assert split_into_shingles("a b\nfind 1") == ["a b find 1"] and split_into_shingles("") == [""]
    assert split_into_shingles("A b c d e f") == ["a b c d e", "b c d e f"]


def test_another_process_finds_the_same_similarity():
    words = random.Random(0).sample(WORDS, 200)
    rows = [split_row("a", "train", words), split_row("b", "test", replaced(words, 0.03))]
    found = find_near_across_splits(lambda: rows)
    program = f"from agent_pipeline.selection.duplicates import find_near_across_splits\nprint(find_near_across_splits(lambda: {rows!r}))"
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{found}\n" and 0.9 < found[0].similarity < 1
