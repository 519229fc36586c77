"""What trees are computed with on a GPU, with a kernel and graphs that stand for a GPU's."""

import logging
import sys
from functools import wraps
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from agent_pipeline.engine import cuda_graphs, tree_attention, tree_loss, varlen_attention
from agent_pipeline.engine.prefix_tree import build_prefix_tree
from agent_pipeline.tokenization.loss_masks import Encoded
from agent_pipeline.training.config import STORED_TOKENS
from agent_pipeline.training.trainers import common

TRUNK = list(range(1, 40))


def tree_of(*answers: list[int]) -> dict:
    rows = [
        Encoded([*TRUNK, *answer], [False] * len(TRUNK) + [True] * len(answer), [])
        for answer in answers
    ]
    return tree_loss.tree_tensors(build_prefix_tree(rows), "cuda")


def varlen(
    query,
    key,
    value,
    cu_seq_q,
    cu_seq_k,
    max_q,
    max_k,
    *,
    scale=None,
    window_size=(-1, -1),
    enable_gqa=False,
):
    """PyTorch's `varlen_attn`, in loops: the causal mask is aligned to the end of a sequence's keys."""
    assert window_size == (-1, 0)
    assert enable_gqa or key.shape[1] == query.shape[1]
    seen = []
    for (begin, end), (first, last) in zip(pairwise(cu_seq_q), pairwise(cu_seq_k), strict=True):
        assert end - begin <= max_q and last - first <= max_k and last - first >= end - begin
        sees = torch.ones(end - begin, last - first, dtype=torch.bool).tril(
            last - first - (end - begin)
        )
        of = [
            each.transpose(0, 1) for each in (query[begin:end], key[first:last], value[first:last])
        ]
        seen.append(
            scaled_dot_product_attention(*of, sees, scale=scale, enable_gqa=True).transpose(0, 1)
        )
    return torch.cat(seen)


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen)
    monkeypatch.setattr(tree_attention, "supports_spans", lambda *_: True)
    varlen_attention._is_right.cache_clear()
    yield monkeypatch
    varlen_attention._is_right.cache_clear()


@pytest.fixture
def model():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes)).train()
    model.get_output_embeddings().weight.requires_grad_(False)
    model.get_input_embeddings().weight.requires_grad_(False)
    return model


def gradients(model, *trees: dict) -> list[torch.Tensor]:
    """The gradients of the sum of the trees' losses, computed run by run."""
    model.zero_grad()
    sum(tree_loss.tree_loss(model, each) for each in trees).backward()
    found = [parameter.grad for parameter in model.parameters() if parameter.requires_grad]
    model.zero_grad()
    return found


TREES = {
    "several rows": lambda: tree_of([41, 42, 43], [41, 42, 44], [45, 46], [45, 47, 48, 49]),
    "one row": lambda: tree_of([41, 42]),
    "nothing shared": lambda: tree_loss.tree_tensors(
        build_prefix_tree([Encoded([first, 5, 6], [False, True, True], []) for first in (1, 2, 3)]),
        "cuda",
    ),
}


