"""transformers' `parse_response` compared with our parser, and models whose calls only it can read."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer
from trl.chat_template_utils import add_response_schema

from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.models.chat_templates import choose_template, describe_own_template
from agent_pipeline.models.families import parse_reply
from agent_pipeline.models.template_probe import parse_with_tokenizer
from agent_pipeline_tests.families.subjects import ALL_SUBJECTS, Subject, make_tokenizer
from agent_pipeline_tests.families.test_round_trip import (
    FAST,
    QUESTION,
    TOOLS,
    read,
    text_of,
    turn_of,
    words_of_turn,
    writable,
)

WITH_RESPONSE_TEMPLATE = [
    subject
    for subject in ALL_SUBJECTS
    if subject.name
    in (
        "Qwen2.5",
        "Qwen3, thinking or not",
        "Qwen3-2507, no thinking",
        "Qwen3.5, thinking",
        "Qwen3.5, no thinking",
        "Llama 3.1",
        "Llama 3.2",
        "gpt-oss",
        "LFM2",
        "LFM2.5",
        "Gemma 4",
    )
]
"""Families for whose unchanged templates TRL has a `response_template`."""

plain_texts = st.text("abcÆ東 .", min_size=1, max_size=8).map(str.strip).filter(bool)
plain_arguments = st.fixed_dictionaries(
    {"city": plain_texts},
    optional={
        "days": st.integers(0, 10**6),
        "share": st.sampled_from([0.5, 2.25]),
        "tags": st.lists(plain_texts, max_size=2),
    },
)
plain_calls = st.lists(
    st.tuples(st.sampled_from(["weather", "find_orders"]), plain_arguments), min_size=1, max_size=3
)
_RENDERERS: dict[str, ChatRenderer] = {}


def own_renderer(subject: Subject) -> ChatRenderer:
    """A family's unchanged template, with TRL's `response_template`."""
    if subject.name not in _RENDERERS:
        tokenizer = make_tokenizer(subject)
        add_response_schema(tokenizer)
        template = describe_own_template(tokenizer)
        assert template is not None
        _RENDERERS[subject.name] = ChatRenderer(tokenizer, template)
    return _RENDERERS[subject.name]


def read_by_transformers(renderer: ChatRenderer, text: str, stop: str) -> Any:
    """The reply as transformers reads it."""
    prompt = renderer.render(QUESTION, TOOLS, add_generation_prompt=True)
    return parse_with_tokenizer(renderer.tokenizer, prompt, text + stop, TOOLS)


@pytest.mark.parametrize("subject", WITH_RESPONSE_TEMPLATE, ids=lambda subject: subject.name)
@FAST
@given(calls=plain_calls, words=words_of_turn)
def test_both_read_plain_calls(subject: Subject, calls, words) -> None:
    """Both parsers read what the template writes, if no text needs an escape."""
    renderer = own_renderer(subject)
    words, calls = writable(subject, words, calls)
    text = text_of(renderer, turn_of(words, calls))
    ours = parse_reply(text, TOOLS)
    stop = renderer.template.stops[0] if renderer.template.stops else "<|im_end|>"
    theirs = read_by_transformers(renderer, text, stop)
    assert read(ours) == calls and not ours.invalid
    assert read(theirs) == calls and not theirs.invalid
    assert ours.text == theirs.text


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Qwen2.5", {"city": "</tool_call>"}),
        ("Qwen3.5, no thinking", {"city": " Oslo "}),
        ("Qwen3.5, no thinking", {"city": "</tool_call>"}),
        ("LFM2", {"city": "it's"}),
        ("LFM2", {"city": "a\nb"}),
        ("Gemma 4", {"filters": {"sort-by": "year"}}),
    ],
)
def test_only_ours_reads_these_calls(name: str, arguments: dict) -> None:
    """These are the reasons why our parser comes first. A failure means that transformers or TRL
    has changed: our parser may not be needed any more.
    """
    renderer = own_renderer(next(subject for subject in ALL_SUBJECTS if subject.name == name))
    calls = [("weather", arguments)]
    text = text_of(renderer, turn_of("", calls))
    assert read(parse_reply(text, TOOLS)) == calls
    theirs = read_by_transformers(renderer, text, renderer.template.stops[0])
    assert read(theirs) != calls


UNHEARD_OF = """{%- if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content or '' }}{% for c in m.tool_calls or [] %}<invoke {{ c.function.name }}>{{ c.function.arguments | tojson }}</invoke>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open_pattern": r"<invoke (?P<name>[^>]+)>",
            "close_pattern": r"</invoke>\s*",
            "repeats": True,
            "content": "json",
            "transform": {
                "type": "function",
                "function": {"name": "{name}", "arguments": "{content}"},
            },
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}


@pytest.fixture
def tokenizer(tiny_base):
    tokenizer = AutoTokenizer.from_pretrained(tiny_base.path)
    tokenizer.chat_template = UNHEARD_OF
    return tokenizer


def test_template_whose_calls_nobody_reads(tokenizer) -> None:
    """Training on calls that no parser reads would give a model that never acts."""
    template = choose_template(tokenizer)
    assert template.origin == "hermes" and "read back" in template.why


@settings(FAST, max_examples=10)
@given(calls=plain_calls, words=words_of_turn)
def test_response_template_reads_the_reply(tokenizer, calls, words) -> None:
    tokenizer.chat_template = UNHEARD_OF
    tokenizer.response_template = RESPONSE_TEMPLATE
    renderer = ChatRenderer(tokenizer, choose_template(tokenizer))
    assert (renderer.template.origin, renderer.template.reply_parser) == (
        "model",
        "response_template",
    )
    text = text_of(renderer, turn_of(words, calls))
    assert "<invoke " in text and not parse_reply(text, TOOLS).is_call
    assert read(renderer.parse_reply(text, TOOLS)) == calls
    rewritten = parse_reply(renderer.decode_reply(renderer.token_ids(text), TOOLS), TOOLS)
    assert read(rewritten) == calls and rewritten.text == words
    cut = renderer.decode_reply(renderer.token_ids(text[: text.rfind("}")]), TOOLS)
    assert parse_reply(cut, TOOLS).invalid


def test_response_template_goes_with_its_template(tokenizer, tmp_path) -> None:
    """A `response_template` describes the model's own template. With ours it would be wrong."""
    tokenizer.chat_template = None
    tokenizer.response_template = RESPONSE_TEMPLATE
    renderer = ChatRenderer(tokenizer, choose_template(tokenizer))
    assert renderer.template.origin == "hermes"
    renderer.tokenizer.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).response_template is None
