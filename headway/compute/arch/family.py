"""What every model family says about itself, and what an executor does with it.

All families are one decoder. For the tokens of a step, with `card` the model's card:

    hidden = EMBEDDING[ids] * card.embedding_scale
    of each layer:
        x = norm(hidden, ATTENTION_NORM)
        q, k, v = x @ QUERY.T + bias, x @ KEY.T + bias, x @ VALUE.T + bias
        q, k = head by head norm(q, QUERY_NORM), norm(k, KEY_NORM)      if the layer has them
        q, k = their first card.rope_dim values turned, the rest of a head as it is;
               by `local_frequencies` if card.is_local(layer), else by `inverse_frequencies`
               with cosines and sines times `rotation_scale`
        scores = (q . k) * card.score_scale, over the card.window_of(layer) positions that
                 end with the token's own (0: over all before it)
        x = softmax(scores) @ v @ ATTENTION_OUTPUT.T + bias
        hidden += norm(x, POST_ATTENTION_NORM) if the layer has one, else x
        x = norm(hidden, MLP_NORM)
        x = activation(x @ GATE.T + bias) * (x @ UP.T + bias), by card.activation
        x = x @ DOWN.T + bias
        hidden += norm(x, POST_MLP_NORM) if the layer has one, else x
    logits = norm(hidden, OUTPUT_NORM) @ (HEAD, or EMBEDDING where there is no HEAD).T

`norm(x, weight)` is `x / sqrt(mean(x**2) + card.norm_eps) * weight`; weights are those to
multiply with: where a family's files hold them less one, reading adds it (`TensorSpec.added`).
The scale of the embedding is not part of it when it serves as head. A layer has what the
file has: a bias or norm whose spec is not in the file is left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Part(Enum):
    """What a tensor is for, whatever a file format calls it."""

    EMBEDDING = "embedding"
    OUTPUT_NORM = "output norm"
    HEAD = "head"
    ROPE_FACTORS = "rope factors"
    OTHER_ROPE_FACTORS = "rope factors for another context"  # in the file, and not read
    ATTENTION_NORM = "attention norm"
    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    QUERY_NORM = "query norm"
    KEY_NORM = "key norm"
    ATTENTION_OUTPUT = "attention output"
    POST_ATTENTION_NORM = "post attention norm"
    MLP_NORM = "mlp norm"
    GATE = "gate"
    UP = "up"
    DOWN = "down"
    POST_MLP_NORM = "post mlp norm"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor that a model file holds, or may hold, or some rows of one.

    shape          as computed with: (outputs, inputs) for a matrix
    layer          None for those outside the layers
    is_bias        it is the bias that belongs to the matrix of the same part
    is_optional    a file without it is complete
    rotated_heads  > 0: the rows are stored as pairs of neighbours for this many heads,
                   and must be put back into halves before use
    first_row      where its rows begin in the file's tensor
    file_rows      rows of the file's tensor, which several specs share; 0: it is all of it
    added          `read` adds this to every value
    """

    name: str
    part: Part
    shape: tuple[int, ...]
    layer: int | None = None
    is_bias: bool = False
    is_optional: bool = False
    rotated_heads: int = 0
    first_row: int = 0
    file_rows: int = 0
    added: float = 0.0

    @property
    def file_shape(self) -> tuple[int, ...]:
        """Shape of the whole tensor in the file."""
        return (self.file_rows or self.shape[0], *self.shape[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Stem:
    """What stands for one part between "blk.3." or "model.layers.3." and ".weight"."""

    gguf: str
    folder: str


LLAMA_NORMS: Mapping[Part, Stem] = {
    Part.ATTENTION_NORM: Stem(gguf="attn_norm", folder="input_layernorm"),
    Part.MLP_NORM: Stem(gguf="ffn_norm", folder="post_attention_layernorm"),
}
MATRICES: Mapping[Part, Stem] = {
    Part.QUERY: Stem(gguf="attn_q", folder="self_attn.q_proj"),
    Part.KEY: Stem(gguf="attn_k", folder="self_attn.k_proj"),
    Part.VALUE: Stem(gguf="attn_v", folder="self_attn.v_proj"),
    Part.ATTENTION_OUTPUT: Stem(gguf="attn_output", folder="self_attn.o_proj"),
    Part.GATE: Stem(gguf="ffn_gate", folder="mlp.gate_proj"),
    Part.UP: Stem(gguf="ffn_up", folder="mlp.up_proj"),
    Part.DOWN: Stem(gguf="ffn_down", folder="mlp.down_proj"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How the tensors of one family differ from Llama's.

    norms            of each layer: [hidden_size], or [head_dim] for those of heads
    matrices         several parts of one stem are stored one after another, in order of `Part`
    required_biases  of these parts; the other matrices may have one
    pairs_in_gguf    GGUF files hold rotated rows as pairs of neighbours
    added_to_norms   by reading from a folder, to every norm's weight
    """

    norms: Mapping[Part, Stem] = field(default_factory=lambda: LLAMA_NORMS)
    matrices: Mapping[Part, Stem] = field(default_factory=lambda: MATRICES)
    required_biases: frozenset[Part] = frozenset()
    pairs_in_gguf: bool = False
    added_to_norms: float = 0.0
