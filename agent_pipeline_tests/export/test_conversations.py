"""Conversations of several turns at llama.cpp's server: a model that says what it was taught, played as a client plays it."""

import copy
import json
from pathlib import Path

import pytest
import trl
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.errors import ExportError
from agent_pipeline.export import parity
from agent_pipeline.export.conversations import LEAST_TURNS, as_clients_send, play, turns_of
from agent_pipeline.export.converter import convert
from agent_pipeline.export.llama import LlamaCpp
from agent_pipeline.models.chat_renderer import ChatRenderer, read_renderer
from agent_pipeline.models.chat_templates import choose_template
from agent_pipeline.models.device import EXACT
from agent_pipeline.models.families import write_hermes_template
from agent_pipeline.models.loading import load_model
from agent_pipeline.models.rendering import render_template
from agent_pipeline.models.special_tokens import remove_marks
from agent_pipeline.tokenization.loss_masks import encode_conversation
from agent_pipeline_tests.export.conftest import model_at
from agent_pipeline_tests.models.test_chat_templates import TOOLS
from agent_pipeline_tests.models.test_json_numbers import CLIENTS, OBJECT_TEMPLATE, OBJECTS
from agent_pipeline_tests.tiny import with_jinja

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_converter")]

AMOUNTS = {
    "type": "object",
    "properties": {"amount": {"type": "number", "default": 1.0}, "to": {"type": "string"}},
}
PAY = [{"type": "function", "function": {"name": "pay", "description": "", "parameters": AMOUNTS}}]


def paying(call_id: str, arguments: str) -> list[dict]:
    return [
        {"id": call_id, "type": "function", "function": {"name": "pay", "arguments": arguments}}
    ]


CONVERSATION = {
    "messages": [
        {"role": "user", "content": "Pay both."},
        {
            "role": "assistant",
            "content": "First Ana.",
            "tool_calls": paying("a", '{"amount": 12345.67, "to": "Ana"}'),
        },
        {"role": "tool", "tool_call_id": "a", "content": "ok"},
        {
            "role": "assistant",
            "content": "Then Zoë.",
            "tool_calls": paying("b", '{"amount": 100.0, "to": "Zoë, \\"Z\\""}'),
        },
        {"role": "tool", "tool_call_id": "b", "content": "ok"},
        {"role": "assistant", "content": "Both are paid."},
        {"role": "user", "content": "Thanks."},
        {"role": "assistant", "content": "Gladly."},
    ],
    "tools": PAY,
}


def write_parrot(base: Path, folder: Path) -> None:
    """Teach the small random model one conversation by heart, and write it as GGUF."""
    import torch

    model = load_model(model_at(base), EXACT).train().requires_grad_(True)
    renderer = read_renderer(base)
    encoded = encode_conversation(renderer, CONVERSATION["messages"], PAY)
    ids, labels = torch.tensor([encoded.input_ids]), torch.tensor(encoded.labels[1:])
    own = labels != -100
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    for _ in range(200):
        hidden = model.model(input_ids=ids).last_hidden_state[0, :-1][own]
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden), labels[own])
        if loss.item() < 0.01:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder / "parrot")
    renderer.tokenizer.save_pretrained(folder / "parrot")
    convert(folder / "parrot", folder / "parrot.gguf", "f32")


@pytest.fixture(scope="module")
def parrot(once, tiny) -> Path:
    return once("parrot", lambda folder: write_parrot(tiny["base"], folder)) / "parrot.gguf"


def test_every_turn_of_a_played_conversation_is_shown_as_in_training(parrot, renderer):
    with LlamaCpp(parrot, n_ctx=1024) as llama:
        first = llama.chat(CONVERSATION["messages"][:1], PAY, 64)
        played = play(llama, renderer, [CONVERSATION], 1, 64)
    # What the client gets: the number as it was taught, and the line end before the call, which it sends back.
    assert first["tool_calls"][0]["function"]["arguments"] == '{"amount":12345.67,"to":"Ana"}'
    assert first["content"] == "First Ana.\n"
    assert (played.conversations, played.turns, played.equal, played.parted, played.difference) == (
        1,
        3,
        3,
        0,
        "",
    )


WORDS = "{%- if message.tool_calls -%}{%- set words = words.rstrip(' \\n\\r\\t') -%}{%- endif -%}"
TRIAL = "documents is not defined and enable_thinking is not defined"


