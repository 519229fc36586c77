"""What a family's template writes for a call is read back as the same call, and is what training masks."""

from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jinja2 import TemplateError

from agent_pipeline.errors import DataError
from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.models.chat_templates import choose_template
from agent_pipeline.models.families import ParsedReply, parse_reply
from agent_pipeline.models.special_tokens import remove_marks
from agent_pipeline.models.template_probe import cut_after_stop_token, find_stop_token
from agent_pipeline.tokenization.loss_masks import MaskError, check_mask, encode_conversation
from agent_pipeline_tests.families.subjects import ALL_SUBJECTS, Subject, make_tokenizer
from agent_pipeline_tests.training.world import call

TEXT = {"type": "string"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": name,
            "parameters": {
                "type": "object",
                "properties": {
                    "city": TEXT,
                    "days": {"type": "integer"},
                    "share": {"type": "number"},
                    "is_new": {"type": "boolean"},
                    "note": {"anyOf": [TEXT, {"type": "null"}]},
                    "tags": {"type": "array", "items": TEXT},
                    "filters": {"type": "object"},
                },
            },
        },
    }
    for name in ("weather", "find_orders")
]
QUESTION = [{"role": "system", "content": "You help."}, {"role": "user", "content": "How is it?"}]

HARD_TEXTS = (
    "it's",
    'say "hi"',
    "C:\\new\\'",
    "two\nlines\n",
    " blanks ",
    "042",
    "True",
    "null",
    "a, b=(1), {c: [d]}",
    "</tool_call>",
    "<tool_call>\n{",
    "<tool_call>{'name'",
    "[TOOL_CALLS][{",
    "<|tool_call|>",
    "</think>",
    "<think>",
    "```\ncode\n```",
    "x</parameter>y",
    "</arg_value>",
    "Ærø, 東京, 🙂",
    "",
)
"""Texts that end, open or quote something in one of the notations."""

texts = st.sampled_from(HARD_TEXTS) | st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Cn", "Co"]), max_size=8
)
numbers = st.integers(-(10**6), 10**6)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["year", "from", "sort_by"]), inner, max_size=3)
    ),
    max_leaves=5,
)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "city": texts,
        "days": numbers,
        "share": st.sampled_from([0.5, 2.25, -1.5]),
        "is_new": st.booleans(),
        "note": texts.filter(lambda text: text not in ("null", "None")) | st.none(),
        "tags": st.lists(texts, max_size=3),
        "filters": st.dictionaries(st.sampled_from(["a", "lang"]), json_values, max_size=2),
    },
)
calls_of_turn = st.lists(
    st.tuples(st.sampled_from(["weather", "find_orders"]), arguments), min_size=1, max_size=3
)
words_of_turn = st.sampled_from(
    ["", "Let me look.", "Two\n\nlines: 5 < 6 {x}.", 'It\'s "quoted", in Ærø.']
)
ONE_CALL_PER_TURN = ("Llama 3.1", "Llama 3.2", "gpt-oss")
"""Families whose templates write one call per turn. Training drops rows with more calls."""


def renderer_of(subject: Subject) -> ChatRenderer:
    """The template with which a family is trained."""
    return _renderer_named(subject.name)


NO_WORDS_BEFORE_CALLS = ("Llama", "Mistral", "gpt-oss")
"""Families whose templates drop words before a call, or write them as a thought (gpt-oss). Training
drops rows with such words.
"""


def writable(subject: Subject, words: str, calls: list) -> tuple[str, list]:
    """The part of a turn that a family's template writes."""
    words = "" if subject.name.startswith(NO_WORDS_BEFORE_CALLS) else words
    return words, calls[:1] if subject.name in ONE_CALL_PER_TURN else calls


SPLIT_LINE_BREAKS = ("Qwen3.5, no thinking", "Llama 3.1", "Llama 3.2")
"""Families whose prompts end with two line breaks. SmolLM2's tokenizer, which the tests use, joins
them only at the end of a text. The tokenizers of these families always join them.
"""


@cache
def _renderer_named(name: str) -> ChatRenderer:
    tokenizer = make_tokenizer(next(subject for subject in ALL_SUBJECTS if subject.name == name))
    return ChatRenderer(tokenizer, choose_template(tokenizer))


def turn_of(words: str, calls: list[tuple[str, dict]]) -> dict:
    """An assistant's message."""
    made = [
        call(name, values, f"call{number:05d}") for number, (name, values) in enumerate(calls, 1)
    ]
    return {"role": "assistant", "content": words, "tool_calls": made}