@pytest.mark.parametrize("name", TREES)
def test_one_kernel_for_all_runs_gives_the_gradients_of_run_by_run(kernel, model, name):
    with kernel.context() as one_by_one:
        one_by_one.setattr(tree_attention, "supports_spans", lambda *_: False)
        expected = gradients(model, TREES[name]())
    given = TREES[name]()
    for found, wanted in zip(gradients(model, given), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
    assert given["layout"].attended and not given["layout"].run_by_run


def test_the_kernel_is_taken_only_where_it_makes_what_a_mask_makes(kernel):
    heads = (
        varlen_attention.HeadShape(4, 2, 8, 8),
        torch.float32,
        torch.device("cpu"),
    )
    assert varlen_attention._is_right(*heads)
    varlen_attention._is_right.cache_clear()

    @wraps(varlen)
    def aligned_to_the_first_key(*args, **kwargs):
        whole = varlen(*args, **kwargs)
        return torch.cat([whole[:20], whole[20:].roll(1, 0)])

    kernel.setattr("torch.nn.attention.varlen.varlen_attn", aligned_to_the_first_key)
    assert not varlen_attention._is_right(*heads)


def test_a_pytorch_that_refuses_the_kernel_attends_run_by_run(kernel):
    def refuses(*args, **kwargs):
        raise RuntimeError("FlashAttention only supports fp16 and bf16")

    kernel.setattr("torch.nn.attention.varlen.varlen_attn", refuses)
    assert not varlen_attention._is_right(
        varlen_attention.HeadShape(4, 2, 8, 8), torch.float32, torch.device("cpu")
    )


@pytest.fixture
def captured(kernel):
    """Graphs that compute anew what they were captured of, into the same tensors; `captured` are their sizes."""
    sizes = []

    def capture(results, inputs, pool):
        written = results(inputs)
        sizes.append(inputs["input_ids"].shape[1])

        def start() -> None:
            for own, new in zip(written, results(inputs), strict=True):
                own.copy_(new)

        return cuda_graphs.CapturedGraph(inputs, written, start, "pool")

    kernel.setattr(cuda_graphs, "capture", capture)
    return sizes


@pytest.mark.parametrize("name", TREES)
def test_graphs_add_the_gradients_of_trees_of_one_size_each_with_its_own_tokens(
    captured, model, name
):
    others = [
        tree_of([50, 51, 52, 53]),
        tree_of([54], [55, 56]),
        TREES[name](),
        tree_of([57, 58]),
        TREES["several rows"](),
    ]
    expected = gradients(model, *others)
    by_graphs, loss = cuda_graphs.CudaGraphs(model, tree_loss.tree_loss), 0.0
    for each in others:
        loss += float(by_graphs.add_gradients(each, total=2.0))
    assert captured == [cuda_graphs.SMALLEST_GRAPH.nodes]  # not the first tree's
    with torch.no_grad():
        assert loss == pytest.approx(
            float(sum(tree_loss.tree_loss(model, each) for each in others)) / 2, rel=1e-5
        )
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter, wanted in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, wanted / 2, rtol=1e-4, atol=1e-6)


def test_a_graph_that_makes_other_gradients_ends_the_use_of_graphs(
    captured, model, caplog, monkeypatch
):
    make = cuda_graphs.capture

    def wrong(results, inputs, pool):
        return make(lambda given: [2 * each for each in results(given)], inputs, pool)

    monkeypatch.setattr(cuda_graphs, "capture", wrong)
    expected = gradients(model, *(TREES["one row"]() for _ in range(5)))
    by_graphs = cuda_graphs.CudaGraphs(model, tree_loss.tree_loss)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            by_graphs.add_gradients(TREES["one row"](), total=1.0)
    assert len(captured) == 1 and "CUDA graphs make other gradients here" in caplog.text
    for parameter, wanted in zip(
        (each for each in model.parameters() if each.requires_grad), expected, strict=True
    ):
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-4, atol=1e-6)


def test_a_graph_that_cannot_be_captured_ends_the_use_of_graphs(
    captured, model, caplog, monkeypatch
):
    def fails(*_) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(cuda_graphs, "capture", fails)
    expected = gradients(model, *(TREES["one row"]() for _ in range(3)))
    by_graphs = cuda_graphs.CudaGraphs(model, tree_loss.tree_loss)
    for _ in range(3):
        by_graphs.add_gradients(TREES["one row"](), total=1.0)
    assert (
        caplog.text.count(
            "CUDA graphs cannot be captured here (operation not permitted when stream is capturing)"
        )
        == 1
    )
    for parameter, wanted in zip(
        (each for each in model.parameters() if each.requires_grad), expected, strict=True
    ):
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-4, atol=1e-6)


def test_a_parameter_that_no_token_meets_has_no_gradient(captured, model):
    model.vision_tower = torch.nn.Linear(2, 2)
    by_graphs = cuda_graphs.CudaGraphs(model, tree_loss.tree_loss)
    for _ in range(3):
        by_graphs.add_gradients(TREES["one row"](), total=1.0)
    assert captured and not model.vision_tower.weight.grad.any()


def test_no_graph_is_captured_where_attention_is_computed_run_by_run(captured, model, monkeypatch):
    monkeypatch.setattr(tree_attention, "supports_spans", lambda *_: False)
    by_graphs = cuda_graphs.CudaGraphs(model, tree_loss.tree_loss)
    for _ in range(4):
        by_graphs.add_gradients(TREES["one row"](), total=1.0)
    assert not captured


