"""Weights of a model, whatever format they lie in."""

from collections.abc import Iterable

from headway.compute.formats.gguf import GgufTensors
from headway.compute.formats.safetensors import SafetensorsFolder
from headway.compute.formats.weight_file import WantedTensor, WeightFile
from headway.core.base.model_card import FileFormat, ModelCard


def open_weights(card: ModelCard, specs: Iterable[WantedTensor]) -> WeightFile:
    """Open and check the card's file or folder; raises ModelFileError, before memory is taken."""
    if card.file_format is FileFormat.GGUF:
        return GgufTensors(card.path, specs, card.rope_dim)
    return SafetensorsFolder(card.path, specs)
