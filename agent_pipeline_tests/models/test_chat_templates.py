"""Which chat template a model is trained with."""

import json
from itertools import permutations
from pathlib import Path

import pytest
import trl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer
from trl import chat_template_utils

from agent_pipeline._compat.transformers import render_jinja
from agent_pipeline.errors import ModelError
from agent_pipeline.models.chat_renderer import load_renderer, read_renderer
from agent_pipeline.models.chat_templates import choose_template
from agent_pipeline.models.families import write_hermes_template
from agent_pipeline.models.rendering import render_template
from agent_pipeline.models.template_adjustments import (
    AdjustedTemplate,
    accept_text_arguments,
    adjust_template,
    sort_tools,
)
from agent_pipeline.models.template_probe import SENTINEL, SORTED_TOOLS, TOOL, probe_template
from agent_pipeline_tests.training.world import call, row

DOUBLE = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}{{ tools | tojson if loop.first }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@pytest.fixture
def tokenizer(tiny_base):
    return AutoTokenizer.from_pretrained(tiny_base.path)


def test_smollm2s_own_template_is_refused_and_ours_chosen(smollm2):
    stock = AutoTokenizer.from_pretrained(smollm2.path)
    assert "it drops the tools" in probe_template(stock, stock.chat_template).defects
    assert "it drops tool calls" in probe_template(stock, stock.chat_template).defects
    template = choose_template(stock)
    assert (template.origin, template.arguments_as, template.stops) == (
        "hermes",
        "text",
        ("<|im_end|>",),
    )
    assert "drops the tools" in template.why


def test_a_template_that_loses_nothing_is_kept(tokenizer):
    tokenizer.chat_template = DOUBLE
    template = choose_template(tokenizer)
    assert (template.origin, template.arguments_as) == ("model", "dict")
    assert template.jinja.endswith(DOUBLE) and template.sorts_tools


def test_arguments_go_as_strings_to_a_template_that_wants_strings(tokenizer, tmp_path):
    tokenizer.chat_template = DOUBLE.replace(
        "{{ c | tojson }}",
        """<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments }}}""",
    )
    assert choose_template(tokenizer).arguments_as == "str"
    tokenizer.save_pretrained(tmp_path)
    load_renderer(tmp_path).tokenizer.save_pretrained(tmp_path)
    assert '"weather", "arguments": {"city": "Oslo"}' in read_renderer(tmp_path).render(
        [{"role": "assistant", "tool_calls": [call("weather", {"city": "Oslo"})]}], []
    )


def test_a_template_that_encodes_arguments_twice_is_refused(tokenizer):
    twice = DOUBLE.replace(
        "{{ c | tojson }}", "{{ c.function.name }}{{ c.function.arguments | tojson | tojson }}"
    )
    assert probe_template(tokenizer, twice).defects == (
        "it encodes the arguments of tool calls twice",
    )


def test_a_template_that_rewrites_earlier_turns_is_kept_and_each_turn_is_a_row(tokenizer):
    tokenizer.chat_template = chat_template_utils.qwen3_chat_template
    template = choose_template(tokenizer)
    assert template.origin == "model" and not template.prefix_preserving
    assert "each turn is a row" in template.why


@pytest.mark.parametrize("stock", ["qwen2_5_chat_template", "qwen3_chat_template"])
def test_words_before_a_call_are_shown_alike_with_the_line_end_that_a_server_returns(
    tokenizer, stock
):
    """llama.cpp returns "Given: 5." with the line end before the call; Qwen's templates would write a second one."""

    def shown(words: str) -> str:
        messages = [
            message | {"content": words} if message.get("tool_calls") else message
            for message in SENTINEL
        ]
        return render_template(tokenizer, template.jinja, template.arguments_as, messages, [TOOL])

    tokenizer.chat_template = getattr(chat_template_utils, stock)
    template = choose_template(tokenizer)
    assert "line breaks between words and a call are removed" in template.why
    assert shown("Given: 5.") == shown("Given: 5.\n") and "Given: 5.\n<tool_call>" in shown(
        "Given: 5.\n"
    )
    assert render_template(tokenizer, tokenizer.chat_template, "dict", SENTINEL, [TOOL]) == shown(
        ""
    )
    tokenizer.chat_template = template.jinja  # as an adapter's directory has it
    assert choose_template(tokenizer).jinja == template.jinja


def test_a_tokenizer_for_which_nothing_renders_tools_is_refused(tokenizer):
    from transformers import PreTrainedTokenizerFast

    other = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, eos_token="<|endoftext|>"
    )
    other.add_special_tokens({"eos_token": "<|endoftext|>"})
    bare = PreTrainedTokenizerFast(tokenizer_object=_without_chatml(), eos_token="</s>")
    with pytest.raises(ModelError, match="base model"):
        choose_template(bare)


