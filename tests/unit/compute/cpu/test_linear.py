import threading
from functools import partial

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType

from headway.compute.cpu.features import host_features, offers
from headway.compute.cpu.linear import READABLE, LinearKernels, apply, kernels_for
from headway.compute.cpu.pack import (
    COLUMNS,
    FORMAT_OF,
    Format,
    PackedLinear,
    RawMatrix,
    pack,
    unpacked,
)
from headway.compute.cpu.pairs import from_bits
from headway.compute.cpu.quantize import quantize_reference
from headway.compute.cpu.settings import Isa

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
ROWS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 33]
ISAS = [isa for isa in Isa if offers(isa, host_features())]
every_isa = pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.value)
every_type = pytest.mark.parametrize("name", FORMAT_OF)


def matrix(name: str, outputs: int, inputs: int) -> tuple[PackedLinear, Doubles]:
    """A packed matrix and the gguf library's own values of it."""
    rng = np.random.default_rng(outputs * 1000 + inputs)
    values = rng.normal(size=(outputs, inputs)).astype(np.float32)
    kind = GGMLQuantizationType[name]
    raw = gguf.quants.quantize(values, kind)
    (packed,) = pack([RawMatrix(name, raw.view(np.uint8))])
    if packed.format is Format.Q4_1:  # whose numbers packing rounds a little
        return packed, unpacked(packed, np.arange(outputs)).rows.view(np.float32).astype("f8")
    return packed, gguf.quants.dequantize(raw, kind).astype(np.float64)


def activations(rows: int, inputs: int) -> Floats:
    rng = np.random.default_rng(rows)
    x: Floats = (rng.normal(size=(rows, inputs)) * rng.uniform(0.1, 9, (rows, 1))).astype("f4")
    return x


def dequantized(format_: Format, x: Floats) -> npt.NDArray[np.float64]:
    if not format_.is_quantized:
        return x.astype(np.float64)
    xq, xs, _ = quantize_reference(x)
    groups = xq.reshape(*xs.shape, 32).astype(np.float64)
    return (groups * xs[..., None]).reshape(x.shape)


def product(packed: PackedLinear, weights: Doubles, x: Floats) -> Doubles:
    """What a kernel computes, in float64."""
    exact: Doubles = dequantized(packed.format, x) @ weights.T
    if packed.format is not Format.Q4_1:
        return exact
    # A weight is d * (code - 8) + c, and c is multiplied with a rounded sum of activations.
    _, xs, words = quantize_reference(x)
    groups = xs.shape[1]
    rests = from_bits(words[:, groups:].view(np.uint16)[:, :groups])
    errors = rests - xs * words[:, :groups].astype(np.float64)
    return exact + errors @ constants(packed).T


