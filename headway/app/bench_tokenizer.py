"""The served model's tokenizer for a benchmark: a tokenizer.json, or a GGUF file's own."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer as Library

from headway.app.bench_dataset import Codec
from headway.core.base.errors import InvalidSetting
from headway.core.text.tokenizer import Tokenizer
from headway.service.loaders.model_files import open_model
from headway.service.loaders.tokenizer_files import build_tokenizer


class JsonCodec:
    """A Hugging Face tokenizer.json."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, without any special token."""
        return list(self._library.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids."""
        return str(self._library.decode(list(ids), skip_special_tokens=False))

    def plain_ids(self) -> Sequence[int]:
        """All ids but added tokens, which include the control tokens."""
        added = self._library.get_added_tokens_decoder()
        return [i for i in range(self._library.get_vocab_size()) if i not in added]


class ModelFileCodec:
    """The tokenizer that a model file describes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, without any special token."""
        return self._tokenizer.encode(text, add_special=False, parse_special=False)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids."""
        return b"".join(map(self._tokenizer.token_bytes, ids)).decode(errors="replace")

    def plain_ids(self) -> Sequence[int]:
        """All ids but control tokens."""
        tokenizer = self._tokenizer
        return [i for i in range(tokenizer.vocab_size) if not tokenizer.is_special(i)]


def load_codec(path: Path) -> Codec:
    """Read a tokenizer: a .gguf file, a tokenizer.json, or a folder that has one.

    Raises InvalidSetting or ModelFileError that names the file.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise InvalidSetting("--tokenizer", f"there is no file {file}")
    if file.suffix == ".gguf":
        return ModelFileCodec(build_tokenizer(open_model(str(file))))
    try:
        return JsonCodec(Library.from_file(str(file)))
    except Exception as error:  # the library raises nothing narrower
        raise InvalidSetting("--tokenizer", f"{file} is not a tokenizer.json: {error}") from error
