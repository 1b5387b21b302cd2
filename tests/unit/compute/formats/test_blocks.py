import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from headway.compute.formats.blocks import EXPAND, expand


@pytest.mark.parametrize("name", EXPAND)
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
