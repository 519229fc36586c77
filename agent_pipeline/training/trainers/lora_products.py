"""The products of a LoRA module as one function of autograd.

PEFT computes `base(x) + lora_B(lora_A(x)) * scaling` operation by operation: the scaled product and the sum are tensors of the output's
size of their own, forward and backward, and of a base in bfloat16 x is copied to float32 and back. Here each product is added to the one
before it, in the type of the base's weights, as autocast would compute it: A and B are float32, and are rounded for the products.
"""

from functools import cache, partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from peft.tuners.lora import Linear


def multiply_in_place(model: "torch.nn.Module") -> None:
    """Give the LoRA modules of a model on a CPU this forward pass, with and without gradients. What is more than two products (dropout,
    DoRA, a bias of LoRA's), a base that is trained, and an adapter that is off or merged have PEFT's own."""
    from peft.tuners.lora import Linear

    for module in model.modules():
        if type(module) is Linear and module.weight.device.type == "cpu":
            module.forward = partial(_forward, module)


def _forward(module: "Linear", x: "torch.Tensor", *args: Any, **kwargs: Any) -> "torch.Tensor":
    base, active = module.base_layer, [name for name in module.active_adapters if name in module.lora_A]
    if module.disable_adapters or module.merged or len(active) != 1 or args or kwargs or not _is_plain(module, active[0]):
        return type(module).forward(module, x, *args, **kwargs)
    (name,) = active
    rows = x.reshape(-1, x.shape[-1]).to(base.weight.dtype)
    products = _products().apply(rows, base.weight, base.bias, module.lora_A[name].weight, module.lora_B[name].weight, module.scaling[name])
    return products.view(*x.shape[:-1], -1)


def _is_plain(module: "Linear", name: str) -> bool:
    import torch

    base, dropout = module.base_layer, module.lora_dropout[name]
    return (
        type(base) is torch.nn.Linear
        and not base.weight.requires_grad
        and (base.bias is None or not base.bias.requires_grad)
        and name not in module.lora_variant
        and not module.lora_bias[name]
        and (isinstance(dropout, torch.nn.Identity) or dropout.p == 0)
        and (not torch.is_autocast_enabled("cpu") or torch.get_autocast_dtype("cpu") == base.weight.dtype)
    )


@cache
def _products() -> "type[torch.autograd.Function]":
    import torch
    from torch.nn.functional import linear

    class Products(torch.autograd.Function):
        """rows (n, in), weight (out, in), bias (out) or None, a (rank, in), b (out, rank) → (n, out), of the type of rows and weight."""

        @staticmethod
        def forward(
            ctx: Any, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, a: torch.Tensor, b: torch.Tensor, scaling: float
        ) -> torch.Tensor:
            down, up = a.to(rows.dtype), b.to(rows.dtype)
            within = rows @ down.t()
            ctx.save_for_backward(rows, weight, down, up, within)
            ctx.scaling, ctx.dtype = scaling, a.dtype
            return linear(rows, weight, bias).addmm_(within, up.t(), alpha=scaling)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            rows, weight, down, up, within = ctx.saved_tensors
            of_within = (gradient @ up).mul_(ctx.scaling)
            of_a, of_b = of_within.t() @ rows, (gradient.t() @ within).mul_(ctx.scaling)
            of_rows = (gradient @ weight).addmm_(of_within, down) if ctx.needs_input_grad[0] else None
            return of_rows, None, None, of_a.to(ctx.dtype), of_b.to(ctx.dtype), None

    return Products
