"""From a folder's config.json to how the heads of its model turn with the position.

Values are those that `transformers` computes from the same file.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from headway.core.base.model_card import RopeScaling, RopeScalingKind
from headway.service.loaders.gguf_header import Value
from headway.service.loaders.gguf_metadata import Metadata

SLIDING = "sliding_attention"
KINDS: Mapping[str, RopeScalingKind] = {
    **{kind.value: kind for kind in RopeScalingKind},
    "su": RopeScalingKind.LONGROPE,  # as the first files called it
}
# In files of this family both names mean the same.
PHI_KINDS: Mapping[str, RopeScalingKind] = {**KINDS, "yarn": RopeScalingKind.LONGROPE}


class Rope(NamedTuple):
    """The fields of a card that are about rotation."""

    dim: int
    theta: float
    local_theta: float  # 0: there are no layers that turn by themselves
    scaling: RopeScaling | None
    context: int  # tokens that it is good for


def read_rope(
    values: Metadata, given: Mapping[str, Value], head_dim: int, architecture: str
) -> Rope:
    """Read it; raises ModelFileError for a kind that is not supported, or parts that are missing.

    values  of the file, and of its family's class where the file leaves one out
    given   only those of the file
    """
    is_gemma = architecture == "gemma3"
    prefix = _prefix(values, is_gemma=is_gemma)
    theta = prefix + "rope_theta"
    dim = _dim(values, head_dim)
    context = values.integer("max_position_embeddings", minimum=1)
    scaling = _scaling(values, prefix, context, PHI_KINDS if architecture == "phi3" else KINDS)
    if scaling is not None and scaling.kind is RopeScalingKind.YARN:
        # Some files keep the length of the training as the model's own, and scale from there.
        context = max(context, int(scaling.original_context * scaling.factor))
    for name in ("short", "long"):
        count = len(getattr(scaling, f"{name}_factors", ()))
        if count not in (0, dim // 2):
            raise values.fail(
                f"{prefix}{name}_factor",
                f"has {count} numbers, but {dim} values of each head turn in {dim // 2} pairs",
            )
    return Rope(
        dim=dim,
        theta=values.number(theta if theta in given else "rope_theta"),
        local_theta=_local_theta(values) if is_gemma else 0.0,
        scaling=scaling,
        context=context,
    )


def _prefix(values: Metadata, *, is_gemma: bool) -> str:
    """Where the parameters of scaling stand."""
    of_layers = "rope_parameters.full_attention."
    if is_gemma and any(key.startswith(of_layers) for key in values.values):
        return of_layers
    if any(key.startswith("rope_parameters.") for key in values.values):
        return "rope_parameters."
    return "rope_scaling."


def _local_theta(values: Metadata) -> float:
    nested = f"rope_parameters.{SLIDING}.rope_theta"
    kind = values.text(f"rope_parameters.{SLIDING}.rope_type", "default")
    if kind != "default":
        raise values.fail(f"rope_parameters.{SLIDING}.rope_type", f"is {kind!r}: not supported")
    return values.number(nested if nested in values.values else "rope_local_base_freq")


def _dim(values: Metadata, head_dim: int) -> int:
    key = "partial_rotary_factor"
    nested = f"rope_parameters.{key}"
    factor = values.number(nested if nested in values.values else key, 1.0)
    rope_dim = int(head_dim * factor)
    if not 2 <= rope_dim <= head_dim or rope_dim % 2:
        raise values.fail(
            key, f"is {factor}: {rope_dim} of the {head_dim} values of a head, which is not "
            "an even number from 2 on"
        )  # fmt: skip
    return rope_dim


def _scaling(
    values: Metadata, prefix: str, context: int, kinds: Mapping[str, RopeScalingKind]
) -> RopeScaling | None:
    key = prefix + ("rope_type" if prefix + "rope_type" in values.values else "type")
    name = values.text(key, "default")
    if name == "default":
        return None
    kind = kinds.get(name or "")
    match kind:
        case RopeScalingKind.LINEAR:
            return RopeScaling(kind=kind, factor=values.number(prefix + "factor"))
        case RopeScalingKind.LLAMA3:
            return _llama3(values, prefix)
        case RopeScalingKind.YARN:
            return _yarn(values, prefix, context)
        case RopeScalingKind.LONGROPE:
            return _longrope(values, prefix, context)
        case _:
            raise values.fail(
                key, f"is {str(name)[:60]!r}; supported: {', '.join(('default', *kinds))}"
            )


def _llama3(values: Metadata, prefix: str) -> RopeScaling:
    low, high = (values.number(f"{prefix}{name}_freq_factor") for name in ("low", "high"))
    if low >= high:
        raise values.fail(f"{prefix}low_freq_factor", f"is {low}, not below the high one of {high}")
    return RopeScaling(
        kind=RopeScalingKind.LLAMA3,
        factor=values.number(prefix + "factor"),
        original_context=values.integer(prefix + "original_max_position_embeddings", minimum=1),
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(values: Metadata, prefix: str, context: int) -> RopeScaling:
    original = _original(values, prefix, context)
    factor = values.number(prefix + "factor", context / original)
    fast, slow = values.number(prefix + "beta_fast", 32.0), values.number(prefix + "beta_slow", 1.0)
    if fast < slow:
        raise values.fail(f"{prefix}beta_fast", f"is {fast}, below the slow one of {slow}")
    return RopeScaling(
        kind=RopeScalingKind.YARN,
        factor=factor,
        original_context=original,
        attention_factor=_yarn_attention(values, prefix, factor),
        beta_fast=fast,
        beta_slow=slow,
        is_truncated=values.flag(prefix + "truncate", True),
    )


def _yarn_attention(values: Metadata, prefix: str, factor: float) -> float:
    key = prefix + "attention_factor"
    if key in values.values:
        return values.number(key)
    weights = [values.values.get(prefix + name) for name in ("mscale", "mscale_all_dim")]
    if not all(weights):  # one of them missing, or 0
        return yarn_attention(factor)
    above, below = (values.number(prefix + name) for name in ("mscale", "mscale_all_dim"))
    return yarn_attention(factor, above) / yarn_attention(factor, below)


def yarn_attention(factor: float, weight: float = 1.0) -> float:
    """What YaRN multiplies cosines and sines by; source: Peng et al. 2023, section 3.4."""
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0


def _longrope(values: Metadata, prefix: str, context: int) -> RopeScaling:
    original = _original(values, prefix, context)
    factor = values.number(prefix + "factor", context / original)
    usual = 1.0
    if factor > 1.0 and original > 1:
        usual = math.sqrt(1.0 + math.log(factor) / math.log(original))
    return RopeScaling(
        kind=RopeScalingKind.LONGROPE,
        factor=factor,
        original_context=original,
        attention_factor=values.number(prefix + "attention_factor", usual),
        short_factors=_factors(values, prefix + "short_factor"),
        long_factors=_factors(values, prefix + "long_factor"),
    )


def _original(values: Metadata, prefix: str, context: int) -> int:
    """Tokens of the contexts in training; beside the other parameters only where not outside."""
    key = "original_max_position_embeddings"
    return values.integer(key if key in values.values else prefix + key, context, minimum=1)


def _factors(values: Metadata, key: str) -> tuple[float, ...]:
    found = values.values.get(key)
    if not isinstance(found, tuple) or not found:
        raise values.fail(key, "is missing, or no list of numbers")
    numbers = []
    for each in found:
        if isinstance(each, bool) or not isinstance(each, int | float) or not 0 < each < math.inf:
            raise values.fail(key, f"holds {str(each)[:60]!r}, which is no positive number")
        numbers.append(float(each))
    return tuple(numbers)
