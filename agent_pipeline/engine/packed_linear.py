"""The products of a model's linear modules on a CPU, as functions of our own.

**Packed weights.** PyTorch gives oneDNN a weight as it lies in memory, which oneDNN lays out anew for each product. A frozen weight in
bfloat16 is laid out once here: of SmolLM2-135M (2 cores) all products of 640 tokens took 0.82 of the time, those of 32 tokens 0.66, with
the same results to the bit. It costs the weight's memory once more, and in a training twice more.

**LoRA.** PEFT computes `base(x) + lora_B(lora_A(x)) * scaling` operation by operation: the scaled product and the sum are tensors of the
output's size of their own, forward and backward, and of a base in bfloat16 x is copied to float32 and back. Here each product is added to
the one before it, in the type of the base's weights, as autocast would compute it: A and B are float32, and are rounded for the products.
"""

from functools import cache, partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from peft.tuners.lora import Linear

PACKED_BYTES = 2 << 30
"""The weights of a model that are packed at most; those of a larger one stay as they are, all of them."""

ROWS = 512
"""Rows for which a weight is laid out. oneDNN chose the same layout for 1 to 640."""


def fast_products(model: "torch.nn.Module") -> None:
    """Give the linear modules of a model on a CPU these products, with and without gradients. What is trained has PyTorch's own, and
    what is more than two products (dropout, DoRA, a bias of LoRA's) or an adapter that is merged has PEFT's. A frozen weight whose values
    are then changed in place is not noticed where PyTorch does not count the change (`weight.data += ...`)."""
    import torch
    from peft.tuners.lora import Linear
    from peft.tuners.tuners_utils import BaseTunerLayer

    adapted = {
        id(module.base_layer)
        for module in model.modules()
        if isinstance(module, BaseTunerLayer) and hasattr(module, "base_layer")
    }
    lora = [module for module in model.modules() if type(module) is Linear]
    plain = [
        module
        for module in model.modules()
        if type(module) is torch.nn.Linear and id(module) not in adapted
    ]
    plain = [module for module in plain if _is_packable(module.weight)]
    weights = {
        id(weight): weight
        for weight in (*(each.base_layer.weight for each in lora), *(each.weight for each in plain))
    }
    packs = sum(each.nbytes for each in weights.values() if _is_packable(each)) <= PACKED_BYTES
    of = {name: Weight(packs) for name in weights}
    for module in lora:
        module.forward = partial(_of_lora, module, of[id(module.base_layer.weight)])
    for module in plain if packs else []:
        module.forward = partial(_of_linear, module, of[id(module.weight)])


class Weight:
    """The products with a weight (out, in), which is packed where that is possible, when it is first needed."""

    def __init__(self, packs: bool) -> None:
        self._packs = packs
        self._packed: dict[bool, torch.Tensor] = {}
        self._of: torch.Tensor | None = None
        self._state = (0, 0)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "_packs": self._packs,
            "_packed": {},
            "_of": None,
            "_state": (0, 0),
        }  # what is packed cannot be copied

    def product(
        self,
        rows: "torch.Tensor",
        weight: "torch.Tensor",
        bias: "torch.Tensor | None" = None,
        back: bool = False,
    ) -> "torch.Tensor":
        """`rows` (n, in) → (n, out), the bias added; on the way `back` (n, out) → (n, in)."""
        import torch

        directed = weight.t() if back else weight
        if not self._packs or rows.dtype != torch.bfloat16 or not _is_packable(weight):
            return torch.nn.functional.linear(rows, directed, bias)
        state = (weight.data_ptr(), weight._version)
        if self._of is not weight or self._state != state:
            self._packed, self._of, self._state = {}, weight, state
        if back not in self._packed:
            self._packed[back] = torch.ops.mkldnn._reorder_linear_weight(
                directed.detach().contiguous(), ROWS
            )
        return torch.ops.mkldnn._linear_pointwise(rows, self._packed[back], bias, "none", [], "")


def _is_packable(weight: "torch.Tensor") -> bool:
    import torch

    return (
        weight.dtype == torch.bfloat16
        and weight.device.type == "cpu"
        and not weight.requires_grad
        and _packs_here()
    )


