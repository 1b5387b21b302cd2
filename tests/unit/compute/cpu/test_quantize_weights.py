import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from headway.compute.cpu.quantize_weights import quantize_weights
from headway.compute.formats.blocks import expand

Floats = npt.NDArray[np.float32]


def drawn(name: str, rows: int, inputs: int) -> Floats:
    rng = np.random.default_rng(rows)
    if name == "gaussian":
        return rng.normal(size=(rows, inputs)).astype(np.float32) * 0.02
    return rng.laplace(size=(rows, inputs)).astype(np.float32) * 0.02


def error(values: Floats, type_name: str, blocks: npt.NDArray[np.uint8]) -> float:
    return float(np.square(expand(type_name, blocks) - values).mean())


def best_found(values: Floats) -> float:
    """Squared error of 4 bits by trying many scales, fitting and coding, in float64."""
    groups = values.reshape(-1, 32).astype(np.float64)
    low = groups.min(axis=1, keepdims=True)
    span = groups.max(axis=1, keepdims=True) - low
    best = np.full(len(groups), np.inf)
    for steps in np.arange(10, 18, 0.05):
        for shift in (0.0, (15 - steps) / 2, 15 - steps):
            q = np.clip(np.rint((groups - low) * steps / span + shift), 0, 15)
            centred = q - q.mean(axis=1, keepdims=True)
            scale = (centred * groups).sum(axis=1) / np.square(centred).sum(axis=1)
            offset = groups.mean(axis=1) - scale * q.mean(axis=1)
            q = np.clip(np.rint((groups - offset[:, None]) / scale[:, None]), 0, 15)
            rest = np.square(q * scale[:, None] + offset[:, None] - groups).mean(axis=1)
            best = np.minimum(best, rest)
    return float(best.mean())


@pytest.mark.parametrize("name", ["gaussian", "heavy"])
@pytest.mark.parametrize(("rows", "inputs"), [(1, 32), (3, 160), (17, 96), (64, 576)])
def test_four_bits_come_near_the_least_error_that_there_is(
    name: str, rows: int, inputs: int
) -> None:
    values = drawn(name, rows, inputs)
    blocks = quantize_weights(values, "Q4_1")
    assert blocks.shape == (rows, inputs // 32 * 20)
    assert blocks.dtype == np.uint8
    # A single block may be unlucky with the candidates.
    most = 1.03 if values.size > 1000 else 1.2
    assert error(values, "Q4_1", blocks) < most * best_found(values)


def test_four_bits_are_better_than_those_between_the_extremes() -> None:
    values = drawn("heavy", 100, 576)
    theirs = quantize(values, GGMLQuantizationType.Q4_1)
    ours = quantize_weights(values, "Q4_1")
    assert error(values, "Q4_1", ours) < 0.9 * error(values, "Q4_1", theirs)


def test_values_that_four_bits_can_hold_come_back() -> None:
    codes = np.random.default_rng(1).integers(0, 16, size=(50, 64))
    codes[:, ::32], codes[:, 1::32] = 0, 15
    values = (codes * np.float32(0.25) - np.float32(1.5)).astype(np.float32)
    assert np.array_equal(expand("Q4_1", quantize_weights(values, "Q4_1")), values)


@pytest.mark.parametrize("type_name", ["Q4_1", "Q8_0"])
@pytest.mark.parametrize("value", [0.0, 1.0, -0.375, 1e-9])
def test_equal_values_come_back(type_name: str, value: float) -> None:
    values = np.full((2, 64), value, np.float32)
    got = expand(type_name, quantize_weights(values, type_name))
    assert np.abs(got - values).max() <= max(abs(value) * 2**-11, 2**-25)


@pytest.mark.parametrize("name", ["gaussian", "heavy"])
def test_eight_bits_are_off_by_half_a_step_at_most(name: str) -> None:
    values = drawn(name, 37, 160)
    blocks = quantize_weights(values, "Q8_0")
    assert blocks.shape == (37, 5 * 34)
    steps = np.abs(values.reshape(37, 5, 32)).max(axis=2, keepdims=True) / 127
    off = np.abs(expand("Q8_0", blocks) - values).reshape(37, 5, 32)
    # A float16 scale is off by 2**-11, which 127 steps multiply.
    assert (off <= steps * (0.5 + 127 * 2**-11)).all()


@pytest.mark.parametrize("type_name", ["Q4_1", "Q8_0"])
def test_rows_are_coded_alike_alone_and_together(type_name: str) -> None:
    values = drawn("heavy", 19, 96)
    whole = quantize_weights(values, type_name)
    for row in range(19):
        assert np.array_equal(quantize_weights(values[row : row + 1], type_name)[0], whole[row])


@pytest.mark.parametrize("type_name", ["Q4_1", "Q8_0"])
@pytest.mark.parametrize("value", [1e38, -1e5, np.nan, np.inf])
def test_values_that_no_scale_holds_are_refused(type_name: str, value: float) -> None:
    values = np.zeros((2, 64), np.float32)
    values[1, 3] = value
    with pytest.raises(ValueError, match=r"is too large for a float16 scale.*--quantization none"):
        quantize_weights(values, type_name)
