import math

import msgspec
import numpy as np
import pytest

from headway.compute.arch.rope import (
    inverse_frequencies,
    local_frequencies,
    rotation_scale,
)
from headway.core.base.model_card import RopeScaling, RopeScalingKind
from tests.unit.compute.arch.test_registry import card

PLAIN = card()


def scaled(scaling: RopeScaling, factors: np.ndarray | None = None) -> np.ndarray:
    return inverse_frequencies(msgspec.structs.replace(PLAIN, rope_scaling=scaling), factors)


def test_frequencies_fall_from_one_by_equal_ratios() -> None:
    found = inverse_frequencies(PLAIN, None)
    assert found.shape == (32,)
    assert found[0] == 1.0
    assert np.allclose(found[1:] / found[:-1], 10_000 ** (-1 / 32))


def test_linear_scaling_divides_all() -> None:
    found = scaled(RopeScaling(kind=RopeScalingKind.LINEAR, factor=4.0))
    assert np.allclose(found * 4, inverse_frequencies(PLAIN, None))


def test_llama3_keeps_fast_pairs_and_stretches_slow_ones() -> None:
    scaling = RopeScaling(kind=RopeScalingKind.LLAMA3, factor=8.0, original_context=1024)
    plain = inverse_frequencies(PLAIN, None)
    ratio = plain / scaled(scaling)
    wavelengths = 2 * math.pi / plain
    assert np.allclose(ratio[wavelengths < 1024 / 4], 1.0)
    assert np.allclose(ratio[wavelengths > 1024], 8.0)
    between = ratio[(wavelengths > 1024 / 4) & (wavelengths < 1024)]
    assert len(between) > 2
    assert ((between > 1.0) & (between < 8.0)).all()


def test_factors_divide_and_replace_llama3_parameters() -> None:
    factors = np.linspace(1, 8, 32, dtype=np.float32)
    scaling = RopeScaling(kind=RopeScalingKind.LLAMA3, factor=8.0, original_context=1024)
    want = inverse_frequencies(PLAIN, None) / factors
    assert np.array_equal(inverse_frequencies(PLAIN, factors), want)
    assert np.array_equal(scaled(scaling, factors), want)


def test_yarn_keeps_fast_pairs_and_stretches_slow_ones() -> None:
    scaling = RopeScaling(kind=RopeScalingKind.YARN, factor=8.0, original_context=4096)
    plain = inverse_frequencies(PLAIN, None)
    ratio = plain / scaled(scaling)
    turns = 4096 * plain / (2 * math.pi)
    assert np.allclose(ratio[turns > 2 * 32], 1.0)
    assert np.allclose(ratio[turns < 1 / 2], 8.0)
    between = ratio[(turns > 2) & (turns < 16)]
    assert len(between) > 2
    assert ((between > 1.0) & (between < 8.0)).all()


def test_yarn_with_bounds_on_one_pair_has_no_division_by_nothing() -> None:
    scaling = RopeScaling(
        kind=RopeScalingKind.YARN, factor=8.0, original_context=64, beta_fast=400, beta_slow=300
    )
    assert np.isfinite(scaled(scaling)).all()


def test_longrope_has_factors_of_its_own_for_short_contexts() -> None:
    plain = inverse_frequencies(PLAIN, None)
    short, long = np.linspace(1, 2, 32), np.linspace(1, 8, 32)
    scaling = RopeScaling(
        kind=RopeScalingKind.LONGROPE,
        original_context=64,
        attention_factor=1.25,
        short_factors=tuple(short),
        long_factors=tuple(long),
    )
    model = msgspec.structs.replace(PLAIN, rope_scaling=scaling)
    assert np.allclose(inverse_frequencies(model.for_context(65), None), plain / long)
    assert np.allclose(inverse_frequencies(model.for_context(64), None), plain / short)
    assert rotation_scale(model) == rotation_scale(model.for_context(64)) == 1.25
    factors = np.full(32, 2, np.float32)
    assert np.allclose(inverse_frequencies(model, factors), plain / 2)


def test_other_models_are_the_same_for_every_context() -> None:
    assert PLAIN.for_context(1) is PLAIN
    assert rotation_scale(PLAIN) == 1.0


def test_local_layers_turn_by_their_own_theta_unscaled() -> None:
    model = msgspec.structs.replace(
        PLAIN,
        rope_scaling=RopeScaling(kind=RopeScalingKind.LINEAR, factor=8.0),
        num_layers=2,
        sliding_windows=(0, 16),
        local_rope_theta=100.0,
    )
    found = local_frequencies(model)
    assert found is not None
    assert found[1] == pytest.approx(100.0 ** (-2 / model.rope_dim))
    assert not model.is_local(0)
    assert model.is_local(1)


def test_there_are_no_local_frequencies_without_a_theta_or_a_window() -> None:
    plain = msgspec.structs.replace(PLAIN, num_layers=1)
    assert local_frequencies(msgspec.structs.replace(plain, local_rope_theta=100.0)) is None
    assert local_frequencies(msgspec.structs.replace(plain, sliding_windows=(16,))) is None
