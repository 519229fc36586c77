"""What a family's real chat template writes is read back. The templates are those that TRL ships."""

import json
from pathlib import Path

import pytest

from agent_pipeline.models.families import FAMILIES, parse_reply
from agent_pipeline.models.rendering import as_servers_send
from agent_pipeline_tests.evaluation.hard_cases import TOOLS

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
