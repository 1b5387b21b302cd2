"""From a GGUF file's metadata to how its rotary frequencies are scaled, as converters write it."""

from headway.core.base.errors import ModelFileError
from headway.core.base.model_card import RopeScaling, RopeScalingKind
from headway.service.loaders.folder_rope import yarn_attention
from headway.service.loaders.gguf_header import Header
from headway.service.loaders.gguf_metadata import Metadata

ROPE_FACTORS = "rope_freqs.weight"  # present in Llama 3.1 and later files
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
KINDS = ("none", "linear", "yarn", "longrope")
# Parameters of variants that are not computed, and the value at which they change nothing.
VARIANTS = {"yarn_ext_factor": 1.0, "yarn_attn_factor": 1.0, "yarn_log_multiplier": 0.0}


def gguf_rope_scaling(
    metadata: Metadata, arch: str, header: Header, context: int
) -> RopeScaling | None:
    """The scaling; raises ModelFileError for what is not supported or contradicts itself."""
    key = f"{arch}.rope.scaling.type"
    kind = metadata.text(key)
    if kind not in (None, *KINDS):
        raise metadata.fail(key, f"is {kind!r}; supported: {', '.join(KINDS)}")
    tensors = {tensor.name for tensor in header.tensors}
    if tensors & {LONG_FACTORS, SHORT_FACTORS} or kind == "longrope":
        return _longrope(metadata, arch, tensors, context)
    if kind in (None, "none"):
        return RopeScaling(kind=RopeScalingKind.LLAMA3) if ROPE_FACTORS in tensors else None
    if ROPE_FACTORS in tensors:
        raise metadata.fail(key, f"is {kind!r}, and {ROPE_FACTORS!r} scales too: not supported")
    factor = metadata.number(f"{arch}.rope.scaling.factor")
    if kind == "linear":
        return RopeScaling(kind=RopeScalingKind.LINEAR, factor=factor)
    return _yarn(metadata, arch, factor, context)


def _longrope(metadata: Metadata, arch: str, tensors: set[str], context: int) -> RopeScaling:
    for name in (LONG_FACTORS, SHORT_FACTORS):
        if name not in tensors:
            raise ModelFileError(
                metadata.path,
                f"tensor {name!r} is missing; rope scaling longrope needs {LONG_FACTORS!r} and "
                f"{SHORT_FACTORS!r}",
            )
    if ROPE_FACTORS in tensors:
        raise ModelFileError(
            metadata.path, f"tensors {ROPE_FACTORS!r} and {LONG_FACTORS!r} both scale"
        )
    return RopeScaling(
        kind=RopeScalingKind.LONGROPE,
        original_context=_original(metadata, arch, context),
        attention_factor=metadata.number(f"{arch}.rope.scaling.attn_factor", 1.0),
    )


def _yarn(metadata: Metadata, arch: str, factor: float, context: int) -> RopeScaling:
    prefix = f"{arch}.rope.scaling."
    for name, neutral in VARIANTS.items():
        if metadata.values.get(prefix + name, neutral) != neutral:
            raise metadata.fail(
                prefix + name, f"is {metadata.values[prefix + name]}: not supported"
            )
    given = metadata.number(prefix + "attn_factor", 1.0)
    fast = metadata.number(prefix + "yarn_beta_fast", 32.0)
    slow = metadata.number(prefix + "yarn_beta_slow", 1.0)
    if fast < slow:
        raise metadata.fail(prefix + "yarn_beta_fast", f"is {fast}, below the slow one of {slow}")
    return RopeScaling(
        kind=RopeScalingKind.YARN,
        factor=factor,
        original_context=_original(metadata, arch, context),
        attention_factor=given * yarn_attention(factor),
        beta_fast=fast,
        beta_slow=slow,
    )


def _original(metadata: Metadata, arch: str, context: int) -> int:
    """Tokens of the contexts in training."""
    return metadata.integer(f"{arch}.rope.scaling.original_context_length", context, minimum=1)
