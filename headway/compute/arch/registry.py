"""From a card to its family's tensors."""

from headway.compute.arch.families import FAMILIES
from headway.compute.arch.family import TensorSpec
from headway.compute.arch.tensors import specs_of
from headway.core.base.errors import ModelFileError
from headway.core.base.model_card import ModelCard


def tensor_specs(card: ModelCard) -> tuple[TensorSpec, ...]:
    """Every tensor that the card's files hold or may hold, layers in order.

    Raises ModelFileError for a family that is not known.
    """
    family = FAMILIES.get(card.architecture)
    if family is None:
        raise ModelFileError(
            card.path,
            f"architecture {card.architecture!r} is not supported; "
            f"supported: {', '.join(sorted(FAMILIES))}",
        )
    return tuple(specs_of(family, card))