def _without_chatml():
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel()
    bpe.train_from_iterator(
        ["text"],
        trainers.BpeTrainer(
            special_tokens=["</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        ),
    )
    return bpe


def test_ours_has_no_default_persona_and_shows_everything(tiny_renderer):
    assert (
        tiny_renderer.render([{"role": "user", "content": "Hi"}], [])
        == "<|im_start|>user\nHi<|im_end|>\n"
    )
    text = tiny_renderer.render(row(0)["messages"], row(0)["tools"])
    assert (
        '<tool_call>\n{"name":"weather","arguments":{"city":"Oslo","days":1}}\n</tool_call><|im_end|>\n'
        in text
    )
    assert (
        '<|im_start|>tool\n<tool_response>\n{"city": "Oslo", "sun": true}\n</tool_response><|im_end|>\n'
        in text
    )
    assert text.startswith("<|im_start|>system\nYou report the weather.\n\n# Tools\n")
    assert tiny_renderer.render(SENTINEL, [TOOL]).count("<|im_end|>") == len(SENTINEL)


def test_arguments_that_are_no_json_stay_as_they_are(tiny_renderer):
    broken = {
        "id": "1",
        "type": "function",
        "function": {"name": "weather", "arguments": "{broken"},
    }
    text = tiny_renderer.render(
        [{"role": "assistant", "content": None, "tool_calls": [broken]}], []
    )
    assert '"arguments":{broken}' in text


@settings(
    deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(st.sampled_from(["user", "assistant", "tool"]), st.text(max_size=12)), max_size=6
    )
)
def test_ours_renders_every_prefix_as_a_prefix(tiny_renderer, parts):
    messages = [{"role": role, "content": content} for role, content in parts]
    whole = tiny_renderer.render(messages, [TOOL])
    for index, message in enumerate(messages):
        assert whole.startswith(tiny_renderer.render(messages[:index], [TOOL]))
        if message["role"] == "assistant":
            assert whole.startswith(
                tiny_renderer.render(messages[:index], [TOOL], add_generation_prompt=True)
            )


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3_1", "gptoss"])
def test_a_models_own_template_takes_text_and_writes_objects_as_before(tokenizer, name):
    """llama.cpp rounds the numbers of templates that take objects; a changed template must render an object as the model's own does."""
    stock = (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text(
        encoding="utf-8"
    )
    adjusted = accept_text_arguments(tokenizer, stock)
    changed = adjusted.jinja
    assert changed != stock and adjusted.change
    assert accept_text_arguments(tokenizer, changed) == AdjustedTemplate(changed)
    for messages in (SENTINEL, SENTINEL[:3], row(1)["messages"]):
        before = render_template(tokenizer, stock, "dict", messages, [TOOL])
        assert render_template(tokenizer, changed, "dict", messages, [TOOL]) == before
        assert render_template(tokenizer, changed, "text", messages, [TOOL]) == before


def test_a_template_that_reads_single_arguments_is_left_as_it_is(tokenizer):
    stock = (Path(trl.__file__).parent / "chat_templates" / "qwen3_5_think.jinja").read_text(
        encoding="utf-8"
    )
    assert accept_text_arguments(tokenizer, stock) == AdjustedTemplate(stock)


NAMES = ("refund", "Refund", "look_up", "look", "é", "a\\b", 'say "hi"')
TOOLS = st.lists(
    st.builds(
        lambda name, description, parameter: {
            "type": "function",
            "function": {
                "name": name,
                "description": description,
                "parameters": {"type": "object", "properties": {parameter: {"type": "string"}}},
            },
        },
        st.one_of(st.sampled_from(NAMES), st.text("ab_AB", min_size=1, max_size=3)),
        st.sampled_from(["", "Two\nlines."]),
        st.sampled_from(["id", "order"]),
    ),
    max_size=6,
)
"""Schemas of tools, of which several may have one name or be equal."""


@settings(
    deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(tools=TOOLS, data=st.data())
def test_ours_writes_the_tools_by_name_whatever_their_order(tiny_renderer, tools, data):
    """A model that was trained on one order of the tools would learn their positions."""
    messages = SENTINEL[:2]
    text = tiny_renderer.render(messages, tools)
    shuffled = data.draw(st.permutations(tools))
    assert tiny_renderer.render(messages, shuffled) == text
    bare = [tool["function"] for tool in shuffled]
    assert render_jinja(write_hermes_template(), messages, bare or None) == text
    lines = text.partition("<tools>\n")[2].partition("</tools>")[0].splitlines()
    shown = [json.loads(line) for line in lines]
    assert [tool["name"] for tool in shown] == sorted(tool["function"]["name"] for tool in tools)
    assert sorted(map(str, shown)) == sorted(str(tool["function"]) for tool in tools)


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "qwen3_5_think", "llama3_1", "gptoss"])
def test_a_models_own_template_writes_the_tools_by_name(tokenizer, name):
    """The change must not show in a request whose tools are sorted, and must outlive a saved adapter."""
    stock = (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text(
        encoding="utf-8"
    )
    changed = sort_tools(tokenizer, stock).jinja
    assert changed != stock
    expected = render_template(tokenizer, stock, "dict", SENTINEL, SORTED_TOOLS)
    for tools in permutations(SORTED_TOOLS):
        assert render_template(tokenizer, changed, "dict", SENTINEL, list(tools)) == expected
    adjusted = adjust_template(tokenizer, stock)
    assert "sorted by name" in adjusted.change
    assert adjust_template(tokenizer, adjusted.jinja).jinja == adjusted.jinja


def test_a_template_that_shows_no_tools_is_left_as_it_is(tokenizer):
    stock = DOUBLE.replace("tools | tojson", "message_tools | tojson")
    assert sort_tools(tokenizer, stock) == AdjustedTemplate(stock)


def test_an_adapter_of_an_earlier_version_keeps_its_order_of_the_tools(tokenizer, tmp_path):
    """It was trained with another order than the sorted one."""
    tokenizer.chat_template = DOUBLE
    tokenizer.save_pretrained(tmp_path)
    assert load_renderer(tmp_path).template.sorts_tools
    (tmp_path / "training.json").write_text("{}")
    assert load_renderer(tmp_path).template.jinja == DOUBLE


@pytest.mark.parametrize("name", ["lfm2_2_5", "lfm2_2_5_v2"])
def test_quotes_in_python_calls_are_escaped(tokenizer, name):
    """LFM2.5 writes `query='it's new'`, which nobody can read. LFM2's later template escapes it."""
    stock = (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text(
        encoding="utf-8"
    )
    tokenizer.chat_template = stock
    template = choose_template(tokenizer)
    assert template.origin == "model" and "escaped" in template.why
    assert "the tool calls that it writes cannot be read back" in (
        probe_template(tokenizer, stock).defects
    )
    messages = [{"role": "user", "content": "hi"}]
    turn = {"role": "assistant", "content": "", "tool_calls": [call("weather", {"city": "it's"})]}
    text = render_template(tokenizer, template.jinja, "dict", [*messages, turn], [TOOL])
    assert r"weather(city='it\'s')" in text
    turn["tool_calls"] = [call("weather", {"city": "Oslo", "days": 2})]
    assert render_template(tokenizer, stock, "dict", [*messages, turn], None) == (
        render_template(tokenizer, template.jinja, "dict", [*messages, turn], None)
    )
