"""Which of a model's tensors is its embedding, and which gives the logits."""

from collections.abc import Iterable
from typing import NamedTuple

from headway.service.loaders.gguf_header import TensorEntry

EMBEDDINGS = ("token_embd.weight", "embed_tokens.weight")
HEADS = ("output.weight", "lm_head.weight")


class Divided(NamedTuple):
    """All tensors that are read; a tied model's head is its embedding."""

    others: list[TensorEntry]
    embedding: TensorEntry | None
    head: TensorEntry | None


def divided(tensors: Iterable[TensorEntry], *, is_tied: bool | None = None) -> Divided:
    """The tensors by what they are for.

    is_tied  as a card says it: a head of its own is not read then; None: by whether there is one
    """
    others: list[TensorEntry] = []
    embedding = head = None
    for tensor in tensors:
        if tensor.name.endswith(EMBEDDINGS):
            embedding = tensor
        elif tensor.name in HEADS:
            head = tensor
        else:
            others.append(tensor)
    if head is None or is_tied:
        head = embedding
    return Divided(others, embedding, head)
