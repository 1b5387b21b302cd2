"""The decoder of `compute/arch/family.py`, with which all families are computed.

The residual stream, norms, rotation, softmax and logits are float32; with bfloat16
weights the inputs and outputs of the matrices and the KV pool are rounded to bfloat16.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor

from headway.compute.gpu.attn.backend import StepAttention
from headway.compute.gpu.kvpool.device import KvPool
from headway.compute.gpu.ops.activation.reference import gated
from headway.compute.gpu.ops.linear.head import Head
from headway.compute.gpu.ops.linear.registry import Linear
from headway.compute.gpu.ops.norm.reference import rms_norm
from headway.compute.gpu.ops.rope.reference import rope_angles, rotate_heads_
from headway.core.base.model_card import Activation


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer; matrices that share their input are one."""

    attention_norm: Tensor  # [C] float32
    qkv: Linear  # C -> (H + 2G) * D
    query_norm: Tensor | None  # [D] float32
    key_norm: Tensor | None  # [D] float32
    attention_output: Linear  # H * D -> C
    post_attention_norm: Tensor | None  # [C] float32
    mlp_norm: Tensor  # [C] float32
    gate_up: Linear  # C -> 2 * inner, gate first
    down: Linear  # inner -> C
    post_mlp_norm: Tensor | None  # [C] float32
    window: int  # positions that a token sees; 0: all
    is_local: bool  # turns its heads by the local frequencies


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    """All of a model's tensors, ready to compute with."""

    embedding: Tensor  # [V, C]
    layers: tuple[LayerWeights, ...]
    output_norm: Tensor  # [C] float32
    head: Head  # C -> V; may share its bytes with the embedding
    inverse_frequencies: Tensor  # [rope_dim / 2] float64
    local_frequencies: Tensor | None  # [rope_dim / 2] float64
    rotation_scale: float  # of cosines and sines that are not of local layers


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """What the weights' own shapes do not say."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    score_scale: float
    embedding_scale: float
    activation: Activation
    dtype: torch.dtype  # of matrices and of the KV pool


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatTokens:
    """The tokens of a step, row after row, without padding."""

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    slots: Tensor  # [T] int64, where K and V of each token go


class Decoder:
    """Computes hidden states of a step's tokens, and logits of those asked for."""

    def __init__(self, shape: DecoderShape, weights: DecoderWeights) -> None:
        self._shape = shape
        self._weights = weights

    @property
    def weights(self) -> DecoderWeights:
        """What it computes with."""
        return self._weights

    def forward(self, tokens: FlatTokens, pool: KvPool, attention: StepAttention) -> Tensor:
        """Write K and V of all tokens into the pool; returns [T, C] float32, not normalised."""
        weights, scale = self._weights, self._shape.embedding_scale
        turns = rope_angles(tokens.positions, weights.inverse_frequencies, weights.rotation_scale)
        local_turns = turns
        if weights.local_frequencies is not None:
            local_turns = rope_angles(tokens.positions, weights.local_frequencies)
        hidden = functional.embedding(tokens.token_ids, weights.embedding).float()
        if scale != 1.0:
            hidden *= scale
        for index, layer in enumerate(weights.layers):
            x = self._normalise(hidden, layer.attention_norm)
            q, kv = self._heads(layer, x, local_turns if layer.is_local else turns)
            pool.write(index, tokens.slots, kv)
            mixed = attention.attend(
                q, pool.layer(index), window=layer.window, scale=self._shape.score_scale
            )
            self._add(hidden, layer.attention_output(mixed.flatten(1)), layer.post_attention_norm)
            x = self._normalise(hidden, layer.mlp_norm)
            x = layer.down(gated(layer.gate_up(x), self._shape.activation))
            self._add(hidden, x, layer.post_mlp_norm)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[S, C] of `forward`'s rows to [S, V] float32."""
        weights = self._weights
        return weights.head(rms_norm(hidden, weights.output_norm, self._shape.norm_eps))

    def _normalise(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(hidden, weight, self._shape.norm_eps).to(self._shape.dtype)

    def _add(self, hidden: Tensor, x: Tensor, norm: Tensor | None) -> None:
        hidden += x if norm is None else rms_norm(x, norm, self._shape.norm_eps)

    def _heads(
        self, layer: LayerWeights, x: Tensor, turns: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Views q [T, H, D] and kv [T, 2, G, D] of the product, q and k normed and rotated."""
        shape = self._shape
        heads = layer.qkv(x).unflatten(1, (-1, shape.head_dim))
        first_value = shape.num_heads + shape.num_kv_heads
        q, k = heads[:, : shape.num_heads], heads[:, shape.num_heads : first_value]
        if layer.query_norm is not None:
            q.copy_(rms_norm(q, layer.query_norm, shape.norm_eps))
        if layer.key_norm is not None:
            k.copy_(rms_norm(k, layer.key_norm, shape.norm_eps))
        rotate_heads_(heads[:, :first_value], *turns)
        return q, heads[:, shape.num_heads :].unflatten(1, (2, shape.num_kv_heads))