@pytest.mark.parametrize(
    ("part", "instead"), [(WORDS, ""), (TRIAL, "false")], ids=["line ends", "numbers"]
)
def test_a_template_that_shows_the_second_turn_otherwise_is_found_out(
    parrot, renderer, part, instead
):
    """The two errors that the template avoids, put back into it: the check must see each of them."""
    assert part in write_hermes_template()
    with LlamaCpp(
        parrot, n_ctx=1024, chat_template=write_hermes_template().replace(part, instead)
    ) as llama:
        played = play(llama, renderer, [CONVERSATION], 1, 64)
    assert played.equal < played.turns and played.difference.startswith("turn 2 is shown as")


def test_the_recorded_conversation_is_sent_as_a_client_would_and_read_as_it_was_trained(
    parrot, renderer
):
    messages = CONVERSATION["messages"]
    assert turns_of(messages) > LEAST_TURNS
    sent = as_clients_send(messages)
    assert [message["content"] for message in sent if message.get("tool_calls")] == [
        "First Ana.\n",
        "Then Zoë.\n",
    ]
    with LlamaCpp(parrot, n_ctx=1024) as llama:
        shown = llama.tokenize(llama.render(sent, PAY, add_generation_prompt=False))
    assert shown == encode_conversation(renderer, messages, PAY).input_ids
    assert json.dumps(messages) == json.dumps(
        CONVERSATION["messages"]
    )  # nothing was changed in place


NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(-(10**9), 10**9, places=2).map(str),
    st.sampled_from(
        [
            "100.0",
            "12345.67",
            "52.5200066",
            "1e5",
            "1E-7",
            "-0",
            "-0.0",
            "999999.5",
            "18446744073709551616",
            "1e22",
        ]
    ),
)


@given(numbers=st.lists(NUMBERS, min_size=1, max_size=100))
@settings(max_examples=20)
def test_numbers_of_objects_are_written_as_the_installed_llama_cpp_writes_them(
    objects_llama, renderer, numbers
):
    """A template that needs objects, as Qwen 3.5's does: earlier calls and schemas in training are what the server shows."""
    arguments = f'{{"amounts": [{", ".join(numbers)}]}}'
    messages = [
        {"role": "user", "content": "Pay."},
        {"role": "assistant", "content": "", "tool_calls": paying("call00001", arguments)},
        {"role": "tool", "tool_call_id": "call00001", "content": "ok"},
    ]
    schema = {
        "type": "object",
        "properties": {"amount": {"type": "array", "default": json.loads(arguments)["amounts"]}},
    }
    tools = [
        {"type": "function", "function": {"name": "pay", "description": "", "parameters": schema}}
    ]
    served = objects_llama.render(messages, tools)
    assert served == render_template(
        renderer.tokenizer, OBJECT_TEMPLATE, "dict", messages, tools, True
    )


@pytest.fixture(scope="module")
def objects_llama(parrot):
    with LlamaCpp(parrot, n_ctx=512, chat_template=OBJECT_TEMPLATE) as llama:
        yield llama


@given(value=OBJECTS, client=CLIENTS)
@settings(max_examples=50)
def test_our_template_shows_in_llama_cpp_what_training_shows(parrot_llama, renderer, value, client):
    """Whatever a call's arguments hold, and whatever blanks a client writes."""
    messages = [
        {"role": "user", "content": "Pay."},
        {
            "role": "assistant",
            "content": "Now.",
            "tool_calls": paying("call00001", json.dumps(value, ensure_ascii=False, **client)),
        },
        {"role": "tool", "tool_call_id": "call00001", "content": "ok"},
    ]
    assert parrot_llama.render(as_clients_send(messages), PAY) == remove_marks(
        renderer.render(messages, PAY, True)
    )


@given(tools=TOOLS, data=st.data())
@settings(max_examples=30)
def test_our_template_shows_the_tools_in_one_order_in_llama_cpp_too(
    parrot_llama, renderer, tools, data
):
    """The model sees the prompt of training, whatever the order in which a client lists its tools."""
    messages = CONVERSATION["messages"][:1]
    shuffled = data.draw(st.permutations(tools))
    assert parrot_llama.render(messages, shuffled) == renderer.render(messages, tools, True)


@pytest.fixture(scope="module")
def parrot_llama(parrot):
    with LlamaCpp(parrot, n_ctx=512) as llama:
        yield llama


