"""What a family's real chat template writes is read back. The templates are those that TRL ships."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings

from agent_pipeline.models.families import FAMILIES, parse_reply
from agent_pipeline.models.rendering import as_servers_send
from agent_pipeline_tests.evaluation.hard_cases import TOOLS
from agent_pipeline_tests.families.test_round_trip import FAST, calls_of_turn
from agent_pipeline_tests.families.test_round_trip import TOOLS as TYPED_TOOLS

CALLS = [
    ("weather", {"city": 'Sankt "Pölten", Wien', "days": 2}),
    ("open_door", {"code": "042"}),
    ("search", {"query": "x", "filters": {"year": 2020}}),
]
ONE_CALL_A_TURN = {"gptoss", "llama3_1", "llama3_2"}
TEMPLATES = [
    "deepseekv3", "gemma4_v5", "glm4moe", "gptoss", "lfm2_v2", "llama3_1", "llama3_2", "nemotron_3_nano", "qwen2_5", "qwen3",
    "qwen3_5_nothink", "qwen3_5_think", "qwen3_instruct_2507", "qwen3_vl",
]  # fmt: skip
ENDS = {stop for family in FAMILIES for stop in family.stops} | {"<|tool_response>", "<|eom_id|>"}


def rendered(jinja: str, calls: list) -> str:
    """An assistant's turn that makes the calls, without its end token."""
    from transformers.utils.chat_template_utils import render_jinja_template

    def text(arguments, *turns, prompt=False):
        options = {
            "tools": as_servers_send(TOOLS),
            "chat_template": jinja,
            "bos_token": "<s>",
            "eos_token": "</s>",
        }
        return render_jinja_template(
            conversations=[[{"role": "user", "content": "hi"}, *turns]],
            add_generation_prompt=prompt,
            **options,
        )[0][0]

    for encode in (lambda value: value, json.dumps):
        made = [
            {
                "id": f"call0000{number}",
                "type": "function",
                "function": {"name": name, "arguments": encode(arguments)},
            }
            for number, (name, arguments) in enumerate(calls)
        ]
        try:
            whole = text(encode, {"role": "assistant", "content": "", "tool_calls": made})
        except TypeError:  # this template wants the arguments as JSON text
            continue
        before = text(encode, prompt=True)
        said = whole.removeprefix(before if whole.startswith(before) else text(encode)).strip()
        while end := next((end for end in ENDS if said.endswith(end)), ""):
            said = said.removesuffix(end).strip()
        return said
    raise AssertionError("the template renders no call")


@pytest.mark.parametrize("name", TEMPLATES)
def test_calls_that_a_real_template_writes_are_read_back(name):
    import trl

    jinja = (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text(
        encoding="utf-8"
    )
    for calls in [[call] for call in CALLS] + ([] if name in ONE_CALL_A_TURN else [CALLS]):
        reply = parse_reply(rendered(jinja, calls), TOOLS)
        assert [(call.name, call.arguments) for call in reply.calls] == calls and not reply.invalid


@pytest.mark.parametrize("name", TEMPLATES)
@settings(FAST, max_examples=12)
@given(calls=calls_of_turn)
def test_any_call_that_a_real_template_writes_is_read_back(name, calls):
    """The unchanged templates, even those that are not trained with (GLM, Nemotron, DeepSeek V3)."""
    import trl

    jinja = (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text(
        encoding="utf-8"
    )
    calls = calls[:1] if name in ONE_CALL_A_TURN else calls
    reply = parse_reply(rendered(jinja, calls), TYPED_TOOLS)
    assert [(call.name, call.arguments) for call in reply.calls] == calls and not reply.invalid


@pytest.mark.parametrize(
    ("text", "invalid"),
    [
        # A value that was cut off, or that contains the closing tag of its own notation.
        ("<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n", 1),
        ("<tool_call>\n<function=weather>\n<parameter=city>\nOs", 1),
        ("<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n", 1),
        (
            "<tool_call>weather\n<arg_key>city</arg_key> or <arg_value>Oslo</arg_value></tool_call>",
            1,
        ),
        ('[TOOL_CALLS]weather[ARGS]{"city": "Oslo"} and more', 1),
        ('<|tool_call>call:weather{city:<|"|>Oslo<|"|>', 1),
        ("<|tool_call_start|>[weather(city='it's')]<|tool_call_end|>", 1),
        ('{"name": "weather", "parameters": {"city": "</think>', 1),
        # An argument with two values: which of them is meant?
        (
            "<tool_call>weather\n<arg_key>city</arg_key><arg_value>Oslo</arg_value>\n"
            "<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call>",
            1,
        ),
        ("<start_function_call>call:weather{city:1,city:2}<end_function_call>", 1),
        ("I should call <tool_call>.</think>It is sunny.", 0),
    ],
)
def test_damage_is_reported(text, invalid):
    """What cannot be read is damage, and never a call with fewer arguments or an answer."""
    reply = parse_reply(text, TOOLS)
    assert (reply.calls, reply.invalid) == ((), invalid)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "042", "042"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "42", "42"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "None", None),
        ({"type": ["string", "null"]}, "true", "true"),
        ({"type": ["string", "integer"]}, "42", 42),
        ({"type": "string", "nullable": True}, "null", None),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"type": "boolean"}, "True", True),
        ({}, "42", 42),
        ({"type": "string"}, " two ", " two "),
    ],
)
def test_values_without_quotes_have_the_type_of_the_schema(schema, text, value):
    """Pydantic writes an optional text as `anyOf`; the digits of an order number stay text."""
    parameters = {"type": "object", "properties": {"key": schema}}
    tool = {"type": "function", "function": {"name": "look", "parameters": parameters}}
    written = f"<tool_call>\n<function=look>\n<parameter=key>\n{text}\n</parameter>\n</function>\n</tool_call>"
    (parsed,) = parse_reply(written, [tool]).calls
    assert parsed.arguments == {"key": value}
