"""The products of linear modules: packed weights, and LoRA's as one function."""

import pytest

from agent_pipeline.engine.packed_linear import speed_up_linear_modules


def lora_model(of_type: str, with_bias: bool = True, **options):
    """A linear layer under LoRA, whose matrix B is not 0."""
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    layers = torch.nn.ModuleDict(
        {
            "first": torch.nn.Linear(12, 10, bias=with_bias),
            "second": torch.nn.Linear(10, 7, bias=with_bias),
        }
    )

    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers

        def forward(self, x):
            return self.layers["second"](self.layers["first"](x))

    config = LoraConfig(
        r=3, lora_alpha=5, target_modules=["first", "second"], init_lora_weights=False, **options
    )
    model = get_peft_model(Layers(), config).to(getattr(torch, of_type))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = (
                parameter.data.float()
            )  # as PEFT keeps an adapter over a base of 16 bits
    return model


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("of_type", "autocast"), [("float32", False), ("bfloat16", False), ("bfloat16", True)]
)
def test_output_and_gradients_are_those_of_peft(of_type, autocast, bias):
    """A night's trainings call the model below the one that accelerate wraps, without autocast: PEFT's own products are in float32."""
    import torch

    model, outcome = lora_model(of_type, bias), []
    x = (
        torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(1))
        .to(getattr(torch, of_type))
        .requires_grad_()
    )
    for patched in (False, True):
        if patched:
            speed_up_linear_modules(model)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output = model(x)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        outcome.append([output, *torch.autograd.grad((output.float() ** 2).sum(), [x, *trained])])
    assert len(outcome[0]) == 6
    for peft, ours in zip(*outcome, strict=True):
        assert peft.dtype == ours.dtype
        if of_type == "float32":
            torch.testing.assert_close(peft, ours, rtol=1e-4, atol=1e-5)
        assert (
            float((peft - ours).float().norm() / peft.float().norm()) < 0.02
        )  # bfloat16 rounds by up to 0.004


