"""Patterns of system prompts: what counts as a change, and what varies."""

from datetime import date, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.sessions.prompt_patterns import (
    find_difference,
    learn_patterns,
    split_words,
)

RULE = "You are the support agent of a shop. Refund an order within 30 days. Be brief."
NAMES = ["Ana Cole", "Bo Lee", "Madonna", "Zoë van der Berg", "Ng"]


def dated(day: int, rule: int = 30, name: str = "") -> str:
    today = date(2026, 1, 1) + timedelta(days=day)
    customer = f" The customer is {name}." if name else ""
    return (
        f"Today is {today:%A, %B %d, %Y}. You are the support agent of a shop.{customer} "
        f"Refund an order within {rule} days of the purchase. Be brief."
    )


def fits(trained: list[str], prompt: str) -> bool:
    words = split_words(prompt)
    return any(pattern.fits(words) for pattern in learn_patterns(trained))


def test_a_constant_prompt_fits_only_itself():
    assert fits([RULE] * 9, RULE) and fits([RULE] * 9, RULE.replace(". ", ".\n\n"))
    assert not fits([RULE] * 9, RULE.replace("30", "14"))
    assert not fits([RULE] * 9, RULE + " Never cancel.") and not fits([RULE] * 9, "")


def test_no_prompt_is_a_pattern_too():
    assert fits([""] * 3, "") and not fits([""] * 3, "You are an agent.")


@pytest.mark.parametrize(
    "form", ["%A, %B %d, %Y", "%Y-%m-%d", "%d %b %Y 14:%M UTC", "%d/%m/%Y", "%x %X"]
)
def test_a_date_that_changes_daily_is_no_change_but_the_rule_beside_it_is(form):
    """Three days of January do not tell that the month and the year vary too."""

    def prompt(day: int, rule: int = 30) -> str:
        today = date(2026, 1, 5) + timedelta(days=day)
        return f"Today is {today.strftime(form)}.\nRefund an order within {rule} days. Be brief."

    trained = [prompt(day) for day in range(3) for _ in range(4)]
    assert fits(trained, prompt(400))
    assert not fits(trained, prompt(400, rule=14))


def test_names_of_any_length_vary_and_the_rule_does_not():
    trained = [dated(day, name=NAMES[day % 5]) for day in range(10)]
    assert fits(trained, dated(300, name="Maria Skłodowska"))
    assert not fits(trained, dated(300, rule=14, name="Maria Skłodowska"))


def test_a_rule_that_changed_once_has_two_values_and_a_third_is_a_change():
    """After the first change, the training rows hold both values. The next change must show again."""
    trained = [dated(day) for day in range(20)] + [dated(day, rule=14) for day in range(20, 30)]
    assert fits(trained, dated(40, rule=14)) and fits(trained, dated(40, rule=30))
    assert not fits(trained, dated(40, rule=7))


def test_a_value_that_alternates_may_have_any_value():
    trained = [dated(day, rule=30 if day % 2 else 14) for day in range(10)]
    assert fits(trained, dated(40, rule=7))


def test_a_part_that_varies_does_not_hide_a_new_rule():
    trained = [dated(day) for day in range(10)]
    hidden = dated(11).replace(". You are", ". Never refund gift cards, and ask twice. You are")
    assert not fits(trained, hidden)


def test_two_prompts_of_one_agent_are_two_patterns():
    planner = "Plan the work of the other agents in at most five steps, and hand over."
    patterns = learn_patterns([RULE, planner, RULE, planner, RULE])
    assert [(pattern.sessions, pattern.text) for pattern in patterns] == [(3, RULE), (2, planner)]
    assert not any(pattern.parts for pattern in patterns)


def test_a_prompt_that_is_mostly_a_document_has_one_pattern():
    documents = [
        " ".join(f"word{number * 1000 + place}" for place in range(200)) for number in range(30)
    ]
    prompts = [f"You answer from this page. {text} Answer in one sentence." for text in documents]
    (pattern,) = learn_patterns(prompts[:20])
    assert pattern.sessions == 20 and all(pattern.fits(split_words(prompt)) for prompt in prompts)
    assert not pattern.fits(split_words(prompts[29].replace("one sentence", "two sentences")))


def test_a_few_other_prompts_do_not_loosen_the_pattern_of_the_rest():
    """One odd prompt among five made one pattern of them all, which fitted almost anything."""
    odd = "Count the ships in the harbour, one by one."
    patterns = learn_patterns([RULE] * 4 + [odd])
    assert [(pattern.sessions, pattern.parts) for pattern in patterns] == [(4, []), (1, [])]
    assert not fits([RULE] * 4 + [odd], RULE.replace("30", "14"))


def test_the_first_difference_is_shown():
    patterns = learn_patterns([dated(day) for day in range(10)])
    difference = find_difference(patterns, dated(20, rule=14))
    assert "within 30" in difference.before and "within 14" in difference.now
    assert find_difference(patterns, dated(99)) is None
    once = learn_patterns([RULE] * 5 + [RULE.replace("30", "14")] * 5)
    assert find_difference(once, RULE.replace("30", "7")).now.endswith("within 7")


WORDS = st.lists(st.sampled_from(["a", "b", "c", "d", "30", "14", ".", ","]), max_size=12)


@settings(max_examples=300, deadline=None)
@given(st.lists(WORDS.map(" ".join), min_size=1, max_size=8))
def test_every_trained_prompt_fits(prompts):
    patterns = learn_patterns(prompts)
    assert sum(pattern.sessions for pattern in patterns) == len(prompts)
    for prompt in prompts:
        assert any(pattern.fits(split_words(prompt)) for pattern in patterns)
        assert find_difference(patterns, prompt) is None


@given(st.text(max_size=60))
def test_white_space_alone_is_no_difference(text):
    assert split_words(text) == split_words(f"\n {text}\t")
