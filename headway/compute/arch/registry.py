"""Which families there are."""

from collections.abc import Callable, Mapping

from headway.compute.arch import llama
from headway.compute.arch.family import TensorSpec
from headway.core.base.errors import ModelFileError
from headway.core.base.model_card import ModelCard

TENSOR_SPECS: Mapping[str, Callable[[ModelCard], tuple[TensorSpec, ...]]] = {
    llama.ARCHITECTURE: llama.tensor_specs,
}


def tensor_specs(card: ModelCard) -> tuple[TensorSpec, ...]:
    """The tensors of the card's family; raises ModelFileError for a family not known."""
    family = TENSOR_SPECS.get(card.architecture)
    if family is None:
        raise ModelFileError(
            card.path,
            f"architecture {card.architecture!r} is not supported; "
            f"supported: {', '.join(sorted(TENSOR_SPECS))}",
        )
    return family(card)
