"""From a GGUF file's metadata to a model card."""

from pathlib import Path

from headway.core.base.errors import ModelFileError
from headway.core.base.model_card import Activation, ModelCard, RopeScalingKind
from headway.service.loaders.gguf_header import Header
from headway.service.loaders.gguf_metadata import Metadata
from headway.service.loaders.gguf_rope import gguf_rope_scaling

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3", "phi3")
EMBEDDING = "token_embd.weight"
GEMMA_PATTERN = 6  # of so many layers the last sees everything; files do not say it
GEMMA_27B_LAYERS = 62  # the one size whose scores are not scaled by the size of its heads


def gguf_card(metadata: Metadata, header: Header) -> ModelCard:
    """The card; raises ModelFileError, naming the key, for what contradicts itself."""
    arch = metadata.text("general.architecture") or ""
    hidden = metadata.integer(f"{arch}.embedding_length", minimum=1)
    heads = metadata.integer_or_equal(f"{arch}.attention.head_count", minimum=1)
    kv_heads = metadata.integer_or_equal(f"{arch}.attention.head_count_kv", heads, minimum=1)
    if heads % kv_heads:
        raise metadata.fail(
            f"{arch}.attention.head_count", f"is {heads}, not a multiple of the {kv_heads} KV heads"
        )
    head_dim = _head_dim(metadata, arch, hidden, heads)
    rope_dim = metadata.integer(f"{arch}.rope.dimension_count", head_dim, minimum=2)
    if rope_dim > head_dim or rope_dim % 2:
        raise metadata.fail(
            f"{arch}.rope.dimension_count",
            f"is {rope_dim}; it must be even and at most the head size {head_dim}",
        )
    embedding = next((t for t in header.tensors if t.name == EMBEDDING), None)
    if embedding is None or len(embedding.shape) != 2 or embedding.shape[0] != hidden:
        found = "is missing" if embedding is None else f"has the shape {list(embedding.shape)}"
        raise ModelFileError(
            metadata.path, f"tensor {EMBEDDING!r} {found}; expected rows of {hidden} values"
        )
    num_layers = metadata.integer(f"{arch}.block_count", minimum=1)
    is_gemma = arch == "gemma3"
    _refuse(metadata, arch)
    context = metadata.integer(f"{arch}.context_length", minimum=1)
    scaling = gguf_rope_scaling(metadata, arch, header, context)
    if scaling is not None and scaling.kind is RopeScalingKind.YARN:
        # Some files keep the length of the training as the model's own, and scale from there.
        context = max(context, int(scaling.original_context * scaling.factor))
    return ModelCard(
        path=metadata.path,
        name=metadata.text("general.name") or Path(metadata.path).stem,
        architecture=arch,
        num_layers=num_layers,
        hidden_size=hidden,
        intermediate_size=metadata.integer_or_equal(f"{arch}.feed_forward_length", minimum=1),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rope_dim=rope_dim,
        rope_theta=metadata.number(f"{arch}.rope.freq_base", 10000.0),
        rope_scaling=scaling,
        vocab_size=embedding.shape[1],
        context_length=context,
        norm_eps=metadata.number(f"{arch}.attention.layer_norm_rms_epsilon"),
        sliding_windows=_windows(metadata, arch, num_layers),
        local_rope_theta=metadata.number(f"{arch}.rope.freq_base_swa", 1e4) if is_gemma else 0.0,
        activation=Activation.GELU_TANH if is_gemma else Activation.SILU,
        embedding_scale=hidden**0.5 if is_gemma else 1.0,
        query_scale=_query_scale(hidden, heads, num_layers) if is_gemma else 0.0,
    )


def _head_dim(metadata: Metadata, arch: str, hidden: int, heads: int) -> int:
    key, value_key = f"{arch}.attention.key_length", f"{arch}.attention.value_length"
    if key not in metadata.values and hidden % heads:
        raise metadata.fail(
            f"{arch}.attention.head_count", f"is {heads}, which does not divide the width {hidden}"
        )
    head_dim = metadata.integer(key, hidden // heads, minimum=1)
    if metadata.integer(value_key, head_dim) != head_dim:
        raise metadata.fail(value_key, f"differs from the key length {head_dim}: not supported")
    return head_dim


def _refuse(metadata: Metadata, arch: str) -> None:
    """What would change every answer and is not computed."""
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if metadata.values.get(f"{arch}.{name}"):
            raise metadata.fail(f"{arch}.{name}", "is not 0: not supported")


def _windows(metadata: Metadata, arch: str, num_layers: int) -> tuple[int, ...]:
    """Of each layer; empty where no layer has one."""
    window = metadata.integer(f"{arch}.attention.sliding_window", 0)
    if not window:
        return ()
    if arch != "gemma3":
        return (window,) * num_layers
    key = f"{arch}.attention.sliding_window_pattern"
    pattern = metadata.values.get(key)
    if isinstance(pattern, tuple):  # of each layer, whether it is local
        if len(pattern) != num_layers:
            raise metadata.fail(key, f"has {len(pattern)} elements for {num_layers} layers")
        return tuple(window if is_local else 0 for is_local in pattern)
    every = metadata.integer(key, GEMMA_PATTERN, minimum=1)
    return tuple(window if (layer + 1) % every else 0 for layer in range(num_layers))


def _query_scale(hidden: int, heads: int, num_layers: int) -> float:
    """Of Gemma 3; 0: by the size of heads."""
    return (hidden // heads) ** -0.5 if num_layers == GEMMA_27B_LAYERS else 0.0
