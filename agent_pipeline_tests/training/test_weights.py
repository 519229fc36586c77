"""What each trained token counts: decisions more than other tokens, the classes of turns the same."""

import pytest

from agent_pipeline.training.encoding import encode_rows
from agent_pipeline.training.weights import MOST_WEIGHT, weighed
from agent_pipeline_tests.training.world import call, row


def with_turn(number, **message):
    return row(number) | {
        "messages": [*row(number)["messages"][:2], {"role": "assistant", "content": ""} | message]
    }


CALL = [call("weather", {"city": "Oslo"})]


@pytest.mark.parametrize(
    ("message", "decides"),
    [
        ({"tool_calls": CALL}, ['<tool_call>\n{"name":"weather']),
        (
            {"content": "Let me see.", "tool_calls": CALL},
            ["Let", '\n<tool_call>\n{"name":"weather'],
        ),
        ({"content": "It is sunny. Enjoy it."}, ["It", " Enjoy", "<|im_end|>"]),
    ],
)
def test_what_decides_is_the_first_token_wherever_a_call_may_begin_and_the_call_up_to_its_name(
    tiny_tokenizer, message, decides
):
    [encoded] = encode_rows(tiny_tokenizer, [with_turn(0, **message)], 512).rows
    ids, deciding = encoded.encoded.input_ids, encoded.encoded.deciding
    starts = [at for at in deciding if at - 1 not in deciding]
    ends = [at + 1 for at in deciding if at + 1 not in deciding]
    texts = [tiny_tokenizer.decode(ids[start:end]) for start, end in zip(starts, ends, strict=True)]
    # A token may be a part of a word.
    assert [
        expected[: len(text)] for expected, text in zip(decides, texts, strict=True)
    ] == texts and min(map(len, texts))
    assert texts[-1] == decides[-1]


def test_classes_weigh_the_same_up_to_a_limit_and_the_report_says_so(tiny_tokenizer):
    rows = [row(number) for number in range(9)] + [
        with_turn(9, content="Sorry, I cannot tell."),
        with_turn(10, content="Which city?"),
    ]
    encoded = encode_rows(tiny_tokenizer, rows, 512).rows
    plain, before = weighed(encoded, 1.0, False)
    assert plain == [each.encoded for each in encoded] and {
        each["weight"] for each in before.values()
    } == {1.0}
    tokens, after = weighed(encoded, 3.0, True)
    assert {name: each["turns"] for name, each in after.items()} == {
        "answer": 9,
        "ask": 1,
        "call": 9,
        "cannot": 1,
    }
    assert (
        after["ask"]["weight"] == after["cannot"]["weight"] == MOST_WEIGHT
        and after["call"]["weight"] < 1
    )
    assert (
        after["call"]["share"]
        == after["answer"]["share"]
        > after["ask"]["share"]
        > before["ask"]["share"]
    )
    for each, row_tokens in zip(encoded, tokens, strict=True):
        factors = [
            after[kind]["weight"]
            for kind in (["call", "answer"] if len(each.messages) == 5 else ["ask"])
        ]
        expected = [0.0] * len(row_tokens.input_ids)
        for factor, (start, end) in zip(factors, row_tokens.turns, strict=True):
            expected[start:end] = [
                factor * (3 if at in row_tokens.deciding else 1) for at in range(start, end)
            ]
        assert row_tokens.weights == pytest.approx(expected, rel=1e-3)
