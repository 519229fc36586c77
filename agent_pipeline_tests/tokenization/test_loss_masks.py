"""Which tokens are trained."""

import copy
import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trl.chat_template_utils import qwen2_5_training_chat_template

from agent_pipeline.errors import DataError
from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.models.chat_templates import ChatTemplate
from agent_pipeline.models.families import write_hermes_template
from agent_pipeline.tokenization.loss_masks import MaskError, check_mask, encode_conversation
from agent_pipeline_tests.training.world import TOOL, call, row

# Our template, marked as Hugging Face wants it: the second opinion on our masks.
MARKED = (
    write_hermes_template()
    .replace("""{{- '<|im_start|>assistant\\n' + words -}}""",
             """{{- '<|im_start|>assistant\\n' -}}{% generation %}{{- words -}}""")
    .replace("""{{- '<|im_end|>\\n' -}}
    {%- elif message.role == 'user'""", """{{- '<|im_end|>' -}}{% endgeneration %}{{- '\\n' -}}
    {%- elif message.role == 'user'""")
)  # fmt: skip

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=15)
answers = st.builds(lambda text: [{"role": "assistant", "content": text}], texts)
calls = st.builds(
    lambda text, arguments, result: [
        {"role": "assistant", "content": text, "tool_calls": [call("weather", arguments), call("weather", {}, "2")]},
        {"role": "tool", "tool_call_id": "call00001", "content": result},
        {"role": "tool", "tool_call_id": "2", "content": "rain"},
        {"role": "assistant", "content": "Done."},
    ],
    texts, st.dictionaries(st.sampled_from(["city", "days"]), st.one_of(texts, st.integers(), st.booleans())), texts,
)  # fmt: skip
exchange = st.builds(
    lambda text, rest: [{"role": "user", "content": text}, *rest], texts, st.one_of(answers, calls)
)
conversations = st.lists(exchange, min_size=1, max_size=3).map(
    lambda parts: [m for part in parts for m in part]
)


def shown(renderer, encoded) -> list[str]:
    return [renderer.decode(encoded.input_ids[start:end]) for start, end in encoded.turns]


def test_a_tool_conversation_trains_the_call_and_the_answer_with_their_stops(smollm2_renderer):
    example = row(3)
    encoded = encode_conversation(smollm2_renderer, example["messages"], example["tools"])
    assert shown(smollm2_renderer, encoded) == [
        '<tool_call>\n{"name":"weather","arguments":{"city":"Lima","days":4}}\n</tool_call><|im_end|>',
        "It is sunny in Lima.<|im_end|>",
    ]
    assert sum(encoded.trained) == sum(end - start for start, end in encoded.turns)
    assert [i for i, label in enumerate(encoded.labels) if label != -100] == [
        i for i, t in enumerate(encoded.trained) if t
    ]
    check_mask(encoded, smollm2_renderer, example["messages"])


