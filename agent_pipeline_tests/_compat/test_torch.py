"""PyTorch's private parts do what the hooks need."""

import pytest
import torch

from agent_pipeline._compat.torch import (
    change_count,
    has_packed_bfloat16,
    multiply_all,
    multiply_packed,
    pack_weight,
)


@pytest.mark.skipif(not has_packed_bfloat16(), reason="oneDNN has no layouts for bfloat16 here")
def test_packed_products():
    """A packed weight gives the product of the plain weight to the bit, for any number of rows."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(24, 16, generator=generator).bfloat16()
    bias = torch.randn(24, generator=generator).bfloat16()
    packed = pack_weight(weight, 512)
    for row_count in (1, 7, 600):
        rows = torch.randn(row_count, 16, generator=generator).bfloat16()
        plain = torch.nn.functional.linear(rows, weight, bias)
        assert torch.equal(multiply_packed(rows, packed, bias), plain)


def test_change_count():
    """A change in place is counted; there is still no public counter."""
    tensor = torch.zeros(3)
    before = change_count(tensor)
    tensor.add_(1)
    assert change_count(tensor) == before + 1
    assert not hasattr(tensor, "version")


def test_multiply_all():
    """Each tensor is multiplied, and the tensors themselves stay."""
    tensors = [torch.ones(2), torch.full((3,), 2.0)]
    products = multiply_all(tensors, 0.5)
    assert [product.tolist() for product in products] == [[0.5] * 2, [1.0] * 3]
    assert tensors[0].tolist() == [1.0] * 2
