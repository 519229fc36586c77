"""A LoRA module's products as one function."""

import pytest

from agent_pipeline.training.trainers.lora_products import multiply_in_place


def lora_model(of_type: str, with_bias: bool = True, **options):
    """A linear layer under LoRA, whose matrix B is not 0."""
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    layers = torch.nn.ModuleDict({"first": torch.nn.Linear(12, 10, bias=with_bias), "second": torch.nn.Linear(10, 7, bias=with_bias)})

    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers

        def forward(self, x):
            return self.layers["second"](self.layers["first"](x))

    config = LoraConfig(r=3, lora_alpha=5, target_modules=["first", "second"], init_lora_weights=False, **options)
    model = get_peft_model(Layers(), config).to(getattr(torch, of_type))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()  # as PEFT keeps an adapter over a base of 16 bits
    return model


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("of_type", "autocast"), [("float32", False), ("bfloat16", False), ("bfloat16", True)])
def test_output_and_gradients_are_those_of_peft(of_type, autocast, bias):
    """A night's trainings call the model below the one that accelerate wraps, without autocast: PEFT's own products are in float32."""
    import torch

    model, outcome = lora_model(of_type, bias), []
    x = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(1)).to(getattr(torch, of_type)).requires_grad_()
    for patched in (False, True):
        if patched:
            multiply_in_place(model)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output = model(x)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        outcome.append([output, *torch.autograd.grad((output.float() ** 2).sum(), [x, *trained])])
    assert len(outcome[0]) == 6
    for peft, ours in zip(*outcome, strict=True):
        assert peft.dtype == ours.dtype
        if of_type == "float32":
            torch.testing.assert_close(peft, ours, rtol=1e-4, atol=1e-5)
        assert float((peft - ours).float().norm() / peft.float().norm()) < 0.02  # bfloat16 rounds by up to 0.004


def test_the_gradients_are_the_same_where_activations_are_recomputed():
    import torch
    from torch.utils.checkpoint import checkpoint

    model, x = lora_model("float32"), torch.randn(4, 12)
    multiply_in_place(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    kept = torch.autograd.grad(model(x).square().sum(), trained)
    for one, other in zip(kept, torch.autograd.grad(checkpoint(model, x, use_reentrant=False).square().sum(), trained), strict=True):
        torch.testing.assert_close(one, other)


def test_an_adapter_that_is_off_or_merged_has_pefts_own_pass(monkeypatch):
    import torch

    from agent_pipeline.training.trainers import lora_products

    model, x = lora_model("float32"), torch.randn(4, 12)
    with model.disable_adapter():
        off = model(x)
    on = model(x)
    multiply_in_place(model)
    torch.testing.assert_close(model(x), on)
    model(x).clamp_(min=0)  # the output is no view of what autograd made, so a model may change it (OLMo does)
    with torch.no_grad():
        torch.testing.assert_close(model(x), on)
    monkeypatch.setattr(lora_products, "_products", lambda: pytest.fail("PEFT's own pass was due"))
    with model.disable_adapter():
        torch.testing.assert_close(model(x), off)
    model.merge_adapter()
    torch.testing.assert_close(model(x), on)


@pytest.mark.parametrize("options", [{"lora_dropout": 0.5}, {"use_dora": True}, {"lora_bias": True}, {"bias": "lora_only"}, {}])
def test_what_is_more_than_two_products_is_left_to_peft(options, monkeypatch):
    import torch

    from agent_pipeline.training.trainers import lora_products

    model = lora_model("float32", **options)
    multiply_in_place(model)
    if not options:  # a base that is trained, too
        model.requires_grad_(True)
    monkeypatch.setattr(lora_products, "_products", lambda: pytest.fail("PEFT's own pass was due"))
    assert model(torch.randn(4, 12)).shape == (4, 7)
