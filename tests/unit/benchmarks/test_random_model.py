from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from benchmarks import random_model
from benchmarks.random_model import SCALE, Shape, random_blocks, write_random_model
from headway.compute.arch.registry import tensor_specs
from headway.compute.formats.gguf import GgufTensors

TINY = Shape(2, 64, 2, 1, 32, 96, 128, 256)


def test_a_random_model_is_a_file_that_the_engine_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(random_model.SHAPES, "tiny shape", TINY)
    card = write_random_model("tiny shape", tmp_path)
    specs = tensor_specs(card)
    tensors = GgufTensors(card.path, specs, card.rope_dim)  # checks names, shapes and sizes
    assert all(spec in tensors for spec in specs if not spec.is_optional)
    before = Path(card.path).stat().st_mtime_ns
    assert write_random_model("tiny shape", tmp_path) == card
    assert Path(card.path).stat().st_mtime_ns == before, "it is written once"


@pytest.mark.parametrize("name", ["Q4_1", "Q8_0"])
def test_random_weights_are_finite_and_about_zero(name: str) -> None:
    blocks = random_blocks(name, 64, 128)
    values = dequantize(blocks, GGMLQuantizationType[name])
    assert values.shape == (64, 128)
    assert np.abs(values).max() <= 8.1 * SCALE
    assert abs(float(values.mean())) < SCALE