@pytest.mark.parametrize("nodes", [1, 300, 512, 513, 700, 1024, 1025, 3000, 5000, 40_000])
@pytest.mark.parametrize("keys_a_node", [1.0, 1.3, 4.0])
def test_a_graph_has_room_for_its_tree_and_few_sizes_do(nodes, keys_a_node):
    def counts(nodes: int) -> cuda_graphs.TreeSize:
        return cuda_graphs.TreeSize(
            nodes + 1, nodes // 3 + 1, nodes // 100 + 2, int(nodes * keys_a_node) + 1
        )

    assert cuda_graphs.fits(counts(nodes), cuda_graphs.choose_graph_size(counts(nodes)))
    assert (
        len({cuda_graphs.choose_graph_size(counts(each)) for each in range(nodes, 2 * nodes)}) <= 6
    )


def test_a_tree_is_padded_to_a_graph_that_is_there_unless_that_is_much_larger(captured, model):
    by_graphs = cuda_graphs.CudaGraphs(model, tree_loss.tree_loss)
    for answer in ([41] * 2000, [42] * 2000, [43] * 1400, [44] * 900, [45] * 800):
        by_graphs.add_gradients(tree_of(answer), total=1.0)
    assert captured == [2048, 1024]


def test_a_model_that_drops_values_chooses_experts_or_computes_again_has_no_graphs(model):
    assert not cuda_graphs.supports_graphs(model)  # a CPU
    names = ("named_modules", "get_output_embeddings", "config")
    on_a_gpu = {name: getattr(model, name) for name in names} | {
        "device": torch.device("cuda"),
        "is_gradient_checkpointing": False,
    }
    assert cuda_graphs.supports_graphs(SimpleNamespace(**on_a_gpu))
    assert not cuda_graphs.supports_graphs(
        SimpleNamespace(**on_a_gpu | {"is_gradient_checkpointing": True})
    )
    dropping = [*model.named_modules(), ("dropout", torch.nn.Dropout(0.1))]
    assert not cuda_graphs.supports_graphs(
        SimpleNamespace(**on_a_gpu | {"named_modules": lambda: dropping})
    )
    choosing = [*model.named_modules(), ("model.layers.0.mlp.experts", torch.nn.Identity())]
    assert not cuda_graphs.supports_graphs(
        SimpleNamespace(**on_a_gpu | {"named_modules": lambda: choosing})
    )
    model.get_output_embeddings().weight.requires_grad_()
    assert not cuda_graphs.supports_graphs(SimpleNamespace(**on_a_gpu))


def test_liger_is_used_on_a_gpu_for_models_that_it_knows_without_its_loss(monkeypatch):
    used, of = [], {"llama": None}
    package = SimpleNamespace(MODEL_TYPE_TO_APPLY_LIGER_FN=of)
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers.monkey_patch", package)
    monkeypatch.setattr(
        "transformers.integrations.liger.apply_liger_kernel",
        lambda model, config: used.append(config),
    )
    monkeypatch.setattr(common, "version", lambda package: "0.8.5")

    def asked(kind: str, device: str, installed: bool = True) -> str:
        monkeypatch.setattr("transformers.utils.is_liger_kernel_available", lambda: installed)
        return common.apply_liger(
            SimpleNamespace(device=torch.device(device), config=SimpleNamespace(model_type=kind))
        )

    assert asked("llama", "cuda") == "liger-kernel 0.8.5"
    assert used == [{"fused_linear_cross_entropy": False}]
    assert (
        asked("llama", "cpu")
        == asked("mamba", "cuda")
        == asked("llama", "cuda", installed=False)
        == ""
    )
    assert len(used) == 1


def test_a_gpu_keeps_activations_as_far_as_its_memory_goes(model, monkeypatch):
    assert common.estimate_stored_tokens(model) == STORED_TOKENS
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (80 << 30, 80 << 30))
    large = SimpleNamespace(hidden_size=3584, intermediate_size=18944, num_hidden_layers=28)
    config = SimpleNamespace(get_text_config=lambda: large)
    of_7_billion = SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16, config=config)
    assert 2000 < common.estimate_stored_tokens(of_7_billion) < 4000
    large.num_hidden_layers = 1
    assert common.estimate_stored_tokens(of_7_billion) > 56_000
    large.intermediate_size = [16384, 18944]  # Gemma 3n has one for each layer
    assert common.estimate_stored_tokens(of_7_billion) > 56_000
    large.num_experts_per_tok = 8
    assert common.estimate_stored_tokens(of_7_billion) < 20_000
    of_7_billion.parameters = lambda: [SimpleNamespace(nbytes=30 << 30)]
    assert common.estimate_stored_tokens(of_7_billion, trains_all_weights=True) == 0
