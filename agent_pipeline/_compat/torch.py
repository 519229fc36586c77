"""Uses of private parts of PyTorch: packed oneDNN weights, fused operations, and change counters.

What is computed with these belongs to `engine.packed_linear` and `engine.cuda_graphs`.
"""

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


@cache
def has_packed_bfloat16() -> bool:
    """Return whether PyTorch and the CPU support oneDNN's packed layouts for bfloat16 weights.

    The operators are private: PyTorch's inductor uses them, and no public function lays a weight
    out once for many products.
    """
    import torch

    names = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
    if not all(hasattr(torch.ops.mkldnn, name) for name in names):
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack_weight(weight: "torch.Tensor", rows: int) -> "torch.Tensor":
    """Return a bfloat16 weight in oneDNN's layout for products with `rows` rows.

    Args:
        weight: The weight, (out, in), contiguous and without gradients.
        rows: The number of rows that the layout is chosen for.
    """
    import torch

    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    return packed


def multiply_packed(
    rows: "torch.Tensor", packed: "torch.Tensor", bias: "torch.Tensor | None"
) -> "torch.Tensor":
    """Return the product of rows and a weight from `pack_weight`, plus the bias.

    Args:
        rows: The rows, (n, in).
        packed: The weight.
        bias: The bias, (out,), or None.

    Returns:
        The product, (n, out).
    """
    import torch

    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")
    return product


def change_count(tensor: "torch.Tensor") -> int:
    """Return the number of in-place changes of a tensor, as autograd counts them.

    There is no public counter. A change through `tensor.data` is not counted.
    """
    return int(tensor._version)


def multiply_all(tensors: "Sequence[torch.Tensor]", factor: float) -> "list[torch.Tensor]":
    """Multiply all tensors by a factor in few GPU kernels, and return the products.

    PyTorch's optimizers use this private function; a public loop would start one kernel per tensor.
    """
    import torch

    products: list[torch.Tensor] = torch._foreach_mul(list(tensors), factor)
    return products
