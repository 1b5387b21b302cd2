"""What a model file says about its model, before any tensor is read."""

from enum import Enum

import msgspec


class FileFormat(Enum):
    """How the weights lie on disk."""

    GGUF = "gguf"  # one file
    SAFETENSORS = "safetensors"  # a folder as Hugging Face's libraries write it


class Activation(Enum):
    """What the gate of the MLP goes through before it is multiplied with `up`."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"  # 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3)))


class RopeScalingKind(Enum):
    """How rotary frequencies are stretched for contexts longer than those of training."""

    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"
    LONGROPE = "longrope"


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of rope scaling; those a kind does not use stay at their defaults.

    `factors` (GGUF's `rope_freqs.weight`) is a divisor for each of the rope_dim / 2
    frequencies; when present it is the whole of LLAMA3 scaling. LONGROPE has two sets of
    such divisors, here or in tensors of a GGUF file: one for servers whose sequences are
    all within the original context, one for all others.
    """

    kind: RopeScalingKind
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float = 1.0  # cosines and sines are multiplied by it
    beta_fast: float = 32.0  # YARN: pairs that turn so often over the original context are kept
    beta_slow: float = 1.0  # and those that turn less than this are stretched
    is_truncated: bool = True  # YARN: the two bounds are moved to whole pairs
    short_factors: tuple[float, ...] = ()  # [rope_dim / 2]; empty: in the GGUF file
    long_factors: tuple[float, ...] = ()
    is_short: bool = False  # LONGROPE: the short set is meant


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder's shape and habits, as read from GGUF metadata or config.json.

    Defaults are Llama's. How an executor uses each field: `compute/arch/family.py`.
    """

    path: str  # of the file, or of the folder
    name: str  # general.name, or the stem of the path
    architecture: str  # a family of compute/arch/registry.py: "llama"
    file_format: FileFormat = FileFormat.GGUF
    tensor_prefix: str = "model."  # in folders: what stands before "layers." in names
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int  # num_heads % num_kv_heads == 0
    head_dim: int
    rope_dim: int  # leading part of head_dim that is rotated
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    local_rope_theta: float = 0.0  # of layers with a window, never scaled; 0: as all others
    vocab_size: int  # rows of the embedding
    context_length: int  # tokens the model was trained for
    norm_eps: float
    # Of each layer, how many positions a token sees, its own the last; 0: all. (): all everywhere.
    sliding_windows: tuple[int, ...] = ()
    activation: Activation = Activation.SILU
    embedding_scale: float = 1.0  # rows of the embedding are multiplied by it
    query_scale: float = 0.0  # scores are multiplied by it; 0: head_dim**-0.5
    is_head_tied: bool | None = None  # None: tied if the file has no head of its own

    @property
    def score_scale(self) -> float:
        """What the products of queries and keys are multiplied by."""
        return self.query_scale or self.head_dim**-0.5

    def window_of(self, layer: int) -> int:
        """How many positions a token of the layer sees, its own the last; 0: all."""
        return self.sliding_windows[layer] if self.sliding_windows else 0

    def is_local(self, layer: int) -> bool:
        """Whether the layer turns its heads by `local_rope_theta`."""
        return self.local_rope_theta > 0.0 and self.window_of(layer) > 0

    def for_context(self, num_tokens: int) -> "ModelCard":
        """The card for a server whose sequences have at most so many tokens."""
        scaling = self.rope_scaling
        if scaling is None or scaling.kind is not RopeScalingKind.LONGROPE:
            return self
        is_short = num_tokens <= scaling.original_context
        scaling = msgspec.structs.replace(scaling, is_short=is_short)
        return msgspec.structs.replace(self, rope_scaling=scaling)

    def kv_bytes_per_token(self, bytes_per_value: float) -> int:
        """Bytes of K and V over all layers for one position.

        bytes_per_value  is not whole where values share a scale
        """
        values = 2 * self.num_layers * self.num_kv_heads * self.head_dim
        return round(values * bytes_per_value)
