"""Rotary positions, written for reading."""

import torch
from torch import Tensor


def rope_angles(
    positions: Tensor, inverse_frequencies: Tensor, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each position's angles, times `scale`.

    positions            [T]     int64
    inverse_frequencies  [F]     float64: at position 8,000 float32 angles are off by 5e-4
    returns              [T, 1, F] float32, twice
    """
    angles = positions[:, None, None].double() * inverse_frequencies
    return (angles.cos() * scale).float(), (angles.sin() * scale).float()


def rotate_heads_(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turn the first 2F values of each head in place; value i turns with value i + F.

    x         [T, H, D]  2F <= D; may be a view with gaps between its rows
    cos, sin  [T, 1, F]  float32; the turning is computed in float32
    Source: Su et al. 2021 (RoFormer).
    """
    half = cos.shape[-1]
    first, second = x[..., :half].float(), x[..., half : 2 * half].float()
    turned_first = torch.addcmul(first * cos, second, sin, value=-1.0)
    turned_second = torch.addcmul(second * cos, first, sin)
    x[..., :half] = turned_first
    x[..., half : 2 * half] = turned_second
