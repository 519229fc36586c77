"""Verdicts that stand in a conversation's text."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.errors import SettingsError
from agent_pipeline.judging.verdict_leaks import (
    _WORDS_OF_PATTERNS,
    LEAK_PATTERNS,
    compile_leak_patterns,
    remove_leaks,
)

PATTERNS = compile_leak_patterns(LEAK_PATTERNS)


def told(role: str, text: str) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "Done."},
        {"role": role, "content": text},
    ]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Bye.\nEpisode finished, reward = True", "Bye."),
        ("Bye.\n\nReward: 1.0\n", "Bye."),
        ("Bye.\nevaluation result: PASSED.\nreward=0", "Bye."),
        ("Task success: false", None),
        ("Observation: Episode finished, reward = True", None),
    ],
)
def test_a_verdict_on_the_last_lines_of_what_the_agent_was_told_is_taken_out(text, left):
    messages, lines, leak = remove_leaks(told("user", text), PATTERNS)
    assert [message["content"] for message in messages[2:]] == ([left] if left else [])
    assert lines > 0 and leak is None
    assert messages[:2] == told("user", text)[:2]


def test_a_result_that_is_all_verdict_stays_empty_beside_its_call():
    messages, lines, leak = remove_leaks(told("tool", "Episode finished, reward = True"), PATTERNS)
    assert (messages[2], lines, leak) == ({"role": "tool", "content": ""}, 1, None)


@pytest.mark.parametrize(
    ("role", "text"),
    [
        ("user", "You got reward: 1.0\nThanks, anything else?"),
        ("user", "That makes reward = 1"),
        ("assistant", "Reward: 1.0"),
    ],
)
def test_a_verdict_that_is_part_of_a_message_or_the_agents_own_drops_the_session(role, text):
    given = told(role, text)
    messages, lines, leak = remove_leaks(given, PATTERNS)
    assert messages is given and lines == 0
    assert leak is not None and leak.startswith("reward")


@pytest.mark.parametrize(
    "text",
    [
        "###STOP###",
        "Reward: 1 free coffee",
        "rewards: 12",
        "Your reward is 500 points.",
        '{"reward": 1}',
        "episode finished",
        "passed: 3",
    ],
)
def test_what_is_no_verdict_is_no_leak(text):
    given = told("user", text)
    assert remove_leaks(given, PATTERNS) == (given, 0, None)


def test_a_verdict_in_the_arguments_of_a_call_drops_the_session():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "reward=1"}}
    assert (
        remove_leaks([{"role": "assistant", "content": "", "tool_calls": [call]}], PATTERNS)[2]
        == "reward=1"
    )


def test_a_pattern_that_is_no_regular_expression_is_a_sentence():
    with pytest.raises(SettingsError, match="verdict_leaks"):
        compile_leak_patterns(["("])


@pytest.mark.parametrize("pattern", LEAK_PATTERNS)
@given(data=st.data())
def test_every_match_of_a_pattern_has_one_of_its_words(pattern: str, data: st.DataObject) -> None:
    """A text without these words is not searched with the pattern."""
    text = data.draw(st.from_regex(pattern))
    assert any(word in text for word in _WORDS_OF_PATTERNS[pattern])
