"""Llamas of many shapes on the CPU executor, against transformers, in each form of weights.

Bounds are relative RMS errors of all logits. Float weights round nothing but K and V; 8-bit
ones round weights and the inputs of matrices to 1/254 of a group's largest; 4 bits cost a
twelfth of a group's range in 15 steps.
"""

import math
import random
from pathlib import Path

import pytest

from headway.compute.cpu.settings import Quantization
from tests.close import relative_error
from tests.parity.cards import read_card
from tests.parity.cpu_logits import cpu_logits, load
from tests.parity.tiny_llama import TinyLlama, write_gguf
from tests.parity.transformers_llama import transformers_llama, transformers_logits

NUM_TOKENS = 40
IDS = random.Random(6).choices(range(257), k=NUM_TOKENS)
BOUNDS = {
    Quantization.NONE: 5e-3,
    Quantization.AUTO: 4e-2,
    Quantization.INT8: 4e-2,
    Quantization.INT4: 0.35,
}
# Head size, query heads a KV head, KV heads. Most of the widths are no multiples of a panel.
SHAPES = [
    (32, 1, 5),
    (32, 8, 1),
    (64, 3, 2),
    (96, 1, 1),
    (96, 3, 1),
    (128, 1, 3),
    (128, 8, 1),
    (256, 3, 1),
    (256, 1, 2),
]


def model(head_dim: int, group: int, kv_heads: int, *, is_tied: bool) -> TinyLlama:
    heads = group * kv_heads
    return TinyLlama(
        hidden_size=math.lcm(32, heads) * max(1, 160 // math.lcm(32, heads)),
        intermediate_size=224,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        is_tied=is_tied,
        seed=head_dim + group,
    )


@pytest.mark.spec("D1")
@pytest.mark.parametrize(("head_dim", "group", "kv_heads"), SHAPES)
def test_any_shape_gives_nearly_the_logits_of_transformers(
    head_dim: int, group: int, kv_heads: int, tmp_path: Path
) -> None:
    tiny = model(head_dim, group, kv_heads, is_tied=head_dim % 64 == 0)
    path = write_gguf(tmp_path / "tiny.gguf", tiny)
    want = transformers_logits(transformers_llama(read_card(path), path), IDS)
    assert want.std() > 1.0, "a flat distribution would hide errors"
    for quantization, bound in BOUNDS.items():
        got = cpu_logits(load(path, quantization=quantization), IDS, [17, 1, 22])
        assert relative_error(got, want) < bound, quantization


@pytest.mark.parametrize("form", ["F32", "F16", "BF16", "Q8_0"])
@pytest.mark.parametrize("quantization", [Quantization.AUTO, Quantization.INT4])
def test_what_the_file_holds_more_exactly_is_coded_from_its_own_numbers(
    form: str, quantization: Quantization, tmp_path: Path
) -> None:
    tiny = model(64, 3, 1, is_tied=False)
    path = write_gguf(tmp_path / "tiny.gguf", tiny, quantized=form)
    want = transformers_logits(transformers_llama(read_card(path), path), IDS)
    got = cpu_logits(load(path, quantization=quantization), IDS, [NUM_TOKENS])
    assert relative_error(got, want) < BOUNDS[quantization]
