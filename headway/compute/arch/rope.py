"""How fast each pair of a head turns with the position, scaling included."""

import math

import numpy as np
import numpy.typing as npt

from headway.core.base.errors import ModelFileError
from headway.core.base.model_card import ModelCard, RopeScaling, RopeScalingKind

Floats = npt.NDArray[np.float64]


def inverse_frequencies(card: ModelCard, factors: npt.NDArray[np.float32] | None) -> Floats:
    """Radians a position for each of the rope_dim / 2 pairs, float64; not of local layers.

    factors  [rope_dim / 2]  the file's own divisors (`rope_freqs.weight`); they are the
             whole of LLAMA3 scaling, so its parameters are then not applied again.

    Raises ModelFileError for a kind of scaling that is not supported.
    Source: Su et al. 2021 (RoFormer); scaling as in Hugging Face's rope utilities.
    """
    frequencies = _plain(card.rope_theta, card.rope_dim)
    if factors is not None:
        frequencies = frequencies / factors.astype(np.float64)
    scaling = card.rope_scaling
    if scaling is None:
        return frequencies
    if scaling.kind is RopeScalingKind.LINEAR:
        return frequencies / scaling.factor
    if scaling.kind is RopeScalingKind.LLAMA3:
        return frequencies if factors is not None else _llama3(frequencies, scaling)
    raise ModelFileError(
        card.path, f"rope scaling {scaling.kind.value!r} is not supported; use linear or llama3"
    )


def local_frequencies(card: ModelCard) -> Floats | None:
    """The same for layers of which `card.is_local` holds; None where there is none such."""
    if not any(card.is_local(layer) for layer in range(card.num_layers)):
        return None
    return _plain(card.local_rope_theta, card.rope_dim)


def _plain(theta: float, rope_dim: int) -> Floats:
    exponents = np.arange(0, rope_dim, 2, dtype=np.float64) / rope_dim
    frequencies: Floats = theta**-exponents
    return frequencies


def _llama3(frequencies: Floats, scaling: RopeScaling) -> Floats:
    """Slow pairs are stretched by the factor, fast ones kept, those between blended."""
    turns = scaling.original_context * frequencies / (2 * math.pi)  # over the trained context
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return frequencies * (keep + (1.0 - keep) / scaling.factor)
