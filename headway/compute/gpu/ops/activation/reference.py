"""The gate of the MLP, written for reading."""

import torch.nn.functional as functional
from torch import Tensor


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, computed in float32.

    gate_up  [T, 2 * C]  gate first
    returns  [T, C]      dtype of gate_up
    Source: Shazeer 2020 (GLU variants).
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return (functional.silu(gate.float()) * up.float()).to(gate_up.dtype)
