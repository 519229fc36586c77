"""Numbers of calls and schemas: the trained call as it was recorded, and what comes before it as a server writes it."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.models.chat_templates import ChatTemplate
from agent_pipeline.models.families import write_hermes_template
from agent_pipeline.models.json_numbers import (
    NumberWriter,
    changed_numbers,
    compact_arguments,
    parse_json,
    served_number,
)
from agent_pipeline.models.rendering import render_template
from agent_pipeline.tokenization.encoding import encode_rows

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
NUMBERS = st.one_of(
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([100.0, 12345.67, 52.5200066, 1e5, 1e-7, 2**63, 2**64, -0.0]),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(TEXTS, values, max_size=3),
    max_leaves=12,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=4)
CLIENTS = st.sampled_from([{}, {"separators": (",", ":")}, {"indent": 2}, {"indent": "\t"}])
"""How clients write the arguments of a call: Python's blanks, JavaScript's none, line ends."""


def paying(arguments: str, call_id: str = "call00001") -> dict:
    call = {"id": call_id, "type": "function", "function": {"name": "pay", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def conversation(*arguments: str) -> list[dict]:
    """A conversation in which these calls follow each other, and an answer."""
    messages = [{"role": "user", "content": "Pay."}]
    for number, text in enumerate(arguments):
        messages += [
            paying(text, f"call{number:05d}"),
            {"role": "tool", "tool_call_id": f"call{number:05d}", "content": "ok"},
        ]
    return [*messages, {"role": "assistant", "content": "Paid."}]


OBJECT_TEMPLATE = """{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') -}}
    {%- for call in message.tool_calls or [] -%}
        {{- '\\n<tool_call>\\n<function=' + call.function.name + '>\\n' -}}
        {%- for key, value in call.function.arguments | items -%}
            {{- '<parameter=' + key + '>\\n' + (value if value is string else value | tojson) + '\\n</parameter>\\n' -}}
        {%- endfor -%}
        {{- '</function>\\n</tool_call>' -}}
    {%- endfor -%}
    {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- for tool in tools or [] -%}{{- tool | tojson -}}{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""
"""A template that reads single arguments, as Qwen 3.5's does: it must be given objects."""


@pytest.fixture
def objects_renderer(tiny_renderer):
    template = ChatTemplate(OBJECT_TEMPLATE, "model", "", "dict", ("<|im_end|>",))
    return ChatRenderer(copy.deepcopy(tiny_renderer.tokenizer), template)


@given(value=OBJECTS, client=CLIENTS)
def test_our_template_writes_a_clients_text_as_training_does(tiny_renderer, value, client):
    """Whatever blanks a client writes, the template takes them away: the server's prompt is the training row's."""
    text = json.dumps(value, ensure_ascii=False, **client)
    trained = tiny_renderer.render(conversation(text), None)
    served = render_template(
        tiny_renderer.tokenizer, write_hermes_template(), "str", conversation(text), None
    )
    assert trained == served
    assert f'"arguments":{compact_arguments(text)}}}' in trained


@given(value=OBJECTS)
def test_our_template_writes_objects_and_texts_alike(tiny_renderer, value):
    """Transformers and vLLM hand over objects, llama.cpp hands over text."""
    text = json.dumps(value)
    as_object = [paying(value), {"role": "tool", "tool_call_id": "call00001", "content": "ok"}]
    assert render_template(
        tiny_renderer.tokenizer, write_hermes_template(), "str", as_object, None, True
    ) == tiny_renderer.render([paying(text), as_object[1]], None, True)


@pytest.mark.parametrize(
    "number", ["12345.67", "100.0", "100.50", "1e5", "1E-7", "9223372036854775808", "-0.0", "0.1"]
)
def test_a_trained_call_keeps_its_number(tiny_renderer, objects_renderer, number):
    for renderer, jinja, form in (
        (tiny_renderer, write_hermes_template(), "text"),
        (objects_renderer, OBJECT_TEMPLATE, "dict"),
    ):
        text = render_template(
            renderer.tokenizer,
            jinja,
            form,
            [{"role": "user", "content": "Pay."}, paying(f'{{"amount": {number}}}')],
            None,
        )
        assert number in text


def test_a_template_that_needs_objects_shows_earlier_numbers_as_the_server_does(objects_renderer):
    messages = conversation(
        '{"amount": 12345.67}', '{"amount": 1234567.89, "n": 9223372036854775808}'
    )
    first, second = (objects_renderer.render(messages[:at], None) for at in (2, 4))
    assert "<parameter=amount>\n12345.67" in first and "<parameter=amount>\n12345.7" in second
    assert (
        "<parameter=amount>\n1234567.89\n</parameter>\n<parameter=n>\n9223372036854775808" in second
    )
    prompt = objects_renderer.render(messages[:-1], None, add_generation_prompt=True)
    assert (
        "<parameter=amount>\n12345.7" in prompt
        and "<parameter=amount>\n1.23457e+06\n</parameter>\n<parameter=n>\n-9223372036854775808"
        in prompt
    )


def test_schemas_show_the_numbers_that_a_server_writes(tiny_renderer):
    schema = {
        "type": "object",
        "properties": {
            "amount": {"type": "number", "default": 1.0, "maximum": 1234567.89, "minimum": 0.01}
        },
    }
    tool = {"type": "function", "function": {"name": "pay", "parameters": schema}}
    text = tiny_renderer.render(
        [{"role": "user", "content": "Pay."}], [tool], add_generation_prompt=True
    )
    assert '"default":1,"maximum":1.23457e+06,"minimum":0.01' in text
    assert schema["properties"]["amount"]["default"] == 1.0 and isinstance(
        schema["properties"]["amount"]["default"], float
    )


def test_a_row_whose_earlier_numbers_a_server_rounds_is_trained_turn_by_turn(objects_renderer):
    plain, priced = (
        conversation('{"amount": 5}'),
        conversation('{"amount": 5}', '{"amount": 12345.67}'),
    )
    assert not objects_renderer.trains_turns_apart(plain) and objects_renderer.trains_turns_apart(
        priced
    )
    rows = [
        {"row_id": str(index), "session_id": "s", "messages": messages}
        for index, messages in enumerate((plain, priced))
    ]
    encoded, counts, first_dropped = encode_rows(objects_renderer, rows, 4096)
    assert not first_dropped and counts["trained"] == 1 + 3
    texts = [
        objects_renderer.decode(
            [
                token
                for token, own in zip(row.encoded.input_ids, row.encoded.trained, strict=True)
                if own
            ]
        )
        for row in encoded
    ]
    # Each turn is trained once: both turns of the first row, and the three turns of the second one.
    assert [text.count("<|im_end|>") for text in texts] == [2, 1, 1, 1]
    assert "12345.67" in texts[2] and "Paid." in texts[3]
    whole = objects_renderer.decode(encoded[3].encoded.input_ids)
    assert "12345.7" in whole and "12345.67" not in whole


@given(value=VALUES)
def test_compact_text_has_the_recorded_value_and_digits(value):
    text = json.dumps({"value": value})
    compact = compact_arguments(text)
    assert json.loads(compact) == json.loads(text)
    assert compact_arguments(compact) == compact
    assert str(parse_json(compact)) == str(parse_json(text))


@given(value=VALUES)
def test_the_writer_restores_each_number(value):
    recorded = parse_json(json.dumps(value))
    numbers = NumberWriter()
    assert numbers.restore(json.dumps(numbers.recorded(recorded))) == json.dumps(value)


def test_arguments_that_are_no_object_are_left_alone():
    assert [compact_arguments(text) for text in ("{broken", "[1]", "", None)] == [
        "{broken",
        "[1]",
        "",
        None,
    ]
    assert changed_numbers("{broken") == [] and changed_numbers(
        '{"a": [1, 100.0, {"b": 2.5}]}'
    ) == ["100.0"]
    assert served_number("1E400") == "inf"
