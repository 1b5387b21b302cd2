"""From a family and a card to the tensors that the model's files must hold."""

from collections.abc import Iterator, Mapping
from itertools import groupby

from headway.compute.arch.family import Family, Part, Stem, TensorSpec
from headway.core.base.model_card import FileFormat, ModelCard, RopeScalingKind

HEAD_NORMS = (Part.QUERY_NORM, Part.KEY_NORM)


def specs_of(family: Family, card: ModelCard) -> Iterator[TensorSpec]:
    """Every tensor, with its shape; layers in order."""
    yield from _outside_layers(family, card)
    for layer in range(card.num_layers):
        yield from _norms(family, card, layer)
        yield from _matrices(family, card, layer)


def _outside_layers(family: Family, card: ModelCard) -> Iterator[TensorSpec]:
    is_gguf = card.file_format is FileFormat.GGUF
    rows = (card.vocab_size, card.hidden_size)
    embedding = "token_embd.weight" if is_gguf else f"{card.tensor_prefix}embed_tokens.weight"
    yield TensorSpec(name=embedding, part=Part.EMBEDDING, shape=rows)
    yield TensorSpec(
        name="output_norm.weight" if is_gguf else f"{card.tensor_prefix}norm.weight",
        part=Part.OUTPUT_NORM,
        shape=(card.hidden_size,),
        added=_added(family, card),
    )
    if not card.is_head_tied:
        yield TensorSpec(
            name="output.weight" if is_gguf else "lm_head.weight",
            part=Part.HEAD,
            shape=rows,
            is_optional=card.is_head_tied is None,
        )
    if is_gguf:
        yield from _rope_factors(card)


def _rope_factors(card: ModelCard) -> Iterator[TensorSpec]:
    """Divisors of the rotation's frequencies, which GGUF files keep in tensors."""
    scaling, shape = card.rope_scaling, (card.rope_dim // 2,)
    if scaling is None or scaling.kind is not RopeScalingKind.LONGROPE:
        yield TensorSpec(
            name="rope_freqs.weight", part=Part.ROPE_FACTORS, shape=shape, is_optional=True
        )
        return
    for is_short, length in ((True, "short"), (False, "long")):
        is_meant = is_short == scaling.is_short
        yield TensorSpec(
            name=f"rope_factors_{length}.weight",
            part=Part.ROPE_FACTORS if is_meant else Part.OTHER_ROPE_FACTORS,
            shape=shape,
        )


def _norms(family: Family, card: ModelCard, layer: int) -> Iterator[TensorSpec]:
    for part, stem in family.norms.items():
        yield TensorSpec(
            name=_name(card, layer, stem, "weight"),
            part=part,
            shape=(card.head_dim if part in HEAD_NORMS else card.hidden_size,),
            layer=layer,
            added=_added(family, card),
        )


def _matrices(family: Family, card: ModelCard, layer: int) -> Iterator[TensorSpec]:
    sizes = _sizes(card)
    is_paired = family.pairs_in_gguf and card.file_format is FileFormat.GGUF
    heads = {Part.QUERY: card.num_heads, Part.KEY: card.num_kv_heads} if is_paired else {}
    for stem, grouped in groupby(sizes, key=lambda part: family.matrices[part]):
        parts = tuple(grouped)
        total = sum(sizes[part][0] for part in parts)
        begin = 0
        for part in parts:
            outputs, inputs = sizes[part]
            for suffix, is_bias in (("weight", False), ("bias", True)):
                yield TensorSpec(
                    name=_name(card, layer, stem, suffix),
                    part=part,
                    shape=(outputs,) if is_bias else (outputs, inputs),
                    layer=layer,
                    is_bias=is_bias,
                    is_optional=is_bias and part not in family.required_biases,
                    rotated_heads=heads.get(part, 0),
                    first_row=begin,
                    file_rows=total if len(parts) > 1 else 0,
                )
            begin += outputs


def _sizes(card: ModelCard) -> Mapping[Part, tuple[int, int]]:
    """Outputs and inputs of a layer's matrices, in order of `Part`."""
    hidden, inner = card.hidden_size, card.intermediate_size
    q_size, kv_size = card.num_heads * card.head_dim, card.num_kv_heads * card.head_dim
    return {
        Part.QUERY: (q_size, hidden),
        Part.KEY: (kv_size, hidden),
        Part.VALUE: (kv_size, hidden),
        Part.ATTENTION_OUTPUT: (hidden, q_size),
        Part.GATE: (inner, hidden),
        Part.UP: (inner, hidden),
        Part.DOWN: (hidden, inner),
    }


def _name(card: ModelCard, layer: int, stem: Stem, suffix: str) -> str:
    if card.file_format is FileFormat.GGUF:
        return f"blk.{layer}.{stem.gguf}.{suffix}"
    return f"{card.tensor_prefix}layers.{layer}.{stem.folder}.{suffix}"


def _added(family: Family, card: ModelCard) -> float:
    return 0.0 if card.file_format is FileFormat.GGUF else family.added_to_norms
