"""What becomes of the numbers of a file whose types the kernels do not read."""

import numpy as np
import numpy.typing as npt
import pytest

from headway.compute.cpu.conversion import NEAREST
from headway.compute.cpu.pack import FORMAT_OF, RawMatrix, pack, unpacked
from headway.compute.cpu.repack import EXACT, repack, row_bytes
from headway.compute.formats.blocks import BLOCK_SHAPE, expand
from tests.blocks import quantized, random_blocks

ROWS, INPUTS = 60, 512


def relative_rms(got: npt.NDArray[np.float32], want: npt.NDArray[np.float32]) -> float:
    difference = got.astype(np.float64) - want
    return float(np.sqrt(np.square(difference).mean() / np.square(want.astype(np.float64)).mean()))


def weights() -> npt.NDArray[np.float32]:
    """Spread as weights are, around 0."""
    rng = np.random.default_rng(5)
    return (rng.standard_normal((ROWS, INPUTS)) * 0.02).astype(np.float32)


# Relative RMS error against the file's own numbers, a quarter above what was measured; and what
# the file's type itself had cost against the float weights, for scale.
BOUNDS = {"Q5_0": 0.0, "Q5_1": 6e-3, "Q4_K": 1.15e-3, "Q5_K": 6e-3, "Q6_K": 6e-3}


@pytest.mark.parametrize("name", NEAREST)
def test_the_nearest_type_costs_little_beside_what_the_file_had_cost(name: str) -> None:
    rows = quantized(name, weights())
    want = expand(name, rows)
    cost_of_file = relative_rms(want, weights())
    assert 0.01 < cost_of_file < 0.1, "these are weights as files hold them"
    (packed,) = pack([RawMatrix(name, rows, NEAREST[name])])
    computed_with = unpacked(packed, np.arange(ROWS))
    got = expand(computed_with.type_name, computed_with.rows)
    error = relative_rms(got, want)
    assert error <= BOUNDS[name], f"{error:.1e}"
    assert error < cost_of_file / 3
    assert relative_rms(got, weights()) < 1.06 * cost_of_file


@pytest.mark.parametrize(("name", "target"), EXACT)
def test_codes_that_fit_are_kept(name: str, target: str) -> None:
    rows = random_blocks(name, ROWS, INPUTS, seed=7)
    want, got = expand(name, rows), expand(target, repack(rows, name, target))
    if name == "Q4_K":
        codes = np.abs(want).reshape(-1, 32).max(axis=1, keepdims=True)
        assert (np.abs(got - want).reshape(-1, 32) <= 2**-9 * codes + 1e-6).all()
    else:
        assert np.array_equal(got, want)


@pytest.mark.parametrize("name", BLOCK_SHAPE)
def test_float32_holds_every_type(name: str) -> None:
    rows = random_blocks(name, 3, INPUTS)
    got = repack(rows, name, "F32").view(np.float32)
    assert np.array_equal(got, expand(name, rows))
    assert row_bytes(INPUTS, name) == rows.shape[1]
    assert repack(rows, name, name) is rows


@pytest.mark.parametrize("name", NEAREST)
def test_panels_hold_what_repacking_gives_in_pieces_too(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.compute.cpu.pack.CHUNK_VALUES", 48 * 512)
    rows = random_blocks(name, 130, INPUTS, seed=9)
    (packed,) = pack([RawMatrix(name, rows, NEAREST[name])])
    assert packed.format is FORMAT_OF[NEAREST[name]]
    (want,) = pack([RawMatrix(NEAREST[name], repack(rows, name, NEAREST[name]))])
    assert np.array_equal(packed.data, want.data)


def test_scales_whose_product_is_too_large_are_refused() -> None:
    rows = random_blocks("Q4_K", 1, 256)
    rows[:, :2] = np.array([60000], np.float16).view(np.uint8)
    rows[:, 4:8] = 63
    with pytest.raises(ValueError, match="not finite"):
        pack([RawMatrix("Q4_K", rows, "Q4_1")])
