"""Sliding windows on the CPU executor, against transformers' Mistral."""

import random
from pathlib import Path

import pytest

from tests.close import relative_error
from tests.parity.cards import read_card
from tests.parity.cpu_logits import cpu_logits, load
from tests.parity.tiny_llama import TinyLlama, write_gguf
from tests.parity.transformers_llama import transformers_llama, transformers_logits

NUM_TOKENS = 600  # over two chunks of attention, and over the widest window
IDS = random.Random(8).choices(range(257), k=NUM_TOKENS)
BOUND = 5e-3  # relative RMS of all logits: K, V, queries and weights are bfloat16


def write(path: Path, window: int) -> Path:
    metadata = {"llama.attention.sliding_window": window}
    tiny = TinyLlama(head_dim=32, hidden_size=96, context_length=1024, metadata=metadata)
    return write_gguf(path / "m.gguf", tiny)


@pytest.mark.spec("E4")
@pytest.mark.parametrize("window", [1, 16, 37, 256, 301])
def test_each_token_sees_as_far_back_as_transformers_says(window: int, tmp_path: Path) -> None:
    path = write(tmp_path, window)
    card = read_card(path)
    assert card.sliding_windows == (window,) * card.num_layers
    want = transformers_logits(transformers_llama(card, path), IDS)
    got = cpu_logits(load(path), IDS, [100, 1, 255, 244])
    assert relative_error(got, want) < BOUND
    everywhere = transformers_logits(
        transformers_llama(read_card(write_gguf(tmp_path / "all.gguf", without_window())), path),
        IDS,
    )
    assert relative_error(got, everywhere) > 10 * BOUND, "the window makes a difference"


def without_window() -> TinyLlama:
    return TinyLlama(head_dim=32, hidden_size=96, context_length=1024)


def test_a_windows_answer_does_not_depend_on_the_chunks(tmp_path: Path) -> None:
    model = load(write(tmp_path, 37))
    whole = cpu_logits(model, IDS, [NUM_TOKENS])
    for chunks in ([1] * 20 + [NUM_TOKENS - 20], [256, 256, 88], [333, 267]):
        assert cpu_logits(model, IDS, chunks).equal(whole)
