"""Near-duplicates across the split."""

import random
import subprocess
import sys
from pathlib import Path

from agent_pipeline.selection.near import near_duplicates, shingles
from agent_pipeline_tests.datasets.chats import calls, says, user

WORDS = [f"word{number}" for number in range(2000)]


def row(session_id, split, words, system="You help."):
    messages = [{"role": "system", "content": system}, user(" ".join(words[:40])), says(" ".join(words[40:]))]
    return {"session_id": session_id, "split": split, "messages": messages}


def changed(words, share, seed=1):
    """The words with a share of them replaced, in one place."""
    number = int(len(words) * share)
    return [*words[: len(words) - number], *random.Random(seed).sample(WORDS, number)]


def test_a_held_out_row_that_is_nearly_a_training_row_is_found_with_its_nearest():
    words = random.Random(0).sample(WORDS, 200)
    rows = [
        row("near", "test", changed(words, 0.03)),
        row("far", "test", changed(words, 0.6)),
        row("between", "select", changed(words, 0.05, seed=2)),
        row("train-1", "train", words),
        row("train-2", "train", changed(words, 0.3)),
        row("twin", "train", words),
    ]
    found = near_duplicates(rows)
    assert {(each.session_id, each.split, each.other_session_id) for each in found} == {
        ("near", "test", "train-1"),
        ("between", "select", "train-1"),
    }
    assert all(0.8 <= each.similarity < 1 for each in found)
    assert found == near_duplicates(reversed(rows)), "the order of rows does not matter"


def test_rows_of_one_side_may_be_alike():
    words = random.Random(0).sample(WORDS, 50)
    assert near_duplicates([row("a", "train", words), row("b", "train", words)]) == []
    assert [each.similarity for each in near_duplicates([row("a", "train", words), row("b", "test", words)])] == [1.0]


def test_an_agents_system_prompt_makes_no_two_rows_alike():
    a, b = random.Random(0).sample(WORDS, 100), random.Random(1).sample(WORDS, 100)
    assert near_duplicates([row("a", "train", a, "Be kind. " * 500), row("b", "test", b, "Be kind. " * 500)]) == []


def test_calls_count_as_what_was_said():
    assert shingles([user("a b"), calls(("1", "find", {"x": 1}))]) == ['a b find {"x": 1}']
    assert shingles([user("a b c d e"), says("f")]) == ["a b c d e", "b c d e f"]
    assert shingles([user("")]) == [""]


def test_another_process_finds_the_same_similarity():
    program = (
        "from agent_pipeline_tests.selection.test_near import *\n"
        "words = random.Random(0).sample(WORDS, 200)\n"
        "print(near_duplicates([row('a', 'train', words), row('b', 'test', changed(words, 0.03))]))"
    )
    repository = Path(__file__).parents[2]
    run = {"cwd": repository, "capture_output": True, "text": True, "check": True}
    said = {subprocess.run([sys.executable, "-c", program], **run).stdout for _ in range(2)}
    assert len(said) == 1 and "similarity=0.9" in said.pop()
