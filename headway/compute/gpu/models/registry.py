"""From a card to the builder of its family's model."""

import torch

from headway.compute.arch.registry import tensor_specs
from headway.compute.gpu.models.build import DecoderBuilder
from headway.core.base.model_card import ModelCard


def builder_for(card: ModelCard, dtype: torch.dtype, device: torch.device) -> DecoderBuilder:
    """Open and check the card's file.

    Raises ModelFileError when the family is unknown or the file does not fit the card.
    """
    return DecoderBuilder(card, tensor_specs(card), dtype, device)
