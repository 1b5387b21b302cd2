"""A matrix kept as it is."""

import torch
import torch.nn.functional as functional
from torch import Tensor


class PlainLinear:
    """rows @ weight.T + bias."""

    name = "plain"

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight [N, K], bias [N], both of the dtype of the rows."""
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """[T, K] to [T, N], same dtype."""
        return functional.linear(x, self.weight, self.bias)


class Head:
    """The matrix from hidden states to logits; the logits are float32 whatever it is stored in.

    Logits rounded to bfloat16 are 0.125 apart at 25: near-ties would become ties. On a GPU
    the product of bfloat16 values is summed and given in float32; CPUs have no such
    product, so there the weight is float32 (see `head_dtype`).
    """

    def __init__(self, weight: Tensor) -> None:
        """weight [V, C]; may be the embedding itself."""
        self.weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        """[S, C] float32 to [S, V] float32."""
        if self.weight.dtype is torch.float32:
            return functional.linear(x, self.weight)
        return torch.mm(x.to(self.weight.dtype), self.weight.t(), out_dtype=torch.float32)


def head_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """What the head (and an embedding tied to it) is stored in."""
    return dtype if device.type == "cuda" else torch.float32
