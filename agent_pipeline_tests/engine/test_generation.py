"""Greedy answers."""

import pytest

from agent_pipeline._compat import transformers as hooks
from agent_pipeline.engine import generation as generating
from agent_pipeline.engine.cpu_attention import SharedPrefix, attend, grouped_attention
from agent_pipeline.engine.generation import generate
from agent_pipeline.engine.scoring import score_tokens
from agent_pipeline.evaluation.greedy import Continuation, Writer, greedy, verified_beginning
from agent_pipeline.evaluation.samples import turn_samples
from agent_pipeline.evaluation.turns import MARGIN, TurnAnswerer
from agent_pipeline.models.device import probe_device
from agent_pipeline.models.loading import load_model
from agent_pipeline.tokenization.loss_masks import Encoded
from agent_pipeline_tests.engine.test_scoring import LATENT, tiny
from agent_pipeline_tests.training.world import row

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def prompts(tiny_renderer):
    return [
        tiny_renderer.prompt_ids(row(n)["messages"][: 2 + 2 * (n % 2)], row(n)["tools"])
        for n in range(20)
    ]


def test_prompts_that_are_the_same_are_answered_alike(tiny_base):
    model = load_model(tiny_base, probe_device())
    (one,) = generate(model, [[5, 6, 7]], [4], ())
    assert generate(model, [[5, 6, 7]] * 3, [4] * 3, ()) == [one] * 3


def test_the_answers_are_those_of_hugging_faces_greedy_search(tiny_base, adapter_dir, prompts):
    import torch

    model = load_model(tiny_base, probe_device(), adapter_dir)
    limits = [5 + n for n in range(20)]
    stops = {model.config.eos_token_id}
    for prompt, limit, ours in zip(
        prompts, limits, generate(model, prompts, limits, stops), strict=True
    ):
        ids = torch.tensor([prompt])
        theirs = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=limit,
        )
        assert ours == [token for token in theirs[0, len(prompt) :].tolist() if token not in stops]


