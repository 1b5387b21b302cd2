"""What a model file says about its model, before any tensor is read."""

from enum import Enum

import msgspec


class RopeScalingKind(Enum):
    """How rotary frequencies are stretched for contexts longer than those of training."""

    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of rope scaling; those a kind does not use stay at their defaults.

    `factors` (GGUF's `rope_freqs.weight`) is a divisor for each of the rope_dim / 2
    frequencies; when present it is the whole of LLAMA3 scaling.
    """

    kind: RopeScalingKind
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder's shape and habits, as read from GGUF metadata or config.json."""

    path: str
    name: str  # general.name, or the file's stem
    architecture: str  # "llama"
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int  # num_heads % num_kv_heads == 0
    head_dim: int
    rope_dim: int  # leading part of head_dim that is rotated
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    vocab_size: int  # rows of the embedding
    context_length: int  # tokens the model was trained for
    norm_eps: float
    # Of each layer, how many positions a token sees, its own the last; 0: all. (): all everywhere.
    sliding_windows: tuple[int, ...] = ()

    def kv_bytes_per_token(self, bytes_per_value: float) -> int:
        """Bytes of K and V over all layers for one position.

        bytes_per_value  is not whole where values share a scale
        """
        values = 2 * self.num_layers * self.num_kv_heads * self.head_dim
        return round(values * bytes_per_value)
