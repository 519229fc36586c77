"""The words of answers: which carry content, and which answers are equivalent."""

import pytest

from agent_pipeline.evaluation.wording import (
    QuestionTurn,
    Wording,
    find_wording,
    list_slots,
)

PLAIN = Wording()


def question(task: str, text: str, reply: str = "It is K1.", heard: str = "Hi") -> QuestionTurn:
    return QuestionTurn(task, ((heard,), ()), text, reply)


@pytest.mark.parametrize(
    ("answer", "recorded", "is_equivalent"),
    [
        ("Which order is it?", "Could you give me the order, please?", True),
        ("I see a mug and a tent. Which one?", "Which one, the mug or the tent?", True),
        ("What is your date of birth?", "What is your order?", False),
        ("What is your name?", "What is the amount?", False),
        ("What is the order?", "Your order is late.", False),
        ("I refunded 20 for K1.", "K1: 20 dollars are refunded.", True),
        ("I refunded 20 for K1.", "I refunded 30 for K1.", False),
        ("I refunded 20.", "I refunded 20 for K1.", True),
    ],
)
def test_equivalence(answer: str, recorded: str, is_equivalent: bool) -> None:
    assert PLAIN.are_equivalent(answer, recorded, {"k1"}) == is_equivalent


def test_negation_carries_content() -> None:
    """A list of stop words drops `not` and `never`, which turn a text around."""
    assert PLAIN.content("Never send it.") != PLAIN.content("Send it.")
    assert PLAIN.content("We don't send it.") != PLAIN.content("We do send it.")


def test_slots_carry_content() -> None:
    """`name` is a stop word, unless a tool needs a name."""
    slots = list_slots({"findOrder": {"properties": {"full_name": {}, "amount": {}}}})
    assert {"find", "order", "full", "name", "amount"} == slots
    assert Wording(slots=slots).content("The name") == {"name"}


class TestFindWording:
    def test_exchanged_words(self) -> None:
        """Two sessions of a task ask in other words, and the user replies the same, twice."""
        words = find_wording(
            question(task, text)
            for task in ("1", "2")
            for text in ("Welche Nummer hat die Bestellung?", "Nennen Sie die Nummer?")
        )
        german = Wording(frozenset(words))
        assert "nummer" not in words and "nennen" in words
        assert german.are_equivalent("Nennen Sie die Nummer?", "Welche die Nummer?")

    def test_once_is_chance(self) -> None:
        assert find_wording([question("1", "Your name?"), question("1", "Your age?")]) == []

    def test_reply_that_says_nothing(self) -> None:
        """`Yes` suits every question, so it does not show that two questions are alike."""
        turns = [
            question(task, text, reply="Yes, please.")
            for task in ("1", "2")
            for text in ("Is it broken?", "Is it late?")
        ]
        assert find_wording(turns) == []

    @pytest.mark.parametrize("other", [{"reply": "It is Ann."}, {"heard": "Hello"}])
    def test_other_reply(self, other: dict[str, str]) -> None:
        """Words that make the user say something else are no wording."""
        turns = [
            turn
            for task in ("1", "2")
            for turn in (question(task, "Your id?"), question(task, "Your name?", **other))
        ]
        assert find_wording(turns) == []


@pytest.mark.parametrize(
    ("answer", "good", "agrees"),
    [
        ("It costs 20.", ["20 dollars."], True),
        ("It costs 30.", ["20 dollars."], False),
        ("K1 is lost.", ["K1 is on its way."], False),
        ("K1 is on the way.", ["K1 is on its way."], True),
        ("Sorry, I can't refund K1.", ["K1 can't be refunded, sorry."], True),
        ("Sorry, I can't refund 99.", ["K1 can't be refunded, sorry."], False),
        ("Which order?", ["What is your name?"], False),
    ],
)
def test_last_answer(answer: str, good: list[str], agrees: bool) -> None:
    """An answer that is the whole result has the facts of the good answers."""
    assert PLAIN.agrees(answer, good, {"k1"}) == agrees
