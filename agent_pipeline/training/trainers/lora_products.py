"""The products of a LoRA module as one function of autograd.

PEFT computes `base(x) + lora_B(lora_A(x)) * scaling` operation by operation: the scaled product and the sum are tensors of the output's
size of their own, forward and backward, and under autocast x is copied to float32 and back. Here each product is added to the one before
it. The gradients are PEFT's, up to the rounding of sums.
"""

from functools import cache, partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from peft.tuners.lora import Linear


def multiply_in_place(model: "torch.nn.Module") -> None:
    """Give the LoRA modules of a model on a CPU this forward pass. Modules with dropout, a bias of LoRA's or a variant (DoRA) keep PEFT's,
    and so does each pass without gradients, with the adapter off or merged."""
    from peft.tuners.lora import Linear

    for module in model.modules():
        if type(module) is Linear and module.weight.device.type == "cpu" and _is_plain(module):
            module.forward = partial(_forward, module)


def _is_plain(module: "Linear") -> bool:
    import torch

    return (
        type(module.base_layer) is torch.nn.Linear
        and not module.base_layer.weight.requires_grad
        and not module.lora_variant
        and all(isinstance(each, torch.nn.Identity) for each in module.lora_dropout.values())
        and not any(module.lora_bias.values())
    )


def _forward(module: "Linear", x: "torch.Tensor", *args: Any, **kwargs: Any) -> "torch.Tensor":
    import torch

    active = [name for name in module.active_adapters if name in module.lora_A]
    if module.disable_adapters or module.merged or len(active) != 1 or args or kwargs or not torch.is_grad_enabled():
        return type(module).forward(module, x, *args, **kwargs)
    base, (name,) = module.base_layer, active
    x = x.to(base.weight.dtype)
    return _products().apply(x, base.weight, base.bias, module.lora_A[name].weight, module.lora_B[name].weight, module.scaling[name])


@cache
def _products() -> "type[torch.autograd.Function]":
    import torch
    from torch.nn.functional import linear

    class Products(torch.autograd.Function):
        """x (…, in), weight (out, in), bias (out) or None, a (rank, in), b (out, rank) → (…, out), of the type of x and weight."""

        @staticmethod
        def forward(
            ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, a: torch.Tensor, b: torch.Tensor, scaling: float
        ) -> torch.Tensor:
            rows, down, up = x.flatten(0, -2), a.to(x.dtype), b.to(x.dtype)
            within = rows @ down.t()
            ctx.save_for_backward(rows, weight, down, up, within)
            ctx.scaling, ctx.shape, ctx.dtype = scaling, x.shape, a.dtype
            return linear(rows, weight, bias).addmm_(within, up.t(), alpha=scaling).unflatten(0, x.shape[:-1])

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            rows, weight, down, up, within = ctx.saved_tensors
            gradient = gradient.flatten(0, -2)
            of_within = (gradient @ up).mul_(ctx.scaling)
            of_a, of_b = of_within.t() @ rows, (gradient.t() @ within).mul_(ctx.scaling)
            of_rows = (gradient @ weight).addmm_(of_within, down).view(ctx.shape) if ctx.needs_input_grad[0] else None
            return of_rows, None, None, of_a.to(ctx.dtype), of_b.to(ctx.dtype), None

    return Products
