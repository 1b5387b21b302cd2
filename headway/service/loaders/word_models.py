"""Models of words in a tokenizer.json, and the same without some of their words."""

from collections.abc import Collection, Iterator, Mapping
from typing import ClassVar, Protocol

import msgspec

Merge = str | tuple[str, str]


class WordModel(Protocol):
    """What is needed of a model, whatever its kind."""

    @property
    def byte_fallback(self) -> bool:
        """Whether what has no word is written byte by byte."""
        ...

    @property
    def unknown_id(self) -> int | None:
        """What stands for text without a word."""
        ...

    def words(self) -> Iterator[tuple[str, int]]:
        """Every word and its id."""
        ...

    def without(self, hidden: Collection[int]) -> dict[str, object]:
        """The library's form of the model, in which no text becomes one of these ids."""
        ...


class BpeModel(msgspec.Struct, frozen=True):
    """Pairs that are joined, best first."""

    vocab: dict[str, int]
    merges: list[Merge]
    byte_fallback: bool = False
    unk_token: str | None = None
    fuse_unk: bool = False
    ignore_merges: bool = False
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None

    @property
    def unknown_id(self) -> int | None:
        """By its text."""
        return self.vocab.get(self.unk_token or "")

    def words(self) -> Iterator[tuple[str, int]]:
        """Every word and its id."""
        yield from self.vocab.items()

    def without(self, hidden: Collection[int]) -> dict[str, object]:
        """Those words and all merges with them are left out."""
        kept = {text: token_id for text, token_id in self.vocab.items() if token_id not in hidden}
        merges = [
            (left, right) for left, right in map(_pair, self.merges)
            if left in kept and right in kept and left + right in kept
        ]  # fmt: skip
        unknown = self.unk_token if self.unk_token in kept else None
        changed = {"type": "BPE", "vocab": kept, "merges": merges, "unk_token": unknown}
        return msgspec.structs.asdict(self) | changed


class UnigramModel(msgspec.Struct, frozen=True):
    """Words with scores, of which the best sequence is taken; an id is a word's place."""

    HIDDEN: ClassVar[str] = ""  # no text has it, and places stay as they are

    vocab: list[tuple[str, float]]
    unk_id: int | None = None
    byte_fallback: bool = False

    @property
    def unknown_id(self) -> int | None:
        """None where no text is without a word."""
        return self.unk_id

    def words(self) -> Iterator[tuple[str, int]]:
        """Every word and its id."""
        for token_id, (text, _) in enumerate(self.vocab):
            yield text, token_id

    def without(self, hidden: Collection[int]) -> dict[str, object]:
        """Those words have no text, and keep their score: the worst one counts in the library."""
        vocab = [
            (self.HIDDEN if token_id in hidden else text, score)
            for token_id, (text, score) in enumerate(self.vocab)
        ]
        return msgspec.structs.asdict(self) | {"type": "Unigram", "vocab": vocab}


class _Kind(msgspec.Struct):
    """Of a model, before its words are looked at."""

    type: str | None = None


KINDS: Mapping[str | None, type[BpeModel | UnigramModel]] = {
    "BPE": BpeModel,
    None: BpeModel,  # as old files leave it out
    "Unigram": UnigramModel,
}


def read_word_model(raw: msgspec.Raw) -> WordModel:
    """The model; raises ValueError for one that is damaged or not supported."""
    try:
        name = msgspec.json.decode(raw, type=_Kind).type
        kind = KINDS.get(name)
        if kind is None:
            supported = ", ".join(each for each in KINDS if each is not None)
            raise ValueError(f"has a model of type {str(name)[:40]!r}; supported: {supported}")
        model = msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(f"has a damaged model: {error}") from None
    unknown = model.unknown_id
    if isinstance(model, UnigramModel) and not 0 <= (unknown or 0) < len(model.vocab):
        raise ValueError(f"has the unk_id {unknown}, but {len(model.vocab)} words")
    return model


def _pair(merge: Merge) -> tuple[str, str]:
    if isinstance(merge, tuple):
        return merge
    left, _, right = merge.partition(" ")
    return left, right