def text_of(renderer: ChatRenderer, turn: dict) -> str:
    """What the template writes for a turn, without its stop token."""
    prompt = renderer.render(QUESTION, TOOLS, add_generation_prompt=True)
    whole = renderer.render([*QUESTION, turn], TOOLS)
    assert whole.startswith(prompt)
    text = cut_after_stop_token(renderer.tokenizer, whole[len(prompt) :])
    return remove_marks(text.removesuffix(find_stop_token(renderer.tokenizer, text) or ""))


def read(reply: ParsedReply) -> list[tuple[str, dict]]:
    """The calls of a reply."""
    return [(parsed.name, parsed.arguments) for parsed in reply.calls]


EVERY_FAMILY = pytest.mark.parametrize("subject", ALL_SUBJECTS, ids=lambda subject: subject.name)
FAST = settings(
    deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@EVERY_FAMILY
@FAST
@given(calls=calls_of_turn, words=words_of_turn)
def test_calls_are_read_back(subject: Subject, calls, words) -> None:
    """Any argument, several calls, and words before them; text after them changes no call."""
    renderer = renderer_of(subject)
    words, calls = writable(subject, words, calls)
    text = text_of(renderer, turn_of(words, calls))
    reply = renderer.parse_reply(text, TOOLS)
    assert read(reply) == calls and not reply.invalid, text
    assert reply.text == words
    longer = renderer.parse_reply(f"{text}\n\nThat is all.", TOOLS)
    assert read(longer) == calls or longer.invalid


@EVERY_FAMILY
@FAST
@given(calls=calls_of_turn, share=st.floats(0, 1))
def test_cut_calls_are_never_other_calls(subject: Subject, calls, share) -> None:
    """A turn that ends early gives the calls that were complete, and no call without its arguments."""
    renderer = renderer_of(subject)
    _, calls = writable(subject, "", calls)
    text = text_of(renderer, turn_of("", calls))
    cut = text[: int(len(text) * share)]
    found = read(renderer.parse_reply(cut, TOOLS))
    assert found == calls[: len(found)], cut


@EVERY_FAMILY
@settings(FAST, max_examples=6)
@given(calls=calls_of_turn, words=words_of_turn)
def test_training_masks_what_the_model_generates(subject: Subject, calls, words) -> None:
    """The tokens before a turn are the prompt of serving, and its trained tokens give the calls."""
    renderer = renderer_of(subject)
    words, calls = writable(subject, words, calls)
    messages = [*QUESTION, turn_of(words, calls)]
    encoded = encode_conversation(renderer, messages, TOOLS)
    (start, end), *others = encoded.turns
    prompt = renderer.prompt_ids(QUESTION, TOOLS)
    assert not others and renderer.decode(encoded.input_ids[:start]) == renderer.decode(prompt)
    assert encoded.input_ids[:start] == prompt or subject.name in SPLIT_LINE_BREAKS
    assert encoded.trained == [start <= position < end for position in range(len(encoded.trained))]
    assert encoded.input_ids[end - 1] in renderer.stop_ids
    generated = renderer.decode_reply(encoded.input_ids[start : end - 1], TOOLS)
    assert read(parse_reply(generated, TOOLS)) == calls
    check_mask(encoded, renderer, messages, tools=TOOLS)


@EVERY_FAMILY
@settings(FAST, max_examples=6)
@given(place=st.integers(0, 4), role=st.sampled_from(["system", "user"]))
def test_no_turn_without_its_rule(subject: Subject, place: int, role: str) -> None:
    """Some templates show one system message: the others were lost, and the answers trained."""
    renderer = renderer_of(subject)
    rule = {"role": role, "content": "Say all prices in Danish kroner."}
    said = [*QUESTION, {"role": "assistant", "content": "Fine."}, *QUESTION[1:]]
    messages = [*said[:place], rule, *said[place:], {"role": "assistant", "content": "7 kroner."}]
    try:
        encoded = encode_conversation(renderer, messages, TOOLS)
    except (DataError, TemplateError, ValueError):
        return
    shown = renderer.decode(encoded.input_ids)
    assert all(message["content"] in shown for message in messages)


def test_calls_that_a_notation_cannot_write_are_not_trained() -> None:
    """Qwen3.5 writes a text between tags, so a text with these tags would be read as another call."""
    subject = next(subject for subject in ALL_SUBJECTS if subject.name == "Qwen3.5, no thinking")
    renderer = renderer_of(subject)
    text = "x\n</parameter>\n<parameter=days>\n3"
    messages = [*QUESTION, turn_of("", [("weather", {"city": text})])]
    encoded = encode_conversation(renderer, messages, TOOLS)
    with pytest.raises(MaskError) as caught:
        check_mask(encoded, renderer, messages, tools=TOOLS)
    assert caught.value.defect == "other_calls" and caught.value.message_index == 2
