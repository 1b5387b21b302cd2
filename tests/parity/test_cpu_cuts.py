"""The CPU executor cuts a step by rows or by panels, and rows into blocks: the bits stay."""

import random
from pathlib import Path

import pytest
import torch

from headway.compute.cpu.step import BLOCK_ROWS, LEAST_ROWS
from tests.parity.cpu_logits import cpu_logits, load
from tests.parity.tiny_llama import TinyLlama, write_gguf

NUM_TOKENS = 5 * BLOCK_ROWS + 3
IDS = random.Random(6).choices(range(257), k=NUM_TOKENS)


def chunks_of(size: int) -> list[int]:
    """The tokens in chunks of a size, and what is left."""
    whole, rest = divmod(NUM_TOKENS, size)
    return [size] * whole + [rest] * (rest > 0)


@pytest.mark.parametrize("quantized", ["F32", "Q4_1"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_steps_cut_by_rows_and_by_panels_give_the_same_bits(
    quantized: str, threads: int, tmp_path: Path
) -> None:
    tiny = TinyLlama(head_dim=32, num_heads=6, num_kv_heads=2, context_length=512, seed=12)
    path = write_gguf(tmp_path / "tiny.gguf", tiny, quantized=quantized)
    want = cpu_logits(load(path), IDS, chunks_of(LEAST_ROWS // 2))
    least = threads * LEAST_ROWS
    for size in (least - 1, least, threads * BLOCK_ROWS, threads * BLOCK_ROWS + 1, NUM_TOKENS):
        got = cpu_logits(load(path, threads=threads), IDS, chunks_of(size))
        assert torch.equal(got, want), f"chunks of {size}"
