"""The one comparison of tensors, and its tolerances."""

import torch
from torch import Tensor

# Relative RMS error allowed against the float32 reference. Changing a number needs an ADR.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def relative_error(got: Tensor, want: Tensor) -> float:
    """RMS of the difference over RMS of what is wanted."""
    error = (got.float() - want.float()).square().mean().sqrt()
    return float(error / want.float().square().mean().sqrt().clamp_min(1e-8))


def assert_close(name: str, got: Tensor, want: Tensor) -> None:
    """`got` is finite, of the same shape, and within the tolerance of its own dtype."""
    assert got.shape == want.shape, f"{name}: {tuple(got.shape)} is not {tuple(want.shape)}"
    assert torch.isfinite(got).all(), f"{name}: not finite"
    ratio = relative_error(got, want)
    assert ratio < TOLERANCE[got.dtype], f"{name}: {ratio:.2e} over {TOLERANCE[got.dtype]:.0e}"
