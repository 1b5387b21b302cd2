"""Memory that a step computes in, taken once: views of it are lent to every step."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.compute.cpu.attention_plan import scratch_floats
from headway.compute.cpu.kvpool import aligned_zeros
from headway.compute.cpu.pack import COLUMNS, GROUP
from headway.compute.cpu.phases import TICKS
from headway.compute.cpu.step import BLOCK_ROWS
from headway.compute.cpu.weights import DOWN, GATE_UP, INPUTS, OUTPUT, PANELS, QKV, Weights
from headway.core.base.model_card import Activation, ModelCard
from headway.core.engine.settings import ResolvedEngine

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

HEAD_ROWS = 64  # fewest rows whose logits fit: 13 MB for 49,152 ids


class Workspace:
    """Buffers for up to max_num_batched_tokens tokens and their logits."""

    def __init__(
        self, card: ModelCard, weights: Weights, engine: ResolvedEngine, threads: int
    ) -> None:
        tokens = engine.max_num_batched_tokens
        linears = weights.linears
        widths = linears[:, :, PANELS].max(axis=0) * COLUMNS
        inputs = int(linears[:, :, INPUTS].max())
        self._weights = weights
        self._card = card
        self.max_head_rows = max(HEAD_ROWS, engine.max_num_seqs)
        block = threads * BLOCK_ROWS
        self._floats: dict[str, Floats] = {
            "x": _floats(tokens, card.hidden_size),
            "normed": _floats(block, card.hidden_size),
            "qkv": _floats(tokens, widths[QKV]),
            "mixed": _floats(tokens, card.num_heads * card.head_dim),
            "gate_up": _floats(block, widths[GATE_UP]),
            "inner": _floats(block, card.intermediate_size),
            "added": _floats(block, max(widths[OUTPUT], widths[DOWN])),
            "head_x": _floats(self.max_head_rows, card.hidden_size),
            "logits": _floats(self.max_head_rows, weights.head[PANELS] * COLUMNS),
        }
        quantized = max(block * inputs, self.max_head_rows * int(weights.head[INPUTS]))
        self._xq = aligned_zeros((quantized,), np.int8)
        self._xs = aligned_zeros((quantized // GROUP,), np.float32)
        self._xsum = aligned_zeros((2 * (quantized // GROUP),), np.int32)
        self._partials = _floats(1, 0).reshape(-1)
        size = scratch_floats(card.num_heads, card.num_kv_heads, card.head_dim)
        self.scratch = aligned_zeros((threads, size), np.float32)
        self._num_tokens = 0
        self.ticks: Ints = np.zeros((0, TICKS), np.int64)

    def take_tokens(self, count: int) -> Floats:
        """The residual stream [count, C] of a new step, to be filled with embeddings."""
        self._num_tokens = count
        return self._floats["x"][:count]

    @property
    def model_arguments(self) -> tuple[Any, ...]:
        """What is the same in every step."""
        weights, card = self._weights, self._card
        return (
            self.ticks,
            weights.linears,
            weights.head,
            weights.norms,
            np.float32(card.norm_eps),
            card.num_heads,
            weights.layers,
            card.activation is Activation.GELU_TANH,
            np.float32(card.score_scale * math.sqrt(card.head_dim)),
        )

    @property
    def token_arguments(self) -> tuple[Any, ...]:
        """Buffers of as many rows as the step has tokens."""
        count, floats = self._num_tokens, self._floats
        quantized = (self._xq, self._xs, self._xsum)
        after = (floats["qkv"][:count], floats["mixed"][:count])
        near = (floats["gate_up"], floats["inner"], floats["added"])
        return (floats["x"][:count], floats["normed"], *quantized, *after, *near)

    def head_arguments(self, count: int) -> tuple[Any, ...]:
        """Buffers of `count` rows whose logits are wanted."""
        return (self._floats["head_x"][:count], self._floats["logits"][:count])

    def projection_arguments(self, rows: Ints) -> tuple[Any, ...]:
        """What it takes to compute logits of rows of the last step."""
        weights = self._weights
        head_x, logits = self.head_arguments(len(rows))
        quantized = (self._xq, self._xs, self._xsum)
        eps = np.float32(self._card.norm_eps)
        x = self._floats["x"][: self._num_tokens]
        return (self.ticks, weights.head, weights.norms, eps, x, rows, head_x, *quantized, logits)

    def logits(self, count: int) -> Floats:
        """[count, V] as the last step left them, without padding columns."""
        return np.ascontiguousarray(self._floats["logits"][:count, : self._card.vocab_size])

    def partials(self, count: int) -> Floats:
        """At least `count` floats for partial sums of attention."""
        if count > self._partials.size:
            self._partials = aligned_zeros((2 * count,), np.float32)
        return self._partials


def _floats(rows: int, columns: int) -> Floats:
    buffer: Floats = aligned_zeros((int(rows), int(columns)), np.float32)
    return buffer
