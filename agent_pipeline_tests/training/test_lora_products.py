"""A LoRA module's products as one function."""

import pytest

from agent_pipeline.training.trainers.lora_products import multiply_in_place


def lora_model(of_type: str, bias: bool = True, **options):
    """A linear layer under LoRA, whose matrix B is not 0."""
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    layers = torch.nn.ModuleDict({"first": torch.nn.Linear(12, 10, bias=bias), "second": torch.nn.Linear(10, 7, bias=bias)})

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
@pytest.mark.parametrize("of_type", ["float32", "bfloat16"])
def test_output_and_gradients_are_those_of_peft(of_type, bias):
    import torch

    model, outcome = lora_model(of_type, bias), []
    x = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(1)).to(getattr(torch, of_type)).requires_grad_()
    for patched in (False, True):
        if patched:
            multiply_in_place(model)
        with torch.autocast("cpu", torch.bfloat16, enabled=of_type == "bfloat16"):
            output = model(x)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        outcome.append([output, *torch.autograd.grad((output.float() ** 2).sum(), [x, *trained])])
    assert len(outcome[0]) == 6
    close = {"rtol": 1e-4, "atol": 1e-5} if of_type == "float32" else {"rtol": 0.1, "atol": 0.3}
    for peft, ours in zip(*outcome, strict=True):
        assert peft.dtype == ours.dtype
        torch.testing.assert_close(peft, ours, **close)


def test_an_adapter_that_is_off_or_merged_and_a_pass_without_gradients_are_petfs_own(monkeypatch):
    import torch

    from agent_pipeline.training.trainers import lora_products

    model, x = lora_model("float32"), torch.randn(4, 12)
    with model.disable_adapter():
        off = model(x)
    on = model(x)
    multiply_in_place(model)
    torch.testing.assert_close(model(x), on)
    monkeypatch.setattr(lora_products, "_products", lambda: pytest.fail("PEFT's own pass was due"))
    with model.disable_adapter():
        torch.testing.assert_close(model(x), off)
    with torch.no_grad():
        torch.testing.assert_close(model(x), on)
    model.merge_adapter()
    torch.testing.assert_close(model(x), on)


@pytest.mark.parametrize("options", [{"lora_dropout": 0.5}, {"use_dora": True}, {"lora_bias": True}])
def test_what_is_more_than_two_products_is_left_to_peft(options):
    model = lora_model("float32", **options)
    multiply_in_place(model)
    assert not [name for name, module in model.named_modules() if "forward" in vars(module)]