def test_the_gradients_are_the_same_where_activations_are_recomputed():
    import torch
    from torch.utils.checkpoint import checkpoint

    model, x = lora_model("float32"), torch.randn(4, 12)
    speed_up_linear_modules(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    kept = torch.autograd.grad(model(x).square().sum(), trained)
    for one, other in zip(
        kept,
        torch.autograd.grad(checkpoint(model, x, use_reentrant=False).square().sum(), trained),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_an_adapter_that_is_off_or_merged_has_pefts_own_pass(monkeypatch):
    import torch

    from agent_pipeline.engine import packed_linear

    model, x = lora_model("float32"), torch.randn(4, 12)
    with model.disable_adapter():
        off = model(x)
    on = model(x)
    speed_up_linear_modules(model)
    torch.testing.assert_close(model(x), on)
    model(x).clamp_(
        min=0
    )  # the output is no view of what autograd made, so a model may change it (OLMo does)
    with torch.no_grad():
        torch.testing.assert_close(model(x), on)
    monkeypatch.setattr(
        packed_linear, "_frozen_linear_with_lora", lambda: pytest.fail("PEFT's own pass was due")
    )
    with model.disable_adapter():
        torch.testing.assert_close(model(x), off)
    model.merge_adapter()
    torch.testing.assert_close(model(x), on)


@pytest.mark.parametrize(
    "options",
    [{"lora_dropout": 0.5}, {"use_dora": True}, {"lora_bias": True}, {"bias": "lora_only"}, {}],
)
def test_what_is_more_than_two_products_is_left_to_peft(options, monkeypatch):
    import torch

    from agent_pipeline.engine import packed_linear

    model = lora_model("float32", **options)
    speed_up_linear_modules(model)
    if not options:  # a base that is trained, too
        model.requires_grad_(True)
    monkeypatch.setattr(
        packed_linear, "_frozen_linear_with_lora", lambda: pytest.fail("PEFT's own pass was due")
    )
    assert model(torch.randn(4, 12)).shape == (4, 7)


def packed_products(monkeypatch) -> list[bool]:
    """Whether each product by a packed weight, from now on, was one on the way back."""
    from agent_pipeline.engine import packed_linear

    if not packed_linear.has_packed_bfloat16():
        pytest.skip("oneDNN has no layouts for bfloat16 on this CPU")
    backs, plain = [], packed_linear.FrozenWeight.multiply

    def multiply(self, rows, weight, bias=None, transposed=False):
        result = plain(self, rows, weight, bias, transposed)
        if self._packed:
            backs.append(transposed)
        return result

    monkeypatch.setattr(packed_linear.FrozenWeight, "multiply", multiply)
    return backs


def test_products_of_packed_weights_are_the_plain_ones_and_have_their_gradients(monkeypatch):
    import torch

    torch.manual_seed(0)
    plain = torch.nn.Linear(24, 40).bfloat16().requires_grad_(False)
    packed = torch.nn.Linear(24, 40).bfloat16().requires_grad_(False)
    packed.load_state_dict(plain.state_dict())
    backs = packed_products(monkeypatch)
    speed_up_linear_modules(packed)
    x = torch.randn(2, 5, 24).bfloat16().requires_grad_()
    for one, other in zip(
        *(
            [each(x), *torch.autograd.grad(each(x).float().square().sum(), x)]
            for each in (plain, packed)
        ),
        strict=True,
    ):
        torch.testing.assert_close(one, other)
    with torch.inference_mode():
        torch.testing.assert_close(packed(x), plain(x))
    assert backs == [False, False, True, False]
    assert packed.state_dict().keys() == plain.state_dict().keys()


def test_an_adapter_that_is_off_has_the_packed_product_of_its_base(monkeypatch):
    import torch

    model, x = lora_model("bfloat16"), torch.randn(4, 12).bfloat16()
    with model.disable_adapter(), torch.inference_mode():
        off = model(x)
    backs = packed_products(monkeypatch)
    speed_up_linear_modules(model)
    with model.disable_adapter(), torch.inference_mode():
        torch.testing.assert_close(model(x), off)
    assert backs == [False, False]


@pytest.mark.parametrize("what", ["trained", "float32", "large"])
def test_a_weight_that_may_change_or_that_gains_nothing_is_not_packed(what, monkeypatch):
    import torch

    from agent_pipeline.engine import packed_linear

    module = torch.nn.Linear(24, 40).bfloat16().requires_grad_(False)
    backs = packed_products(monkeypatch)
    if what == "large":
        monkeypatch.setattr(packed_linear, "PACKED_BYTES", 24)
    if what == "float32":
        module.float()
    speed_up_linear_modules(module)
    x = torch.randn(3, 24).to(module.weight.dtype)
    if what == "trained":
        module.requires_grad_(True)
    assert torch.equal(module(x), torch.nn.functional.linear(x, module.weight, module.bias))
    assert not backs


def _replaced(module):
    import torch

    module.weight = torch.nn.Parameter(torch.ones_like(module.weight), requires_grad=False)


def _assigned(module):
    import torch

    module.weight.data = torch.ones_like(module.weight)


def _filled(module):
    module.weight.fill_(0.5)


@pytest.mark.parametrize("change", [_replaced, _assigned, _filled])
def test_a_frozen_weight_that_became_another_is_packed_anew(change, monkeypatch):
    import torch

    module, x = (
        torch.nn.Linear(24, 40).bfloat16().requires_grad_(False),
        torch.randn(3, 24).bfloat16(),
    )
    backs = packed_products(monkeypatch)
    speed_up_linear_modules(module)
    module(x)
    change(module)
    torch.testing.assert_close(module(x), torch.nn.functional.linear(x, module.weight, module.bias))
    assert backs == [False, False]


def test_no_rows_have_no_products_and_a_used_model_can_be_copied():
    import copy

    import torch

    for model in (torch.nn.Linear(12, 7).bfloat16().requires_grad_(False), lora_model("bfloat16")):
        speed_up_linear_modules(model)
        x = torch.randn(3, 12).bfloat16()
        torch.testing.assert_close(copy.deepcopy(model)(x), model(x))
        assert model(x[:0]).shape == (0, 7)
        torch.testing.assert_close(copy.deepcopy(model)(x), model(x))


def test_a_pass_over_a_tree_whose_first_tokens_predict_nothing(tiny_base, monkeypatch):
    """A system prompt that is longer than the tokens of a pass: the head has no rows."""
    import torch

    from agent_pipeline.engine import scoring
    from agent_pipeline.models.device import Device
    from agent_pipeline.models.loading import load_model
    from agent_pipeline.tokenization.loss_masks import Encoded

    monkeypatch.setattr(scoring, "CPU_NODES", 4)
    model = load_model(tiny_base, Device("cpu", True)).requires_grad_(False)
    rows = [Encoded([*range(5, 19), last], [False] * 13 + [True] * 2, []) for last in (40, 41)]
    plain = scoring.score_tokens(model, rows)
    speed_up_linear_modules(model)
    for one, other in zip(plain, scoring.score_tokens(model, rows), strict=True):
        torch.testing.assert_close(
            torch.tensor(one.losses), torch.tensor(other.losses), rtol=0.02, atol=0.02
        )


def test_a_layer_that_was_merged_into_its_base_computes_with_what_was_merged():
    import torch

    model, x = lora_model("bfloat16"), torch.randn(4, 12).bfloat16()
    with torch.inference_mode():
        before = model(x)
    speed_up_linear_modules(model)
    model(x)  # packs the base
    merged = model.merge_and_unload()
    with torch.inference_mode():
        assert float((merged(x) - before).float().norm() / before.float().norm()) < 0.02