@pytest.mark.parametrize(
    "family",
    [
        {"model_type": "mistral", "sliding_window": 8},
        {"model_type": "lfm2", "layer_types": ["conv", "full_attention"]},
        {"model_type": "bloom"},
    ],
)
def test_a_model_with_windows_states_or_a_mask_of_its_own_answers_as_hugging_faces_greedy_search_does(
    family,
):
    """A state had no keys, and ended a training with an IndexError before its first step; a window counted padding."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**sizes, **family, vocab_size=128)
    ).eval()
    prompts, kept = [[*range(1, 12), 20 + n, 30 + 3 * n, 7][: 14 - n % 3] for n in range(4)], []
    for prompt, ours in zip(
        prompts, generate(model, prompts, [12] * 4, (), keep=kept), strict=True
    ):
        ids = torch.tensor([prompt])
        greedy_search = {
            "do_sample": False,
            "max_new_tokens": 12,
            "eos_token_id": None,
            "pad_token_id": 0,
        }
        assert (
            ours
            == model.generate(ids, attention_mask=torch.ones_like(ids), **greedy_search)[
                0, len(prompt) :
            ].tolist()
        )
    assert kept == [None] * 4


def passes_of(model, monkeypatch) -> list[int]:
    """The lengths of the passes that a model makes from now on."""
    lengths, plain = [], model.forward
    monkeypatch.setattr(
        model,
        "forward",
        lambda *given, **named: (
            lengths.append(named["input_ids"].shape[1]) or plain(*given, **named)
        ),
    )
    return lengths


def test_a_model_that_repeats_itself_is_read_many_tokens_a_pass(
    tiny_base, adapter_dir, monkeypatch
):
    model = load_model(tiny_base, probe_device(), adapter_dir)
    prompt = [5, 6, 7, 8] * 6
    plain = [generate(model, [prompt], [length], ())[0] for length in (1, 60)][1]
    lengths = passes_of(model, monkeypatch)
    assert generate(model, [prompt, prompt[:9]], [60, 60], ())[0] == plain and len(plain) == 60
    assert len(lengths) < 60 and max(lengths[1:]) > 8


@pytest.mark.parametrize("room", [1, 3])
def test_a_cache_that_has_too_few_columns_grows(room, tiny_base, adapter_dir, prompts, monkeypatch):
    model = load_model(tiny_base, probe_device(), adapter_dir)
    asked = [[5, 6, 7, 8] * 6, [5, 6, 7, 8] * 5 + [9], *prompts[:2]]
    expected = [generate(model, [prompt], [50], ())[0] for prompt in asked]
    made, with_room = [], hooks._with_room
    monkeypatch.setattr(
        hooks,
        "_with_room",
        lambda states, columns: made.append(columns) or with_room(states, columns),
    )
    monkeypatch.setattr(generating, "MORE_COLUMNS", room)
    monkeypatch.setattr(generating, "SPARE_COLUMNS", -40)
    assert generate(model, asked, [50] * 4, ()) == expected
    assert len(set(made)) > 3


def test_what_was_read_of_a_conversation_is_not_read_again(
    tiny_base, adapter_dir, prompts, monkeypatch
):
    model = load_model(tiny_base, probe_device(), adapter_dir)
    asked, kept = prompts[:5], []
    said = generate(model, asked, [12, 3, 9, 1, 30], {2}, keep=kept)
    assert all(
        each.ids == [*prompt, *answer][: len(each.ids)]
        for each, prompt, answer in zip(kept, asked, said, strict=True)
    )
    more = [
        [*prompt, *answer, 40 + number, 41]
        for number, (prompt, answer) in enumerate(zip(asked, said, strict=True))
    ]
    more[2] = [*more[2][:-6], 77]  # said otherwise than it was generated
    expected = generate(model, more, [10] * 5, {2})
    lengths = passes_of(model, monkeypatch)
    assert generate(model, more, [10] * 5, {2}, read=kept) == expected
    assert lengths[0] < 20 < min(map(len, more))


def test_what_all_prompts_begin_with_is_held_once(tiny_base, adapter_dir, monkeypatch):
    model = load_model(tiny_base, probe_device(), adapter_dir)
    beginning = [5 + n % 40 for n in range(300)]
    asked = [[*beginning, *range(60, 62 + number), 7] for number in range(5)]
    expected = [generate(model, [prompt], [20], ())[0] for prompt in asked]
    more = [[*prompt, *said, 90] for prompt, said in zip(asked, expected, strict=True)]
    expected_then = [generate(model, [prompt], [20], ())[0] for prompt in more]
    columns, make = [], generating.preallocated_cache
    monkeypatch.setattr(
        generating,
        "preallocated_cache",
        lambda room, more: columns.append(room) or make(room, more),
    )
    kept = []
    assert generate(model, asked, [20] * 5, (), keep=kept) == expected
    assert [each.ids[:300] for each in kept] == [beginning] * 5
    assert generate(model, more, [20] * 5, (), read=kept) == expected_then
    assert max(columns) < 100, "a sequence's own tokens, and some room"


@pytest.mark.parametrize("queries", [1, 3, 20])
def test_a_shared_prefix_is_attended_to_as_if_each_sequence_had_it(queries):
    import torch
    from transformers import DynamicCache

    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(40, heads, length, 8, generator=generator)
        for heads, length in ((6, queries), (2, 30), (2, 30))
    )
    above = [torch.randn(1, 2, 50, 8, generator=generator) for _ in range(2)]
    mask = torch.zeros(40, 1, queries, 30).masked_fill_(
        torch.rand(40, 1, queries, 30, generator=generator) < 0.5, torch.finfo().min
    )
    whole = [
        torch.cat([before.expand(40, -1, -1, -1), own], 2)
        for before, own in zip(above, (key, value), strict=True)
    ]
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, *whole, torch.cat([torch.zeros(40, 1, queries, 50), mask], -1), enable_gqa=True
    )
    cache = DynamicCache()
    cache.update(key, value, 0)
    prefix = SharedPrefix([tuple(above)], cache)
    layer = torch.nn.Module()
    layer.layer_idx = 0
    with torch.inference_mode():
        seen, _ = attend(layer, query, cache.layers[0].keys, value, mask, shared_prefix=prefix)
        attend(
            layer,
            query,
            key.clone(),
            value,
            mask,
            shared_prefix=(other := SharedPrefix([tuple(above)], cache)),
        )
    torch.testing.assert_close(seen.transpose(1, 2), expected)
    assert prefix.is_attended and not other.is_attended, (
        "a model that attends to something else than its cache holds cannot share it"
    )


def test_a_batch_holds_as_many_sequences_as_fit_into_memory(monkeypatch):
    monkeypatch.setattr(generating, "CACHE_BYTES", 100)
    lengths = [1, 2, 3, 10, 12, 40, 120, 130]
    assert list(generating._split_into_batches([*range(8)], lengths, 3, 2)) == [
        [0, 1, 2],
        [3, 4],
        [5],
        [6],
        [7],
    ]
    assert list(generating._split_into_batches([], [], 3, 2)) == []
    assert list(generating._split_into_batches([0, 1, 2], [30, 5, 5], 3, 2)) == [[0], [1, 2]], (
        "the longest need not be the last"
    )


def test_the_weights_of_the_head_are_not_copied_for_each_sequence(tiny_base, prompts):
    import torch

    model = load_model(tiny_base, probe_device()).requires_grad_(
        False
    )  # as the base of an adapter is
    head = model.get_output_embeddings().weight.numel()
    with torch.profiler.profile(record_shapes=True) as profile:
        generate(model, prompts[:8], [3] * 8, ())
    copied = [
        event.input_shapes[0]
        for event in profile.events()
        if event.name == "aten::copy_" and event.input_shapes
    ]
    assert copied and max(torch.Size(shape).numel() for shape in copied) < 8 * head


def test_a_few_new_tokens_attend_as_pytorch_would_and_padding_spoils_nothing():
    import torch

    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(3, heads, length, 8, generator=generator)
        for heads, length in ((6, 4), (2, 9), (2, 9))
    )
    mask = torch.ones(3, 1, 4, 9, dtype=torch.bool).tril(5)
    mask[1, :, :, :6] = False  # a short sequence
    mask[2, :, 0] = False  # padding, which sees nothing
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, mask, scale=0.4, enable_gqa=True
    ).transpose(1, 2)
    as_numbers = torch.zeros(mask.shape).masked_fill_(~mask, -torch.inf)
    for given in (mask, as_numbers):
        with torch.inference_mode():
            seen, _ = attend(None, query, key, value, given, scaling=0.4)
        real = mask.any(-1)[:, 0]
        torch.testing.assert_close(seen[real], expected[real])
        assert seen.isfinite().all()
    with torch.inference_mode():
        one, _ = attend(None, query[:, :, :1], key, value, None)
    torch.testing.assert_close(
        one,
        torch.nn.functional.scaled_dot_product_attention(
            query[:, :, :1], key, value, enable_gqa=True
        ).transpose(1, 2),
    )


def test_scores_of_several_sequences_are_not_rounded_to_bfloat16():
    import torch

    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(3, heads, length, 64, generator=generator).bfloat16()
        for heads, length in ((6, 1), (2, 400), (2, 400))
    )
    query *= 8  # as of a model with biases on its keys: scores of 30 and more
    seen = torch.zeros(3, 1, 1, 400, dtype=torch.bfloat16)
    exact = torch.nn.functional.scaled_dot_product_attention(
        *(each.double() for each in (query, key, value)), enable_gqa=True
    )
    with torch.inference_mode():
        ours, _ = attend(None, query, key, value, seen)
    assert float((ours.transpose(1, 2) - exact).norm() / exact.norm()) < 0.005


@pytest.mark.parametrize("of_type", ["float32", "bfloat16"])
def test_queries_of_a_tree_meet_the_keys_that_they_see(of_type, monkeypatch):
    import torch

    monkeypatch.setattr("agent_pipeline.engine.cpu_attention.BLOCK", 4)
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, 6, 10, 8), (1, 2, 17, 8), (1, 2, 17, 8))
    query, key, value = (
        torch.randn(shape, generator=generator).to(getattr(torch, of_type)) for shape in shapes
    )
    sees = torch.rand(1, 1, 10, 17, generator=generator) < 0.3
    sees[..., 7:] |= torch.eye(10, dtype=torch.bool)
    mask = torch.zeros(sees.shape, dtype=query.dtype).masked_fill_(
        ~sees, torch.finfo(query.dtype).min
    )
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, mask, enable_gqa=True
    ).transpose(1, 2)
    close = {} if of_type == "float32" else {"rtol": 0.02, "atol": 0.02}
    for given in (mask, sees):
        with torch.inference_mode():
            seen, _ = attend(None, query, key, value, given)
        torch.testing.assert_close(seen, expected, **close)


def test_what_was_read_goes_on_where_values_are_shorter_than_keys():
    model = tiny("deepseek_v3", **LATENT)
    prompts, kept = [[*range(3, 20), 30 + number] for number in range(3)], []
    said = generate(model, prompts, [4] * 3, (), keep=kept)
    more = [[*prompt, *answer, 50] for prompt, answer in zip(prompts, said, strict=True)]
    assert generate(model, more, [4] * 3, (), read=kept) == generate(model, more, [4] * 3, ())


def test_transformers_own_attention_is_back_after_the_work():
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    before = ALL_ATTENTION_FUNCTIONS["sdpa"]
    with grouped_attention(), grouped_attention():
        assert ALL_ATTENTION_FUNCTIONS["sdpa"] is attend
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is before


def test_prompts_that_share_nothing_are_answered_too(tiny_base, adapter_dir):
    model = load_model(tiny_base, probe_device(), adapter_dir)
    together = generate(model, [[5, 6, 7], [8]], [4, 6], ())
    assert together == [
        generate(model, [[5, 6, 7]], [4], ())[0],
        generate(model, [[8]], [6], ())[0],
    ]
    assert [len(answer) for answer in together] == [4, 6]


@pytest.mark.usefixtures("in_float32")
def test_verified_answers_are_those_of_plain_greedy_decoding(tiny_base, adapter_dir):
    """Whatever was expected: what the model writes, that with another token within it, or what the agent did."""
    answering = TurnAnswerer.of(tiny_base, adapter_dir)
    questions = [
        answering.question(sample, 64)
        for sample in turn_samples([row(number, "test") for number in range(24, 48)])[0]
    ]
    stops = answering.renderer.answer_end_ids
    prompts, limits = [question.prompt for question in questions], [24] * len(questions)
    plain = greedy(answering.model, prompts, limits, stops)
    stop = answering.renderer.tokenizer.convert_tokens_to_ids(answering.renderer.template.stops[0])
    expected = []
    for number, (question, written) in enumerate(zip(questions, plain, strict=True)):
        own = written.tokens if written.cut else [*written.tokens, stop]
        place = number % len(own)
        expected.append(
            [own, [*own[:place], own[place] + 1, *own[place + 1 :]], question.expected][number % 3]
        )
    rows = [
        Encoded([*prompt, *some], [False] * len(prompt) + [True] * len(some), [])
        for prompt, some in zip(prompts, expected, strict=True)
    ]
    writer = Writer(answering.model, stops)
    add = [
        lambda scores, read, at=at: writer.add(
            at, prompts[at], limits[at], expected[at], scores.best.tolist(), read
        )
        for at in range(len(rows))
    ]
    score_tokens(answering.model, rows, callbacks=dict(enumerate(add)))
    quick = writer.continuations()
    assert [(each.tokens, each.cut) for each in quick] == [
        (each.tokens, each.cut) for each in plain
    ]
    assert [each.verified for each in quick[::3]] == [
        not each.cut for each in plain[::3]
    ] and not all(each.cut for each in plain[::3])


def test_an_answer_that_ends_before_the_expected_text_does_is_not_verified(tiny_base, adapter_dir):
    model = load_model(tiny_base, probe_device(), adapter_dir)
    writer = Writer(model, {2, 3})
    for number, best in enumerate([[2, 9, 9], [5, 6, 2], [5, 6, 3]]):
        writer.add(number, [7, 8], 9, [5, 6, 2], best)
    assert writer.continuations() == [
        Continuation([], False, False),
        Continuation([5, 6], False, True),
        Continuation([5, 6], False, True),
    ]


def test_the_first_token_that_is_not_expected_ends_what_is_verified():
    assert verified_beginning([5, 6, 2], [5, 6, 2], {2}) == ([5, 6], True)
    assert verified_beginning([5, 6, 2], [5, 7, 2], {2}) == ([5, 7], False)
    assert verified_beginning([5, 6, 2], [5, 2, 2], {2}) == ([5], True)
    assert verified_beginning([5, 6], [5, 6], {2}) == ([5, 6], False)


def test_a_limit_too_low_for_what_was_expected_is_told_from_rambling(tiny_base, adapter_dir):
    answering = TurnAnswerer.of(tiny_base, adapter_dir)
    sample = turn_samples([row(25, "test")])[0][0]
    tight, roomy = answering.question(sample, 8), answering.question(sample, 200)
    assert tight.too_tight and not roomy.too_tight and roomy.limit == len(roomy.expected) + MARGIN
    replies = answering.replies([tight, roomy])
    assert [(reply.cut, reply.unended) for reply in replies] == [(True, True), (False, True)]
