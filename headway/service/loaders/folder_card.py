"""From a folder's config.json to a model card."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from headway.core.base.model_card import Activation, FileFormat, ModelCard
from headway.service.loaders.folder_rope import SLIDING, read_rope
from headway.service.loaders.gguf_header import Value
from headway.service.loaders.gguf_metadata import Metadata

ACTIVATIONS: Mapping[str, Activation] = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
}


class Habits(NamedTuple):
    """What a family's configurations leave out: the defaults of its class in `transformers`."""

    architecture: str
    values: Mapping[str, Value] = {}


GEMMA = Habits(
    "gemma3",
    {
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "vocab_size": 262208, "max_position_embeddings": 131072, "rope_theta": 1e6,
        "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True, "sliding_window": 4096,
        "query_pre_attn_scalar": 256, "rope_local_base_freq": 1e4, "sliding_window_pattern": 6,
    },
)  # fmt: skip
FAMILIES: Mapping[str, Habits] = {
    "llama": Habits("llama", {"max_position_embeddings": 2048}),
    "mistral": Habits("mistral", {"num_key_value_heads": 8, "max_position_embeddings": 131072}),
    "qwen2": Habits("qwen2", {"num_key_value_heads": 32, "max_position_embeddings": 32768}),
    "qwen3": Habits(
        "qwen3",
        {"num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32768},
    ),
    "gemma3_text": GEMMA,
    "gemma3": GEMMA,  # with an image tower, which is not read
    "phi3": Habits(
        "phi3",
        {
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
        },
    ),
}  # by `model_type`
COMMON: Mapping[str, Value] = {
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": False,
    "use_sliding_window": False, "max_window_layers": 28,
}  # fmt: skip
CLASSES = ("ForCausalLM", "Gemma3ForConditionalGeneration")


def folder_card(config: Metadata, folder: str, tensor_prefix: str) -> ModelCard:
    """The card; raises ModelFileError for what is not supported or contradicts itself."""
    habits = check_supported(config)
    given = _text_part(config)
    values = Metadata(config.path, {**COMMON, **habits.values, **given})
    hidden = values.integer("hidden_size", minimum=1)
    heads = values.integer("num_attention_heads", minimum=1)
    kv_heads = values.integer("num_key_value_heads", heads, minimum=1)
    if heads % kv_heads:
        raise values.fail(
            "num_attention_heads", f"is {heads}, not a multiple of the {kv_heads} KV heads"
        )
    if "head_dim" not in values.values and hidden % heads:
        raise values.fail("num_attention_heads", f"is {heads}, which does not divide {hidden}")
    head_dim = values.integer("head_dim", hidden // heads, minimum=1)
    is_gemma = habits is GEMMA
    num_layers = values.integer("num_hidden_layers", minimum=1)
    scalar = values.number("query_pre_attn_scalar") if is_gemma else 0.0
    rope = read_rope(values, given, head_dim, habits.architecture)
    return ModelCard(
        path=folder,
        name=_name(folder),
        architecture=habits.architecture,
        file_format=FileFormat.SAFETENSORS,
        tensor_prefix=tensor_prefix,
        num_layers=num_layers,
        hidden_size=hidden,
        intermediate_size=values.integer("intermediate_size", minimum=1),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rope_dim=rope.dim,
        rope_theta=rope.theta,
        rope_scaling=rope.scaling,
        local_rope_theta=rope.local_theta,
        vocab_size=values.integer("vocab_size", minimum=1),
        context_length=rope.context,
        norm_eps=_norm_eps(values),
        sliding_windows=_windows(values, habits.architecture, num_layers),
        activation=_activation(values),
        embedding_scale=hidden**0.5 if is_gemma else 1.0,
        query_scale=scalar**-0.5 if is_gemma else 0.0,
        is_head_tied=values.flag("tie_word_embeddings", False),
    )


def check_supported(config: Metadata) -> Habits:
    """The family's habits; raises ModelFileError with the list of what is supported."""
    kind = config.text("model_type")
    habits = FAMILIES.get(kind or "")
    if habits is None:
        said = "is missing" if kind is None else f"is {kind[:60]!r}"
        raise config.fail("model_type", f"{said}; supported: {', '.join(FAMILIES)}")
    classes = config.strings("architectures") or ()
    if classes and not any(name.endswith(CLASSES) for name in classes):
        raise config.fail(
            "architectures", f"is {classes[0][:60]!r}, which is no model that writes text"
        )
    if any(key.startswith("quantization_config.") for key in config.values):
        method = config.text("quantization_config.quant_method", "unknown")
        raise config.fail(
            "quantization_config",
            f"says {method!r}; supported: folders with F32, F16 and BF16 weights, and quantized "
            "GGUF files",
        )
    return habits


def _text_part(config: Metadata) -> dict[str, Value]:
    """The values of the language model, for one that also takes images."""
    prefix = "text_config."
    found = dict(config.values)
    found |= {
        key.removeprefix(prefix): value
        for key, value in config.values.items()
        if key.startswith(prefix)
    }
    found.setdefault("hidden_act", found.get("hidden_activation", ""))
    if not found["hidden_act"]:
        del found["hidden_act"]
    for refused in ("attn_logit_softcapping", "final_logit_softcapping"):
        if refused in found:
            raise config.fail(refused, f"is {found[refused]}: not supported")
    if found.get("use_bidirectional_attention"):
        raise config.fail("use_bidirectional_attention", "is true: not supported")
    return found


def _name(folder: str) -> str:
    """The folder's name, or the repository's in a cache of a model hub."""
    path = Path(folder).absolute()
    repository = path.parent.parent.name
    if path.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.removeprefix("models--").replace("--", "/")
    return path.name


def _norm_eps(values: Metadata) -> float:
    eps = values.number("rms_norm_eps")
    if eps >= 1.0:
        raise values.fail("rms_norm_eps", f"is {eps}; it must be less than 1")
    return eps


def _activation(values: Metadata) -> Activation:
    name = values.text("hidden_act")
    found = ACTIVATIONS.get(name or "")
    if found is None:
        raise values.fail("hidden_act", f"is {name!r}; supported: {', '.join(ACTIVATIONS)}")
    return found


def _windows(values: Metadata, architecture: str, num_layers: int) -> tuple[int, ...]:
    """Of each layer; empty where no layer has one."""
    window = values.integer("sliding_window", 0)
    if architecture.startswith("qwen") and not values.flag("use_sliding_window", False):
        window = 0
    if not window:
        return ()
    kinds = values.strings("layer_types")
    if kinds is not None and architecture not in ("llama", "mistral", "phi3"):
        if len(kinds) != num_layers:
            raise values.fail("layer_types", f"has {len(kinds)} entries for {num_layers} layers")
        return tuple(window if kind == SLIDING else 0 for kind in kinds)
    if architecture == "gemma3":
        every = values.integer("sliding_window_pattern", minimum=1)
        return tuple(window if (layer + 1) % every else 0 for layer in range(num_layers))
    if architecture.startswith("qwen"):
        first = values.integer("max_window_layers")
        return tuple(window if layer >= first else 0 for layer in range(num_layers))
    return () if architecture == "llama" else (window,) * num_layers