def test_the_prompt_is_what_comes_before_the_turn(smollm2_renderer):
    example = row(3)
    encoded = encode_conversation(smollm2_renderer, example["messages"], example["tools"])
    for index, (start, _) in zip((2, 4), encoded.turns, strict=True):
        assert (
            smollm2_renderer.prompt_ids(example["messages"][:index], example["tools"])
            == encoded.input_ids[:start]
        )


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(conversations)
def test_every_conversation_passes_the_four_assertions(tiny_renderer, messages):
    encoded = encode_conversation(tiny_renderer, messages, [TOOL])
    check_mask(encoded, tiny_renderer, messages)
    assert tiny_renderer.tokenizer.decode(encoded.input_ids) == tiny_renderer.render(
        messages, [TOOL]
    )


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(conversations)
def test_the_mask_equals_hugging_faces_generation_mask(tiny_renderer, messages):
    from agent_pipeline.models.rendering import as_template_wants

    theirs = tiny_renderer.tokenizer.apply_chat_template(
        as_template_wants(messages, "dict"),
        tools=[TOOL],
        chat_template=MARKED,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    ours = encode_conversation(tiny_renderer, messages, [TOOL])
    assert ours.input_ids == theirs["input_ids"]
    assert ours.trained == [bool(bit) for bit in theirs["assistant_masks"]]


def test_a_greeting_before_the_user_speaks_is_trained(tiny_renderer):
    messages = [
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
    ]
    encoded = encode_conversation(tiny_renderer, messages, [])
    check_mask(encoded, tiny_renderer, messages)
    assert shown(tiny_renderer, encoded) == ["Hello!<|im_end|>", "Yes?<|im_end|>"]


def test_lone_surrogates_do_not_stop_the_training(tiny_renderer):
    messages = [
        {"role": "user", "content": "\ud800 broken"},
        {"role": "assistant", "content": "Fine."},
    ]
    assert shown(tiny_renderer, encode_conversation(tiny_renderer, messages, [])) == [
        "Fine.<|im_end|>"
    ]


@pytest.mark.parametrize(
    ("defect", "change"),
    [
        ("nothing_trained", lambda e: dataclasses.replace(e, trained=[False] * len(e.trained))),
        (
            "other_turn_trained",
            lambda e: dataclasses.replace(e, trained=[True] * len(e.trained)),
        ),
        ("no_stop_token", lambda e: _moved(e, 0, -1)),
        ("other_calls", lambda e: _moved(e, 3, 0)),
        (
            "trained_after_end",
            lambda e: dataclasses.replace(e, trained=[*e.trained[:-1], True]),
        ),
    ],
)
def test_each_broken_assertion_names_the_row(tiny_renderer, defect, change):
    messages = row(1)["messages"]
    encoded = change(encode_conversation(tiny_renderer, messages, [TOOL]))
    with pytest.raises(MaskError) as error:
        check_mask(encoded, tiny_renderer, messages, "Row row-1")
    assert error.value.defect == defect
    assert str(error.value).startswith("Row row-1 cannot be used for training")


def _moved(encoded, begin: int, finish: int):
    turns = [(start + begin, end + finish) for start, end in encoded.turns]
    trained = [any(start <= i < end for start, end in turns) for i in range(len(encoded.trained))]
    return dataclasses.replace(encoded, trained=trained, turns=turns)


def test_a_trained_tool_result_is_found(tiny_renderer):
    messages = row(1)["messages"]
    encoded = encode_conversation(tiny_renderer, messages, [TOOL])
    (start, _), (_, end) = encoded.turns
    stretched = dataclasses.replace(
        encoded,
        turns=[(start, start + 4), (start + 4, end)],
        trained=[start <= i < end for i in range(len(encoded.trained))],
    )
    with pytest.raises(MaskError):
        check_mask(stretched, tiny_renderer, messages)


def test_another_familys_template_gives_the_same_kind_of_mask(tiny_renderer):
    template = ChatTemplate(qwen2_5_training_chat_template, "model", "", "dict", ("<|im_end|>",))
    renderer = ChatRenderer(copy.deepcopy(tiny_renderer.tokenizer), template)
    encoded = encode_conversation(renderer, row(2)["messages"], [TOOL])
    check_mask(encoded, renderer, row(2)["messages"])
    assert [text.removeprefix("\n") for text in shown(renderer, encoded)][
        1
    ] == "It is sunny in Bonn.<|im_end|>"


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(conversations, st.sets(st.integers(0, 12)))
def test_a_turn_of_weight_0_has_no_trained_token_and_the_others_have_all_of_theirs(
    tiny_renderer, messages, untrained
):
    whole = encode_conversation(tiny_renderer, messages, [TOOL])
    spoken = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    untrained &= set(spoken[:-1])
    marked = [
        message | {"weight": 0} if at in untrained else message
        for at, message in enumerate(messages)
    ]
    encoded = encode_conversation(tiny_renderer, marked, [TOOL])
    check_mask(encoded, tiny_renderer, marked)
    assert (encoded.input_ids, encoded.turns) == (whole.input_ids, whole.turns), (
        "it stays in the context"
    )
    for at, (start, end) in zip(spoken, encoded.turns, strict=True):
        assert encoded.trained[start:end] == [at not in untrained] * (end - start)


def test_a_trained_token_of_a_turn_of_weight_0_is_found(tiny_renderer):
    messages = row(1)["messages"]
    encoded = encode_conversation(tiny_renderer, messages, [TOOL])
    messages[2]["weight"] = 0
    with pytest.raises(DataError, match="message 2"):
        check_mask(encoded, tiny_renderer, messages)
