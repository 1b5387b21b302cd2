"""Small GGUF files for tests, written with the gguf library."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from headway.service.loaders.model_files import ModelFile, open_model

HIDDEN, HEADS, KV_HEADS, LAYERS, INNER = 16, 4, 2, 2, 32
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

Change = Callable[[GGUFWriter], None]


def byte_alphabet() -> list[str]:
    """GPT-2's 256 stand-in characters in byte order."""
    kept = {*range(33, 127), *range(161, 173), *range(174, 256)}
    extra = iter(range(256, 512))
    return [chr(byte if byte in kept else next(extra)) for byte in range(256)]


def add_shape(writer: GGUFWriter) -> None:
    """The metadata of a tiny Llama."""
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)


def add_byte_level(writer: GGUFWriter, specials: Sequence[str] = CHATML_TOKENS) -> int:
    """A vocabulary of the specials, the 256 bytes and three merges; gives its size."""
    merges = ["h e", "l l", "he ll"]
    words = [*byte_alphabet(), *(merge.replace(" ", "") for merge in merges)]
    tokens = [*specials, *words]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL] * len(specials) + [NORMAL] * len(words))
    writer.add_token_merges(merges)
    return len(tokens)


def add_tensors(writer: GGUFWriter, vocab_size: int, layers: int = LAYERS) -> None:
    """An embedding and one norm a layer: enough for a header."""
    writer.add_tensor("token_embd.weight", np.zeros((vocab_size, HIDDEN), np.float32))
    for layer in range(layers):
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", np.zeros(HIDDEN, np.float32))


def write(path: Path, *changes: Change, architecture: str = "llama") -> str:
    """Write a file with what the changes add; gives its path."""
    writer = GGUFWriter(path, architecture)
    for change in changes:
        change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def tiny(path: Path, *changes: Change, specials: Sequence[str] = CHATML_TOKENS) -> str:
    """A whole tiny model with byte-level BPE; `changes` add to it or replace values."""

    def vocabulary_and_tensors(writer: GGUFWriter) -> None:
        add_tensors(writer, add_byte_level(writer, specials))

    return write(path, add_shape, vocabulary_and_tensors, *changes)


def replace(key: str, value: object) -> Change:
    """Give another value, of the same GGUF type, to a key that is there."""

    def change(writer: GGUFWriter) -> None:
        writer.kv_data[0][key].value = value

    return change


def remove(key: str) -> Change:
    """Leave a key out."""

    def change(writer: GGUFWriter) -> None:
        del writer.kv_data[0][key]

    return change


def tiny_model(
    folder: Path, *changes: Change, specials: Sequence[str] = CHATML_TOKENS
) -> ModelFile:
    """The same, opened."""
    return open_model(tiny(folder / "tiny.gguf", *changes, specials=specials))
