import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType

from headway.compute.cpu.pack import (
    COLUMNS,
    FORMAT_OF,
    Arena,
    Format,
    PackedLinear,
    RawMatrix,
    aligned,
    num_panels,
    pack,
    packed_bytes,
    panel_bytes,
    unpacked,
)
from headway.compute.cpu.pairs import from_bits, to_bits
from headway.compute.cpu.quantize_weights import quantize_weights
from headway.compute.formats.blocks import expand

Floats = npt.NDArray[np.float32]


def raw(name: str, outputs: int, inputs: int, seed: int = 0) -> RawMatrix:
    values = np.random.default_rng(seed).normal(size=(outputs, inputs)).astype(np.float32)
    return RawMatrix(name, gguf.quants.quantize(values, GGMLQuantizationType[name]).view(np.uint8))


def values_of(matrix: RawMatrix) -> Floats:
    kind = GGMLQuantizationType[matrix.type_name]
    floats: Floats = gguf.quants.dequantize(matrix.rows, kind).astype(np.float32)
    return packed_values(matrix.rows, floats) if matrix.type_name == "Q4_1" else floats


def packed_values(blocks: npt.NDArray[np.uint8], exact: Floats) -> Floats:
    """The numbers of Q4_1 as packing rounds them."""
    heads = np.ascontiguousarray(blocks.reshape(len(blocks), -1, 20)[..., :4])
    d, m = heads.view(np.float16).astype(np.float32).transpose(2, 0, 1)
    codes = np.rint(
        (exact.reshape(*d.shape, 32) - m[..., None]) / np.where(d == 0, 1, d)[..., None]
    )
    c = from_bits(to_bits(m + 8 * d))
    values: Floats = ((codes - 8) * d[..., None] + c[..., None]).reshape(exact.shape)
    assert (np.abs(values - exact) <= np.repeat(np.abs(m + 8 * d) / 256, 32, axis=1)).all()
    return values


