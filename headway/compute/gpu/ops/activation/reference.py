"""The gate of the MLP, written for reading."""

import torch.nn.functional as functional
from torch import Tensor

from headway.core.base.model_card import Activation


def gated(gate_up: Tensor, activation: Activation) -> Tensor:
    """activation(gate) * up, computed in float32.

    gate_up  [T, 2 * C]  gate first
    returns  [T, C]      dtype of gate_up
    Source: Shazeer 2020 (GLU variants).
    """
    gate, up = gate_up.chunk(2, dim=-1)
    if activation is Activation.SILU:
        opened = functional.silu(gate.float())
    else:
        opened = functional.gelu(gate.float(), approximate="tanh")
    return (opened * up.float()).to(gate_up.dtype)
