import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from headway.compute.formats import blocks
from headway.compute.formats.blocks import BLOCK_SHAPE, EXPAND, expand
from tests.blocks import random_blocks

QUANTIZED_BY_THE_LIBRARY = [name for name in EXPAND if not name.endswith("_K")]


@pytest.mark.parametrize("name", QUANTIZED_BY_THE_LIBRARY)
@pytest.mark.parametrize("num_rows", [1, 17])
@pytest.mark.parametrize("num_blocks", [1, 16, 17])
def test_values_equal_those_of_the_gguf_library(name: str, num_rows: int, num_blocks: int) -> None:
    rng = np.random.default_rng(num_rows * 100 + num_blocks)
    values = rng.normal(size=(num_rows, 32 * num_blocks)).astype(np.float32)
    kind = GGMLQuantizationType[name]
    raw = gguf.quants.quantize(values, kind)
    got = expand(name, raw.view(np.uint8))
    assert got.dtype == np.float32
    assert got.flags.writeable
    assert np.array_equal(got, gguf.quants.dequantize(raw, kind))
    assert np.abs(got - values).mean() < 0.1


def test_nibbles_of_a_hand_made_block() -> None:
    scale, least = np.float16(0.5), np.float16(-1.0)
    packed = np.arange(16, dtype=np.uint8) | (np.arange(16, dtype=np.uint8)[::-1] << 4)
    block = np.concatenate(
        (scale.reshape(1).view(np.uint8), least.reshape(1).view(np.uint8), packed)
    )
    want = [0.5 * q - 1.0 for q in [*range(16), *range(15, -1, -1)]]
    assert expand("Q4_1", block[None, :]).tolist() == [want]


@pytest.mark.parametrize("name", [name for name in EXPAND if name.startswith("Q")])
@pytest.mark.parametrize(("num_rows", "num_values"), [(1, 256), (5, 1024), (301, 256)])
def test_blocks_of_any_bits_equal_those_of_the_gguf_library(
    name: str, num_rows: int, num_values: int
) -> None:
    rows = random_blocks(name, num_rows, num_values, seed=num_rows)
    want = gguf.quants.dequantize(rows, GGMLQuantizationType[name])
    assert np.unique(want).size > num_rows * 50
    assert np.array_equal(expand(name, rows), want)


@pytest.mark.parametrize("name", EXPAND)
def test_sizes_of_blocks_are_those_of_the_gguf_library(name: str) -> None:
    assert BLOCK_SHAPE[name] == gguf.GGML_QUANT_SIZES[GGMLQuantizationType[name]]


@pytest.mark.parametrize("name", ["Q6_K", "F32", "Q4_0"])
def test_many_rows_are_expanded_some_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_blocks(name, 23, 512, seed=3)
    whole = expand(name, rows)
    sizes: list[int] = []
    kept = EXPAND[name]

    def count(piece: np.ndarray) -> np.ndarray:
        sizes.append(len(piece))
        return kept(piece)

    monkeypatch.setattr(blocks, "EXPAND", {name: count})
    monkeypatch.setattr(blocks, "PIECE_VALUES", 512 * 5)
    assert np.array_equal(expand(name, rows), whole)
    assert sizes == [5, 5, 5, 5, 3]


def test_no_rows_are_no_numbers() -> None:
    assert expand("Q6_K", np.empty((0, 420), np.uint8)).shape == (0, 512)