def unpack(packed: PackedLinear) -> Floats:
    """Panels back to [padded outputs, inputs], by the layout that pack.py documents."""
    inputs, groups = packed.num_inputs, packed.num_inputs // 32
    columns = []
    for panel in packed.data.reshape(packed.num_panels, -1):
        if not packed.format.is_quantized:
            kind = np.uint16 if packed.format is Format.BF16 else np.uint32
            bits = panel[: inputs * COLUMNS * np.dtype(kind).itemsize].view(kind)
            wide = bits.astype(np.uint32) << (16 if packed.format is Format.BF16 else 0)
            columns.append(wide.view(np.float32).reshape(inputs, COLUMNS).T)
            continue
        is_wide = packed.format is Format.Q8_0
        end = groups * COLUMNS * (32 if is_wide else 16)
        q = panel[:end].reshape(groups, -1, COLUMNS, 4)
        if not is_wide:
            q = np.concatenate((q & 15, q >> 4), axis=1)
        scales, end = panel[end:].view(np.float16), end + groups * 2 * COLUMNS
        d = scales[: groups * COLUMNS].astype(np.float32).reshape(groups, COLUMNS)
        offset = 128 if is_wide else 8
        w = (q.transpose(2, 0, 1, 3).reshape(COLUMNS, groups, 32).astype(np.float32)) - offset
        w *= d.T[..., None]
        if packed.format is Format.Q4_1:
            pairs = panel[end:].view(np.uint16)[: (groups + 1) // 2 * 2 * COLUMNS]
            bits = pairs.reshape(-1, COLUMNS, 2).transpose(1, 0, 2).reshape(COLUMNS, -1)
            w += from_bits(bits[:, :groups])[..., None]
        columns.append(w.reshape(COLUMNS, inputs))
    return np.concatenate(columns)


@pytest.mark.parametrize("name", FORMAT_OF)
@pytest.mark.parametrize(("outputs", "inputs"), [(48, 32), (1, 64), (100, 96), (49, 576)])
def test_panels_hold_the_numbers_of_the_file(name: str, outputs: int, inputs: int) -> None:
    matrix = raw(name, outputs, inputs)
    (packed,) = pack([matrix])
    assert (packed.num_outputs, packed.num_inputs) == (outputs, inputs)
    assert packed.data.nbytes == packed.num_panels * panel_bytes(packed.format, inputs)
    assert packed.address % 64 == 0
    got = unpack(packed)
    assert got.shape == (packed.padded_outputs, inputs)
    assert np.array_equal(got[:outputs], values_of(matrix))
    assert not got[outputs:].any()


def test_many_panels_are_packed_in_pieces() -> None:
    matrix = raw("Q4_0", 48 * 130 + 5, 32)
    (packed,) = pack([matrix])
    assert np.array_equal(unpack(packed)[: 48 * 130 + 5], values_of(matrix))


def test_matrices_of_one_type_are_joined_without_a_gap() -> None:
    parts = [raw("Q4_1", rows, 64, rows) for rows in (50, 7, 90)]
    (packed,) = pack(parts)
    assert packed.num_outputs == 147
    want = np.concatenate([values_of(part) for part in parts])
    assert np.array_equal(unpack(packed)[:147], want)


def test_another_type_begins_another_matrix_in_order() -> None:
    parts = [raw(name, 50, 64) for name in ("Q4_1", "Q4_1", "Q8_0", "F16", "F32", "Q4_1")]
    packed = pack(parts)
    assert [(p.format, p.num_outputs) for p in packed] == [
        (Format.Q4_1, 100),
        (Format.Q8_0, 50),
        (Format.F32, 50),
        (Format.F32, 50),
        (Format.Q4_1, 50),
    ]
    want = np.concatenate([values_of(part) for part in parts])
    got = np.concatenate([unpack(p)[: p.num_outputs] for p in packed])
    assert np.array_equal(got, want)


def test_bytes_in_panels_are_those_of_the_file_but_for_padding() -> None:
    matrix = raw("Q4_1", 576, 576)
    assert packed_bytes([matrix]) == matrix.rows.nbytes
    assert packed_bytes([raw("Q8_0", 47, 64)]) == 48 * 34 * 2
    assert (num_panels(48), num_panels(49)) == (1, 2)


def test_an_arena_holds_all_and_no_more() -> None:
    parts = [raw("Q8_0", 49, 32), raw("Q4_0", 10, 32)]
    arena = Arena(packed_bytes(parts))
    first, second = pack(parts, arena)
    assert second.address == first.address + first.data.nbytes
    with pytest.raises(ValueError, match="64 bytes do not fit into the arena's last 0"):
        arena(64)
    assert aligned(1).ctypes.data % 64 == 0


def test_different_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[32, 64\] inputs cannot share"):
        pack([raw("Q8_0", 1, 64), raw("Q8_0", 1, 32)])


def test_rows_that_are_not_whole_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="a row of 33 bytes is not whole Q8_0 blocks of 34"):
        pack([RawMatrix("Q8_0", np.zeros((2, 33), np.uint8))])


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match="type IQ4_XS cannot be packed as Q8_0; use Q8_0"):
        pack([RawMatrix("IQ4_XS", np.zeros((2, 136), np.uint8), "Q8_0")])
    with pytest.raises(ValueError, match="type Q6_K cannot be packed as Q6_K; use Q8_0"):
        pack([RawMatrix("Q6_K", np.zeros((2, 210), np.uint8))])


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1"])
def test_a_scale_that_is_not_finite_is_refused(name: str) -> None:
    matrix = raw(name, 3, 32)
    matrix.rows[1, 0:2] = np.array([np.inf], np.float16).view(np.uint8)
    with pytest.raises(ValueError, match="not finite; the file is damaged"):
        pack([matrix])


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "BF16", "F32"])
@pytest.mark.parametrize("outputs", [1, 48, 101])
def test_rows_come_back_out_of_the_panels_bit_for_bit(name: str, outputs: int) -> None:
    matrices = [raw(name, outputs, 96, seed=1), raw(name, 7, 96, seed=2)]
    (packed,) = pack(matrices)
    wanted = np.array([outputs + 6, 0, outputs - 1, 0, outputs // 2], np.int64)
    got = unpacked(packed, wanted)
    assert got.type_name == name
    both = np.concatenate([matrix.rows for matrix in matrices])
    assert np.array_equal(got.rows, both[wanted])


@pytest.mark.parametrize("name", ["F16", "Q4_1"])
def test_rows_of_other_types_come_back_as_their_float32_values(name: str) -> None:
    matrix = raw(name, 50, 96)
    (packed,) = pack([matrix])
    got = unpacked(packed, np.array([49, 3], np.int64))
    assert got.type_name == "F32"
    assert np.array_equal(got.rows.view(np.float32), values_of(matrix)[[49, 3]])


@pytest.mark.parametrize("source", ["F32", "F16", "BF16", "Q8_0"])
@pytest.mark.parametrize("target", ["Q8_0", "Q4_1", "F32"])
def test_numbers_can_get_another_type_on_the_way_in_pieces(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [raw(source, rows, 96, rows) for rows in (50, 7, 190)]
    monkeypatch.setattr("headway.compute.cpu.pack.CHUNK_VALUES", 2 * 48 * 96)
    matrices = [RawMatrix(part.type_name, part.rows, target) for part in parts]
    (packed,) = pack(matrices, Arena(packed_bytes(matrices)))
    assert packed.format is FORMAT_OF[target]
    want = np.concatenate([values_of(part) for part in parts])
    if target != "F32":
        blocks = quantize_weights(want, target)
        want = expand(target, blocks)
        want = packed_values(blocks, want) if target == "Q4_1" else want
    assert np.array_equal(unpack(packed)[:247], want)


def test_groups_that_are_not_whole_cannot_be_quantized() -> None:
    matrix = raw("F32", 2, 40)
    with pytest.raises(ValueError, match="40 values is not whole groups of 32"):
        pack([RawMatrix("F32", matrix.rows, "Q8_0")])
