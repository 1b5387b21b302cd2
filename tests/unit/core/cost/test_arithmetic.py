"""What a shape says of a model's arithmetic."""

import pytest

from headway.core.base.model_card import ModelCard
from headway.core.cost.arithmetic import ATTENTION_RATE, Arithmetic, arithmetic_of

SMOLLM2_135M = ModelCard(
    path="",
    name="SmolLM2-135M",
    architecture="llama",
    num_layers=30,
    hidden_size=576,
    intermediate_size=1536,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    rope_dim=64,
    rope_theta=100_000.0,
    vocab_size=49_152,
    context_length=8192,
    norm_eps=1e-5,
)


def test_products_are_counted_as_the_models_matrices_have_them() -> None:
    weights = 30 * (576 * 576 * 2 + 2 * 576 * 192 + 3 * 576 * 1536)
    found = arithmetic_of(SMOLLM2_135M)
    assert found.pairs_a_token == pytest.approx(ATTENTION_RATE * weights / (30 * 2 * 9 * 64))
    assert found.head_tokens == pytest.approx(49_152 * 576 / weights)


def test_what_is_assumed_without_a_model_is_a_small_ones() -> None:
    found = arithmetic_of(SMOLLM2_135M)
    for known, assumed in zip(found, Arithmetic(), strict=True):
        assert known == pytest.approx(assumed, rel=0.1)
