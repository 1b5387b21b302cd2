"""How fast each pair of a head turns with the position, scaling included."""

import math

import numpy as np
import numpy.typing as npt

from headway.core.base.model_card import ModelCard, RopeScaling, RopeScalingKind

Floats = npt.NDArray[np.float64]


def inverse_frequencies(card: ModelCard, factors: npt.NDArray[np.float32] | None) -> Floats:
    """Radians a position for each of the rope_dim / 2 pairs, float64; not of local layers.

    factors  [rope_dim / 2]  the file's own divisors, the tensor of `Part.ROPE_FACTORS`; they
             are the whole of LLAMA3 scaling, so its parameters are then not applied again.

    Source: Su et al. 2021 (RoFormer); scaling as in Hugging Face's rope utilities.
    """
    frequencies = _plain(card.rope_theta, card.rope_dim)
    scaling = card.rope_scaling
    if factors is not None:
        frequencies = frequencies / factors.astype(np.float64)
    if scaling is None:
        return frequencies
    match scaling.kind:
        case RopeScalingKind.LINEAR:
            return frequencies / scaling.factor
        case RopeScalingKind.YARN:
            return _yarn(frequencies, scaling, card.rope_theta)
        case RopeScalingKind.LLAMA3:
            return frequencies if factors is not None else _llama3(frequencies, scaling)
        case RopeScalingKind.LONGROPE:
            listed = scaling.short_factors if scaling.is_short else scaling.long_factors
            return frequencies if factors is not None else frequencies / np.array(listed)


def rotation_scale(card: ModelCard) -> float:
    """What cosines and sines are multiplied by, so that scores grow; not of local layers."""
    return 1.0 if card.rope_scaling is None else card.rope_scaling.attention_factor


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


def _yarn(frequencies: Floats, scaling: RopeScaling, theta: float) -> Floats:
    """The same by the pair's place: kept up to one bound, stretched from another on.

    Source: Peng et al. 2023 (YaRN), "NTK-by-parts".
    """
    num_pairs = len(frequencies)

    def place(turns: float) -> float:
        """Of the pair that turns so often over the original context."""
        ratio = scaling.original_context / (2 * math.pi * turns)
        return num_pairs * math.log(ratio) / math.log(theta)

    low, high = place(scaling.beta_fast), place(scaling.beta_slow)
    if scaling.is_truncated:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * num_pairs - 1)
    width = high - low or 0.001  # as the others: a step then, and no division by nothing
    stretch = np.clip((np.arange(num_pairs) - low) / width, 0.0, 1.0)
    stretched: Floats = frequencies * (1.0 - stretch + stretch / scaling.factor)
    return stretched