@pytest.mark.parametrize(
    "schema",
    [{"$ref": "#/$defs/nowhere"}, {"type": "money"}, {"$ref": "https://example.com/amount.json"}],
)
def test_tools_that_the_server_refuses_are_named_and_the_other_conversations_are_compared(
    parrot_llama, renderer, schema
):
    """llama.cpp refuses every request with such a schema: the report says so, of the tool, with the server's words."""
    bad = {
        "type": "function",
        "function": {
            "name": "bad",
            "parameters": {"type": "object", "properties": {"amount": schema}},
        },
    }
    refused = {"messages": CONVERSATION["messages"], "tools": [bad, *PAY]}
    report = parity.check_template(parrot_llama, renderer, [CONVERSATION, refused])
    assert report.texts == 2 and set(report.tools) == {"bad"}
    assert report.tools["bad"].conversations == 1
    assert report.tools["bad"].why.startswith("its schema is refused: ")
    with pytest.raises(ExportError, match="because of the tools bad"):
        parity.check_template(parrot_llama, renderer, [refused])


def test_a_pattern_with_groups_and_escapes_is_served_or_named(parrot_llama, renderer):
    """A schema of a mail server (ggml-org/llama.cpp#25895), which some versions of llama.cpp refuse."""
    ids = {
        "type": "array",
        "items": {"type": "string", "pattern": "^(\\d+|imap:[A-Za-z0-9_-]+)$"},
        "minItems": 1,
        "maxItems": 100,
    }
    parameters = {"type": "object", "properties": {"ids": ids}, "required": ["ids"]}
    mail = {
        "type": "function",
        "function": {
            "name": "delete_messages",
            "description": "Delete mails.",
            "parameters": parameters,
        },
    }
    report = parity.check_template(
        parrot_llama,
        renderer,
        [CONVERSATION, {"messages": CONVERSATION["messages"][:1], "tools": [mail]}],
    )
    assert report.texts == 4 or report.tools["delete_messages"].conversations == 1


def test_a_template_with_rounded_numbers_is_an_error_even_if_no_conversation_has_one(
    parrot, renderer
):
    """A check without decimals would pass such a template, and the served model would see its own calls rounded."""
    plain = {
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
    }
    rounding = with_jinja(renderer, write_hermes_template().replace(TRIAL, "false"))
    with (
        LlamaCpp(parrot, n_ctx=512, chat_template=rounding.template.jinja) as llama,
        pytest.raises(ExportError, match="made for this check"),
    ):
        parity.check_template(llama, rounding, [plain])


@pytest.fixture(scope="module", params=["qwen2_5.jinja", "qwen3_instruct_2507.jinja"])
def stock(request, parrot, tokenizer):
    """A tokenizer with a template of Qwen's as it is trained with, and llama.cpp with the same."""
    trained = copy.deepcopy(tokenizer)
    trained.chat_template = (
        Path(trl.__file__).parent / "chat_templates" / request.param
    ).read_text(encoding="utf-8")
    template = choose_template(trained)
    assert template.origin == "model"
    with LlamaCpp(parrot, n_ctx=512, chat_template=template.jinja) as llama:
        yield ChatRenderer(trained, template), llama


@given(value=OBJECTS, client=CLIENTS)
@settings(max_examples=30)
def test_a_models_own_template_is_given_text_where_that_can_be_done(stock, value, client):
    """llama.cpp gave it objects and rounded their numbers; the words before a call got a second line end."""
    renderer, llama = stock
    messages = [
        {"role": "user", "content": "Pay."},
        {
            "role": "assistant",
            "content": "Now.",
            "tool_calls": paying("call00001", json.dumps(value, ensure_ascii=False, **client)),
        },
        {"role": "tool", "tool_call_id": "call00001", "content": "ok"},
    ]
    shown = remove_marks(renderer.render(messages, PAY, True))
    assert llama.render(as_clients_send(messages), PAY) == shown
    assert json.dumps(value, ensure_ascii=False) in shown


@given(tools=TOOLS, data=st.data())
@settings(max_examples=30)
def test_a_models_own_template_shows_the_tools_in_one_order_in_llama_cpp(stock, tools, data):
    """The order of a client's tools changes nothing in what the served model reads."""
    renderer, llama = stock
    messages = CONVERSATION["messages"][:1]
    shuffled = data.draw(st.permutations(tools))
    assert llama.render(messages, shuffled) == renderer.render(messages, tools, True)