def constants(packed: PackedLinear) -> Doubles:
    """Q4_1's c of each group, [outputs, groups], from where pack.py says that it lies."""
    groups = packed.num_inputs // 32
    panels = packed.data.reshape(packed.num_panels, -1)
    start = groups * (16 + 2) * COLUMNS
    pairs = panels[:, start : start + (groups + 1) // 2 * 4 * COLUMNS].view(np.uint16)
    columns = pairs.reshape(packed.num_panels, -1, COLUMNS, 2).transpose(0, 2, 1, 3)
    by_group = from_bits(columns).reshape(packed.padded_outputs, -1)[:, :groups]
    return by_group[: packed.num_outputs].astype(np.float64)


def raw_call(
    kernels: LinearKernels, packed: PackedLinear, x: Floats, out: Floats, panels: tuple[int, int]
) -> None:
    """The kernel for any format, on a part of the panels."""
    rows, inputs = x.shape
    xq, xs, xsum = quantize_reference(x) if packed.format.is_quantized else (x, x, x)
    x = np.ascontiguousarray(xq)
    ldx = x.shape[1]
    addresses = (a.ctypes.data for a in (x, xs, xsum))
    source, scales, sums = addresses
    work = (packed.address, inputs, *panels, source, ldx, scales, sums, rows)
    kernels.any_format(int(packed.format), *work, out.ctypes.data, out.shape[1])


@every_isa
@every_type
@pytest.mark.parametrize(("outputs", "inputs"), [(48, 32), (100, 64), (7, 576)])
def test_products_equal_float64_but_for_rounding(
    name: str, outputs: int, inputs: int, isa: Isa
) -> None:
    packed, weights = matrix(name, outputs, inputs)
    for rows in ROWS:
        x = activations(rows, inputs)
        got = apply(kernels_for(isa), packed, x)
        size = np.abs(dequantized(packed.format, x)) @ np.abs(weights).T
        if packed.format is Format.Q4_1:  # partial sums hold codes before c is added
            size *= 3
        assert (np.abs(got - product(packed, weights, x)) <= 4e-7 * size).all()


@every_isa
@every_type
def test_a_row_has_the_same_bits_alone_and_in_any_company(name: str, isa: Isa) -> None:
    packed, _ = matrix(name, 100, 96)
    x = activations(33, 96)
    whole = apply(kernels_for(isa), packed, x)
    for row in range(33):
        assert np.array_equal(apply(kernels_for(isa), packed, x[row : row + 1])[0], whole[row])
    for rows in ROWS:
        assert np.array_equal(apply(kernels_for(isa), packed, x[-rows:]), whole[-rows:])


@every_isa
@every_type
def test_any_split_of_the_panels_gives_the_same_bits(name: str, isa: Isa) -> None:
    packed, _ = matrix(name, 200, 64)
    x = activations(6, 64)
    whole = apply(kernels_for(isa), packed, x)
    for cut in range(packed.num_panels + 1):
        out = np.full((6, packed.padded_outputs), np.nan, np.float32)
        raw_call(kernels_for(isa), packed, x, out, (0, cut))
        assert np.isnan(out[:, cut * COLUMNS :]).all()
        raw_call(kernels_for(isa), packed, x, out, (cut, packed.num_panels))
        assert np.array_equal(out[:, :200], whole)
        assert not out[:, 200:].any()


@every_isa
@every_type
def test_every_family_of_instructions_gives_the_same_bits(name: str, isa: Isa) -> None:
    packed, _ = matrix(name, 150, 576)
    x = activations(7, 576)
    want = apply(READABLE, packed, x)
    assert np.array_equal(apply(kernels_for(isa), packed, x), want)


@every_isa
@every_type
def test_only_the_outputs_are_written(name: str, isa: Isa) -> None:
    packed, _ = matrix(name, 90, 64)
    x = activations(5, 64)
    out = np.full((7, 130), np.nan, np.float32)
    raw_call(kernels_for(isa), packed, x, out[1:], (0, packed.num_panels))
    assert np.array_equal(out[1:6, :90], apply(kernels_for(isa), packed, x))
    assert not out[1:6, 90:96].any()
    assert np.isnan(out[[0, 6]]).all()
    assert np.isnan(out[:, 96:]).all()


@every_isa
@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1"])
def test_extreme_weights_and_activations_do_not_overflow(name: str, isa: Isa) -> None:
    block = np.full((48, {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}[name]), 0xFF, np.uint8)
    block[:, : 4 if name == "Q4_1" else 2] = 0
    block[:, 0:2] = np.array([1.0], np.float16).view(np.uint8)
    if name == "Q8_0":
        block[:24, 2:] = 0x80
    (packed,) = pack([RawMatrix(name, block)])
    weights = gguf.quants.dequantize(block, GGMLQuantizationType[name]).astype(np.float64)
    x = np.full((2, 32), -127, np.float32)
    x[1] = 127
    got = apply(kernels_for(isa), packed, x)
    assert np.array_equal(got, (x.astype(np.float64) @ weights.T).astype(np.float32))


@every_isa
def test_the_smallest_scales_keep_their_value(isa: Isa) -> None:
    block = np.zeros((48, 34), np.uint8)
    bits = np.arange(1, 49, dtype=np.uint16) * 21  # float16 subnormals
    block[:, :2] = bits.reshape(-1, 1).view(np.uint8)
    block[:, 2] = 1
    (packed,) = pack([RawMatrix("Q8_0", block)])
    x = np.zeros((1, 32), np.float32)
    x[0, 0] = 127
    want = bits.view(np.float16).astype(np.float32) * np.float32(127)
    assert np.array_equal(apply(kernels_for(isa), packed, x)[0], want)


def test_no_rows_and_no_panels_write_nothing() -> None:
    packed, _ = matrix("Q4_1", 48, 32)
    out = np.full((1, 48), np.nan, np.float32)
    for isa in ISAS:
        raw_call(kernels_for(isa), packed, activations(1, 32), out, (1, 1))
        raw_call(kernels_for(isa), packed, np.empty((0, 32), np.float32), out, (0, 1))
    assert np.isnan(out).all()


def test_threads_that_share_the_panels_give_the_same_bits() -> None:
    packed, _ = matrix("Q4_1", 960, 576)
    x = activations(9, 576)
    for isa in ISAS:
        out = np.full((9, 960), np.nan, np.float32)
        ranges = [(0, 7), (7, 13), (13, 20)]
        threads = [
            threading.Thread(target=partial(raw_call, kernels_for(isa), packed, x, out, part))
            for part in ranges
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert np.array_equal(out, apply(kernels_for(isa), packed, x))
