"""From hidden states to logits."""

import torch
import torch.nn.functional as functional
from torch import Tensor

# With 2 to 8 rows on a CPU the product is 1.3 to 4 times faster from the weight's side: the
# other way repacks the largest matrix of the model for a few rows.
FEW_ROWS = range(2, 9)


class Head:
    """The matrix from hidden states to logits; the logits are float32 whatever it is stored in.

    Logits rounded to bfloat16 are 0.125 apart at 25: near-ties would become ties. On a GPU
    the product of bfloat16 values is summed and given in float32; CPUs have no such
    product, so there the weight is float32 (see `head_dtype`). It is not prepacked, because
    a tied head shares its bytes with the embedding.
    """

    def __init__(self, weight: Tensor) -> None:
        """weight [V, C]; may be the embedding itself."""
        self.weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        """[S, C] float32 to [S, V] float32."""
        if self.weight.dtype is not torch.float32:
            return torch.mm(x.to(self.weight.dtype), self.weight.t(), out_dtype=torch.float32)
        if len(x) in FEW_ROWS and x.device.type == "cpu":
            return torch.mm(self.weight, x.t()).t().contiguous()
        return functional.linear(x, self.weight)


def head_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """What the head (and an embedding tied to it) is stored in."""
    return dtype if device.type == "cuda" else torch.float32
