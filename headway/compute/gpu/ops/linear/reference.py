"""A matrix kept as it is."""

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
