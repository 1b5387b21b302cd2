"""Chooses how a matrix is kept."""

from typing import Protocol

from torch import Tensor

from headway.compute.gpu.ops.linear import prepacked
from headway.compute.gpu.ops.linear.prepacked import PrepackedLinear
from headway.compute.gpu.ops.linear.reference import PlainLinear


class Linear(Protocol):
    """A matrix applied to rows: [T, K] to [T, N], same dtype."""

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to every row."""
        ...


def make_linear(weight: Tensor, bias: Tensor | None) -> Linear:
    """The fastest form of weight [N, K] and bias [N] for their dtype and device."""
    if prepacked.is_supported(weight.dtype, weight.device):
        return PrepackedLinear(weight, bias)
    return PlainLinear(weight, bias)
