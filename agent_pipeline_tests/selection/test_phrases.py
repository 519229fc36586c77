"""Phrases that were added to copies of rows, and phrases that only stand in place of others."""

import pytest

from agent_pipeline.selection.phrases import find_added_phrases

STORIES = [
    f"please refund the {item} in order {order} it was delivered {days} days ago and the agent "
    f"wrote that {amount} dollars of {price} were paid back to {name} on {day} for that {item}"
    for item, order, days, amount, price, name, day in (
        ("mug", "k100", "3", "40", "20", "ana", "monday"),
        ("tent", "r200", "5", "60", "30", "ben", "tuesday"),
        ("lamp", "t300", "9", "80", "15", "eva", "friday"),
        ("desk", "k400", "8", "90", "45", "leo", "sunday"),
    )
]


def pairs() -> list[tuple[int, int]]:
    """Return the pairs of each copy and its original, in texts of copies after originals."""
    return [(index + len(STORIES), index) for index in range(len(STORIES))]


def test_added_phrase_is_found():
    """Copies with the same additional words look planted."""
    copies = [f"{story} so the wire word is zebra today" for story in STORIES]
    assert set(find_added_phrases(STORIES + copies, pairs())) >= {4, 5, 6, 7}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("so i have refunded it", "so done it is refunded"),
        ("it is cancelled now", "it has been cancelled for you now"),
        ("done it is refunded", "you get it back it is on its way"),
    ],
)
def test_replaced_words_are_no_added_phrase(first, second):
    """Two trials of a task answer in different words, and long trials share nearly all words."""
    filler = " ".join(f"word{index}" for index in range(150))
    originals = [f"{filler} {story} {first}" for story in STORIES]
    trials = [f"{filler} {story} {second}" for story in STORIES]
    assert find_added_phrases(originals + trials, pairs()) == {}
