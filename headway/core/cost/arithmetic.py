"""What a model's shape says about its arithmetic, before anything was measured."""

from typing import NamedTuple

from headway.core.base.model_card import ModelCard

# Attention gets about half as much arithmetic done in a second as products with the weights do:
# a softmax lies between its two products, its tiles are ragged, and K and V are wider numbers
# than quantised weights. Whole prompts of 128 to 8,192 tokens on the CPU executor (growth.py) give
# 0.52 for SmolLM2-135M and 0.57 for a model of 1.5 billion. On GPUs it is much the same: Dao 2023
# (FlashAttention-2, section 1) has 30 to 50 % of the peak for attention, 80 to 90 % for matrices.
ATTENTION_RATE = 0.55


class Arithmetic(NamedTuple):
    """Costs in tokens of a prompt; the defaults are a small model's.

    pairs_a_token  pairs of attention that take as long as one token's products with the weights
    head_tokens    what the logits of one row cost
    """

    pairs_a_token: float = 1700.0
    head_tokens: float = 0.25


def arithmetic_of(card: ModelCard) -> Arithmetic:
    """Counted in multiplications; a window of local layers is left out of account."""
    heads, kv_heads = card.num_heads * card.head_dim, card.num_kv_heads * card.head_dim
    attention = 2 * card.hidden_size * (heads + kv_heads)  # Q and output, K and V
    mlp = 3 * card.hidden_size * card.intermediate_size
    weights = card.num_layers * (attention + mlp)
    a_pair = 2 * card.num_layers * heads  # scores and the sum of V
    return Arithmetic(
        pairs_a_token=ATTENTION_RATE * weights / a_pair,
        head_tokens=card.hidden_size * card.vocab_size / weights,
    )
