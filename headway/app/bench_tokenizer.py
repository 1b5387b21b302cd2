"""The served model's tokenizer for a benchmark, out of a tokenizer.json."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from headway.app.bench_dataset import Codec
from headway.core.base.errors import InvalidSetting


class JsonCodec:
    """A Hugging Face tokenizer.json."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, without any special token."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def plain_ids(self) -> Sequence[int]:
        """All ids but added tokens, which include the control tokens."""
        added = self._tokenizer.get_added_tokens_decoder()
        return [i for i in range(self._tokenizer.get_vocab_size()) if i not in added]


def load_codec(path: Path) -> Codec:
    """Read a tokenizer; `path` is a tokenizer.json or a folder that has one."""
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise InvalidSetting("--tokenizer", f"there is no file {file}")
    try:
        return JsonCodec(Tokenizer.from_file(str(file)))
    except Exception as error:  # the library raises nothing narrower
        raise InvalidSetting("--tokenizer", f"{file} is not a tokenizer.json: {error}") from error
