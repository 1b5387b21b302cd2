"""Root mean square normalisation, written for reading."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each row to a root mean square of one, then by the weight.

    x        [T, C]  any float dtype; computed in float32
    weight   [C]     float32
    returns  [T, C]  float32
    Source: Zhang and Sennrich 2019.
    """
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