@cache
def _packs_here() -> bool:
    """Whether this PyTorch and this CPU have oneDNN's layouts for bfloat16."""
    import torch

    known = all(
        hasattr(torch.ops.mkldnn, name)
        for name in ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
    )
    return known and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _of_linear(
    module: "torch.nn.Linear", products: Weight, input: "torch.Tensor"
) -> "torch.Tensor":
    import torch

    weight, bias = module.weight, module.bias
    if (
        weight.requires_grad
        or (bias is not None and bias.requires_grad)
        or input.dtype != weight.dtype
    ):
        return type(module).forward(module, input)
    rows = input.reshape(-1, input.shape[-1])
    product = (
        _linear().apply(rows, products, weight, bias)
        if torch.is_grad_enabled()
        else products.product(rows, weight, bias)
    )
    return product.view(*input.shape[:-1], weight.shape[0])


def _of_lora(
    module: "Linear", products: Weight, x: "torch.Tensor", *args: Any, **kwargs: Any
) -> "torch.Tensor":
    base, active = (
        module.base_layer,
        [name for name in module.active_adapters if name in module.lora_A],
    )
    if module.merged or args or kwargs or not _is_plain(module):
        return type(module).forward(module, x, *args, **kwargs)
    if module.disable_adapters:
        return _of_linear(base, products, x)
    if len(active) != 1 or not _is_two_products(module, active[0]):
        return type(module).forward(module, x)
    (name,) = active
    a, b, scaling = module.lora_A[name].weight, module.lora_B[name].weight, module.scaling[name]
    rows = x.reshape(-1, x.shape[-1]).to(base.weight.dtype)
    return (
        _products()
        .apply(rows, products, base.weight, base.bias, a, b, scaling)
        .view(*x.shape[:-1], base.weight.shape[0])
    )


def _is_plain(module: "Linear") -> bool:
    import torch

    base = module.base_layer
    frozen = not base.weight.requires_grad and (base.bias is None or not base.bias.requires_grad)
    device = base.weight.device.type
    cast = (
        torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) != base.weight.dtype
    )
    return type(base) is torch.nn.Linear and frozen and not cast


def _is_two_products(module: "Linear", name: str) -> bool:
    import torch

    dropout = module.lora_dropout[name]
    without_dropout = isinstance(dropout, torch.nn.Identity) or dropout.p == 0
    return name not in module.lora_variant and not module.lora_bias[name] and without_dropout


@cache
def _linear() -> "type[torch.autograd.Function]":
    import torch
    from torch.autograd.function import once_differentiable

    class Frozen(torch.autograd.Function):
        """rows (n, in), a frozen weight (out, in), its frozen bias (out) or None → (n, out)."""

        @staticmethod
        def forward(
            ctx: Any,
            rows: torch.Tensor,
            products: Weight,
            weight: torch.Tensor,
            bias: torch.Tensor | None,
        ) -> torch.Tensor:
            ctx.products, ctx.weight = products, weight
            return products.product(rows, weight, bias)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            return ctx.products.product(gradient, ctx.weight, back=True), None, None, None

    return Frozen


@cache
def _products() -> "type[torch.autograd.Function]":
    import torch
    from torch.autograd.function import once_differentiable

    class Products(torch.autograd.Function):
        """rows (n, in), a frozen weight (out, in), bias (out) or None, a (rank, in), b (out, rank) → (n, out), of the type of rows and
        weight."""

        @staticmethod
        def forward(
            ctx: Any,
            rows: torch.Tensor,
            products: Weight,
            weight: torch.Tensor,
            bias: torch.Tensor | None,
            a: torch.Tensor,
            b: torch.Tensor,
            scaling: float,
        ) -> torch.Tensor:
            down, up = a.to(rows.dtype), b.to(rows.dtype)
            within = rows @ down.t()
            ctx.save_for_backward(rows, down, up, within)
            ctx.products, ctx.weight, ctx.scaling, ctx.dtype = products, weight, scaling, a.dtype
            return products.product(rows, weight, bias).addmm_(within, up.t(), alpha=scaling)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            rows, down, up, within = ctx.saved_tensors
            of_within = (gradient @ up).mul_(ctx.scaling)
            of_a, of_b = of_within.t() @ rows, (gradient.t() @ within).mul_(ctx.scaling)
            of_rows = (
                ctx.products.product(gradient, ctx.weight, back=True).addmm_(of_within, down)
                if ctx.needs_input_grad[0]
                else None
            )
            return of_rows, None, None, None, of_a.to(ctx.dtype), of_b.to(ctx.dtype), None

    return Products
