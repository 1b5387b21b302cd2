"""A folder as Hugging Face's libraries write it: config.json, safetensors, tokenizer.json."""

import re
from collections.abc import Iterable, Mapping

from headway.core.base.errors import ModelFileError
from headway.core.base.model_card import ModelCard
from headway.core.base.safetensors import FolderTensor, folder_tensors
from headway.service.loaders.folder_card import check_supported, folder_card
from headway.service.loaders.folder_files import FolderFiles
from headway.service.loaders.folder_tokenizer import folder_template, folder_vocabulary
from headway.service.loaders.gguf_header import TensorEntry
from headway.service.loaders.gguf_metadata import Metadata
from headway.service.loaders.model_parts import ModelFile
from headway.service.loaders.sampling_defaults import IN_A_FOLDER, sampling_defaults

CONFIG, GENERATION = "config.json", "generation_config.json"
EMBEDDING = "embed_tokens.weight"
PREFIXES = ("model.", "language_model.model.", "model.language_model.")
LAYER = re.compile(r"layers\.(\d{1,9})\.")
# A switch of config.json, and the name of a tensor that is there if it is on.
BIASES = (("attention_bias", "self_attn.q_proj.bias"), ("mlp_bias", "mlp.up_proj.bias"))


def open_folder(path: str) -> ModelFile:
    """Read what a folder says about its model; raises ModelFileError for every fault.

    No tensor data is read, but the files are known to hold all of it.
    """
    path = path.rstrip("/") or "/"
    files = FolderFiles(path)
    config = files.values(CONFIG)
    if config is None:
        raise ModelFileError(path, _no_config(files))
    check_supported(config)
    tensors = folder_tensors(files)
    prefix = _prefix(path, tensors)
    card = folder_card(config, path, prefix)
    _check_tensors(card, config, tensors)
    generation = files.values(GENERATION) or Metadata(path, {})
    vocabulary = folder_vocabulary(files, config, generation, card.vocab_size)
    return ModelFile(
        path=path,
        card=card,
        vocabulary=vocabulary,
        chat_template=folder_template(files),
        tensors=_entries(tensors.values(), prefix),
        file_bytes=_file_bytes(files, tensors),
        sampling=sampling_defaults(generation, IN_A_FOLDER),
    )


def _no_config(files: FolderFiles) -> str:
    try:
        names = files.names()
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    found = next((name for name in names if name.endswith(".gguf")), None)
    if found is not None:
        return f"is a directory without {CONFIG}; give the path of one file, such as {found}"
    return (
        f"is a directory without {CONFIG}; give the path of one .gguf file, or of a folder with "
        f"{CONFIG}, safetensors files and tokenizer.json"
    )


def _prefix(path: str, tensors: Mapping[str, FolderTensor]) -> str:
    for prefix in PREFIXES:
        if prefix + EMBEDDING in tensors:
            return prefix
    raise ModelFileError(path, f"tensor {PREFIXES[0]}{EMBEDDING} is missing; fetch it again")


def _check_tensors(card: ModelCard, config: Metadata, tensors: Mapping[str, FolderTensor]) -> None:
    """Facts that stand in config.json and in the tensors must be the same in both."""
    embedding = tensors[card.tensor_prefix + EMBEDDING]
    expected = (card.vocab_size, card.hidden_size)
    if embedding.shape != expected:
        raise ModelFileError(
            f"{card.path}/{embedding.file}",
            f"tensor {embedding.name} has shape {embedding.shape}, but config.json says {expected}",
        )
    starts = card.tensor_prefix
    found = {
        int(match.group(1))
        for name in tensors
        if name.startswith(starts) and (match := LAYER.match(name, len(starts)))
    }
    if found != set(range(card.num_layers)):
        last = max(found, default=None)
        raise config.fail(
            "num_hidden_layers",
            f"is {card.num_layers}, but the tensors belong to {len(found)} layers, the last of "
            f"them {last}; the model is contradictory",
        )
    for key, stem in BIASES:
        if key in config.values:
            is_there = f"{starts}layers.0.{stem}" in tensors
            if config.flag(key, False) != is_there:
                said = "holds no" if config.flag(key, False) else "holds a"
                raise config.fail(
                    key, f"is {str(config.flag(key, False)).lower()}, but the model {said} "
                    f"tensor {starts}layers.0.{stem}"
                )  # fmt: skip


def _entries(tensors: Iterable[FolderTensor], prefix: str) -> tuple[TensorEntry, ...]:
    """Those of the language model, as a GGUF file would list them."""
    return tuple(
        TensorEntry(
            tensor.name, tensor.shape[::-1], tensor.type_name, tensor.offset, tensor.num_bytes
        )
        for tensor in tensors
        if tensor.name.startswith((prefix, "lm_head."))
    )


def _file_bytes(files: FolderFiles, tensors: Mapping[str, FolderTensor]) -> int:
    return sum(files.size(name) or 0 for name in {tensor.file for tensor in tensors.values()})
