"""Settings that do not fit the rows end a training run before a model is loaded."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.errors import DataError
from agent_pipeline.models.loading import load_model
from agent_pipeline.tokenization.encoding import encode_rows
from agent_pipeline.tokenization.length_check import check_calls, check_fit, summarize_lengths
from agent_pipeline.training.config import GrpoTraining
from agent_pipeline.training.on_policy_steps import _find_fitting_rows
from agent_pipeline_tests.tiny import with_jinja
from agent_pipeline_tests.training.world import TRAINING, row, train_adapter


def long_row(number: int, words: int = 400) -> dict[str, Any]:
    """A row whose last exchange fits, and whose beginning does not."""
    made = row(number)
    begun = [{"role": "user", "content": "sun " * words}, {"role": "assistant", "content": "Yes."}]
    return {**made, "messages": [made["messages"][0], *begun, *made["messages"][1:]]}


@pytest.fixture
def without_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("agent_pipeline.training.sft.load_model", refuse)
    assert load_model is not refuse


def test_rows_that_lose_their_beginning_stop_the_run_with_a_length_that_fits(
    tiny_base, tiny_renderer, tmp_path, without_a_model
):
    """25 of 31 rows of a real store lost their beginning without a word."""
    rows = [long_row(number) for number in range(6)] + [row(number) for number in range(6, 10)]
    with pytest.raises(DataError, match=r"6 of 10 rows") as error:
        train_adapter(rows, tiny_base, TRAINING.changed(max_length=320), tmp_path)
    found = re.search(
        r"sft_adapter.max_length` = (\d+), or|context of at least (\d+) tokens", str(error.value)
    )
    proposed = int(found[1] or found[2])
    assert encode_rows(tiny_renderer, rows, proposed).counts["truncated"] == 0
    assert "most_dropped` = 0.6" in str(error.value)


def test_a_tenth_may_be_shortened_and_more_by_setting(tiny_base, tiny_renderer):
    rows = [long_row(0), *(row(number) for number in range(1, 10))]
    encoded, counts, first = encode_rows(tiny_renderer, rows, 320)
    assert (len(encoded), counts["truncated"]) == (10, 1)
    check_fit(counts, 320, 0.1, tiny_base.path, first)
    with pytest.raises(DataError):
        check_fit(counts, 320, 0.05, tiny_base.path, first)


def test_rows_that_the_template_refuses_are_named_instead_of_a_length(tiny_base):
    counts = {
        "in": 4,
        "dropped_too_long": 0,
        "dropped_no_source": 0,
        "dropped_not_rendered": 3,
        "dropped_not_proven": 0,
        "truncated": 0,
    }
    with pytest.raises(DataError, match="The first one") as error:
        check_fit(
            counts | {"dropped_share": 0.75, "tokens": summarize_lengths([9])},
            320,
            0.1,
            tiny_base.path,
            "The first one is odd.",
        )
    assert "max_length" not in str(error.value)


ONE_SYSTEM = (
    "{% set ns = namespace(rule=true) %}{% for m in messages %}"
    "{% if m.role != 'system' or ns.rule %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endif %}{% if m.role == 'system' %}{% set ns.rule = false %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A template that shows one system message, as those of Mistral and gpt-oss do."""


def two_rules(number: int) -> dict[str, Any]:
    """A row with two system messages, without calls."""
    texts = [("system", "Be kind."), ("system", "Say prices in kroner."), ("user", f"Hi {number}?")]
    said = [{"role": role, "content": content} for role, content in texts]
    messages = [*said, {"role": "assistant", "content": "7 kroner."}]
    return {**row(number), "tools": [], "messages": messages}


def test_rows_with_a_hidden_rule(tiny_base, tiny_renderer):
    """The error said that the rows must be repaired, and named neither the cause nor a number."""
    renderer = with_jinja(tiny_renderer, ONE_SYSTEM)
    rows = [{**two_rules(9), "messages": two_rules(9)["messages"][1:3]}]
    rows += [two_rules(number) for number in range(3)]
    _, counts, first_dropped = encode_rows(renderer, rows, 512)
    assert (counts["dropped_not_shown"], counts["dropped_not_rendered"]) == (3, 0)
    with pytest.raises(DataError, match="3 not shown") as error:
        check_fit(counts, 512, 0.1, tiny_base.path, first_dropped)
    assert "base model" in str(error.value) and "repair" not in str(error.value)


@pytest.mark.parametrize("is_played", [False, True])
def test_prompts_with_a_hidden_rule(tiny_renderer, is_played):
    """GRPO, SDFT and distillation trained on prompts that lack the rule."""
    renderer = with_jinja(tiny_renderer, ONE_SYSTEM)
    hidden, shown = two_rules(0), two_rules(1)
    shown["messages"] = shown["messages"][1:]
    rows = [hidden, shown]
    if not is_played:
        rows = [{**each, "prompt": each["messages"][:-1]} for each in rows]
    fitting = _find_fitting_rows(renderer, rows, GrpoTraining(max_length=2048))
    assert fitting.rows == rows[1:] and fitting.counts["dropped_not_shown"] == 1
    assert fitting.counts["in"] == 2 and "base model" in fitting.first_dropped


def test_an_agent_that_calls_is_not_trained_without_a_call(tiny_base, tmp_path, without_a_model):
    """The preset smoke trained seven rows without one call, and the run went on to serve."""
    rows = []
    for number in range(8):
        made = long_row(number)
        asked = [{"role": "user", "content": "And now?"}, {"role": "assistant", "content": "Good."}]
        rows.append(
            {
                **made,
                "messages": [
                    *made["messages"],
                    {"role": "user", "content": "sun " * 90},
                    *asked[1:],
                ],
            }
        )
    assert any(message.get("tool_calls") for message in rows[0]["messages"])
    with pytest.raises(DataError, match="with a call"):
        train_adapter(rows, tiny_base, TRAINING.changed(max_length=320, most_dropped=1.0), tmp_path)


def test_an_agent_that_never_calls_is_trained():
    rows = [{"messages": [{"role": "assistant", "content": "Yes."}]}]
    check_calls(rows, [rows[0]["messages"]], 320)


@given(st.lists(st.integers(1, 9999), min_size=1, max_size=50))
def test_figures_of_lengths_are_lengths(lengths):
    tokens = summarize_lengths(lengths)
    assert tokens["median"] <= tokens["p95"] <= tokens["longest"] == max(lengths)
    assert set(tokens.values()) <= set(lengths)
