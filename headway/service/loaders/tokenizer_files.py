"""A tokenizer from a model file's own vocabulary, by way of the `tokenizers` library.

The library does what is hot: cutting text into words and merging them. Control tokens are
handled here: they are not in the library's vocabulary at all, so no text can become one
unless the caller asks for it with `parse_special`.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tokenizers import Tokenizer as Engine
from tokenizers.models import BPE

from headway.core.base.errors import InvalidRequest, ModelFileError
from headway.service.loaders.model_parts import (
    BYTE_TOKEN,
    SPACE,
    ModelFile,
    TokenType,
    Vocabulary,
)
from headway.service.loaders.pipeline import pipelines, shrinkage
from headway.service.loaders.pre_tokenizers import PRE_TOKENIZERS, WHOLE_WORDS_FIRST

MAX_LEVELS = 40  # of groups within groups in one pattern; Python's reader of patterns recurses
SPECIAL_TYPES = frozenset({TokenType.UNKNOWN, TokenType.CONTROL})

# Control tokens that end a turn or a text in the families served here. A file names one or
# two of them by key; a model may still produce another of its family.
END_NAMES = frozenset(
    [
        "<|im_end|>",
        "<|endoftext|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<|end|>",
        "<end_of_turn>",
    ]
)


def build_tokenizer(model_file: ModelFile) -> "FileTokenizer":
    """The tokenizer that the file describes.

    Raises ModelFileError for a kind, pre-tokenizer or merge that is not known. Takes a
    quarter of a second for 50 thousand tokens.
    """
    vocabulary = model_file.vocabulary
    table = build_table(model_file)
    if vocabulary.pipeline is not None:
        engine, inner = pipelines(model_file.path, vocabulary.pipeline)
        return FileTokenizer(vocabulary, engine, table, inner)
    make = _byte_level if vocabulary.kind == "gpt2" else _sentence_piece
    return FileTokenizer(vocabulary, make(model_file.path, vocabulary), table)


def build_table(model_file: ModelFile) -> "TokenTable":
    """What an engine needs of it: a fraction of the time and memory of `build_tokenizer`.

    Raises ModelFileError for a kind that is not known.
    """
    vocabulary = model_file.vocabulary
    if vocabulary.kind not in ("gpt2", "llama"):
        raise ModelFileError(
            model_file.path,
            f"metadata 'tokenizer.ggml.model' is {vocabulary.kind[:60]!r}; supported: gpt2 "
            "(byte-level BPE), llama (SentencePiece BPE); Unigram only in a folder's "
            "tokenizer.json",
        )
    is_gpt2 = vocabulary.kind == "gpt2"
    table = _byte_level_table(vocabulary) if is_gpt2 else _sentence_piece_table(vocabulary)
    return TokenTable(vocabulary, table)


def adds_bos(vocabulary: Vocabulary) -> bool:
    """Whether plain text begins with BOS: the file's word, or its family's habit."""
    if vocabulary.bos_id is None:
        return False
    if vocabulary.add_bos is not None:
        return vocabulary.add_bos
    return vocabulary.kind == "llama" or vocabulary.pre in WHOLE_WORDS_FIRST


def control_texts(vocabulary: Vocabulary) -> dict[str, int]:
    """Every control token by its text; of two with one text the first."""
    found: dict[str, int] = {}
    for token_id, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        if kind in SPECIAL_TYPES and text:
            found.setdefault(text, token_id)
    return found


def any_of(texts: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern with one group that finds any of the texts, the longest first.

    What texts share in front is written once: hundreds of alternatives that begin alike would
    each be tried at every place of a text that is made of their beginning.
    """
    found = sorted(set(texts))
    return re.compile(f"({_alternatives(found, MAX_LEVELS)})") if found else None


def _alternatives(texts: Sequence[str], levels: int) -> str:
    if len(texts) == 1:
        return re.escape(texts[0])
    # They are sorted: what the first and the last share, all share.
    pairs = zip(texts[0], texts[-1], strict=False)
    alike = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
    shared = "".join(first for first, _ in alike)
    rests = [text[len(shared) :] for text in texts]
    if levels == 0:
        branches = [re.escape(rest) for rest in sorted(rests, key=len, reverse=True)]
        return f"{re.escape(shared)}(?:{'|'.join(branches)})"
    groups = itertools.groupby((rest for rest in rests if rest), key=lambda rest: rest[0])
    branches = [_alternatives(list(group), levels - 1) for _, group in groups]
    return f"{re.escape(shared)}(?:{'|'.join(branches)})" + ("?" if "" in rests else "")


class TokenTable:
    """A `core.text.tokenizer.Decodes`; immutable."""

    def __init__(self, vocabulary: Vocabulary, table: tuple[bytes, ...]) -> None:
        self.table = table
        self._specials = frozenset(
            token_id for token_id, kind in enumerate(vocabulary.types) if kind in SPECIAL_TYPES
        )
        self._eos_ids = _end_ids(vocabulary)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The file's end of text first, then its other ends of text, turn and message."""
        return self._eos_ids

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that the token stands for; a control token stands for its name."""
        return self.table[token_id]

    def is_special(self, token_id: int) -> bool:
        """True for control tokens and the unknown token."""
        return token_id in self._specials


class FileTokenizer:
    """A `core.text.tokenizer.Tokenizer`; immutable, so safe to use from several threads.

    Text that has no token (a byte missing from a byte-level vocabulary, a character without
    byte fallback) is left out, as `transformers` does; it never becomes a control token.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        engine: Engine,
        table: TokenTable,
        inner: Engine | None = None,
    ) -> None:
        """`inner` is for text that does not begin a prompt, where that makes a difference."""
        self._engine = engine
        self._inner = inner or engine
        self._table = table
        self._strip = vocabulary.stripped
        self._bos_id = vocabulary.bos_id if adds_bos(vocabulary) else None
        self._is_sentence_piece = vocabulary.kind == "llama" and vocabulary.pipeline is None
        self._adds_space = self._is_sentence_piece and vocabulary.add_space_prefix
        defined = {
            text: token_id
            for token_id, text in enumerate(vocabulary.tokens)
            if vocabulary.types[token_id] == TokenType.USER_DEFINED and text
        }
        self._fixed: Mapping[str, int] = control_texts(vocabulary) | defined
        self._plain_cut = any_of(defined)
        self._full_cut = any_of(self._fixed)
        self._reach = _reach(vocabulary, table.table)

    @property
    def vocab_size(self) -> int:
        """Number of ids, those without a token included."""
        return len(self._table.table)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The file's end of text first, then its other ends of text, turn and message."""
        return self._table.eos_ids

    @property
    def bos_id(self) -> int | None:
        """The id that `add_special` puts first; None when it puts none."""
        return self._bos_id

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Ids of `text`; see the protocol.

        Tokens that the file calls user-defined are found in every text, control tokens
        only with `parse_special`. Raises InvalidRequest for a lone surrogate.
        """
        check_text(text, None)
        cut = self._full_cut if parse_special else self._plain_cut
        ids: list[int] = []
        # With one group, split gives text, token, text, token, ..., text.
        pieces = cut.split(text) if cut else [text]
        fixed = [self._fixed[piece] for piece in pieces[1::2]]
        for index, piece in enumerate(pieces[::2]):
            before = fixed[index - 1] if index else None
            after = fixed[index] if index < len(fixed) else None
            piece = self._strip(piece, before, after)
            if piece:
                ids += self._encode_words(piece, is_first=add_special and index == 0)
            if after is not None:
                ids.append(after)
        if add_special and self._bos_id is not None and ids[:1] != [self._bos_id]:
            ids.insert(0, self._bos_id)
        return ids

    def min_tokens(self, text: str) -> int:
        """By the longest token of all; see the protocol."""
        if self._reach is None:
            return 0
        counted = text.encode(errors="replace").translate(None, delete=self._reach.silent)
        return -(-len(counted) // self._reach.longest)

    def _encode_words(self, text: str, *, is_first: bool) -> list[int]:
        if self._is_sentence_piece:
            text = (" " + text if self._adds_space else text).replace(" ", SPACE)
        # A batch of one: `encode` holds the interpreter's lock to its end, seconds for a prompt
        # of megabytes in which every stream would stand still; this lets it go.
        engine = self._engine if is_first else self._inner
        (encoding,) = engine.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that the token stands for; a control token stands for its name."""
        return self._table.token_bytes(token_id)

    def is_special(self, token_id: int) -> bool:
        """True for control tokens and the unknown token."""
        return self._table.is_special(token_id)


def check_text(text: str, param: str | None) -> None:
    """Raise InvalidRequest, naming `param`, for text that UTF-8 cannot carry."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"the text has a lone surrogate at character {error.start}, which is not valid "
            "Unicode; remove it",
            param=param,
        ) from None


class _Reach(NamedTuple):
    """How much text one token can stand for."""

    longest: int  # bytes of text
    silent: bytes  # these give no token, so they do not count


def _reach(vocabulary: Vocabulary, table: Sequence[bytes]) -> _Reach | None:
    """None where nothing can be said: characters without a token, and no byte fallback."""
    shrinks = 1 if vocabulary.pipeline is None else shrinkage(vocabulary.pipeline)
    if shrinks is None:
        return None
    if vocabulary.kind == "llama":
        if sum(kind == TokenType.BYTE for kind in vocabulary.types) < 256:
            return None
        # As written, where a space is three bytes: that character may also stand in a text.
        longest = max(1, *(len(text.encode()) for text in vocabulary.tokens))
        return _Reach(shrinks * longest, b"")
    words = _words(vocabulary, frozenset(TokenType) - SPECIAL_TYPES)
    silent = bytes(byte for char, byte in _byte_alphabet().items() if char not in words)
    return _Reach(shrinks * max(1, *map(len, table)), silent)


def _end_ids(vocabulary: Vocabulary) -> tuple[int, ...]:
    named = (vocabulary.eos_id, *vocabulary.end_ids, vocabulary.eot_id, vocabulary.eom_id)
    ids = [token_id for token_id in named if token_id is not None]
    controls = control_texts(vocabulary)
    ids += sorted(controls[text] for text in END_NAMES & controls.keys())
    return tuple(dict.fromkeys(ids))


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte, by character.

    Printable Latin-1 bytes stand for themselves; the others follow from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet |= {chr(0x100 + index): byte for index, byte in enumerate(others)}
    return alphabet


def _words(vocabulary: Vocabulary, kinds: frozenset[int]) -> dict[str, int]:
    """Tokens of the given types by text; of two with one text the first."""
    found: dict[str, int] = {}
    for token_id, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        if kind in kinds:
            found.setdefault(text, token_id)
    return found


def _byte_level(path: str, vocabulary: Vocabulary) -> Engine:
    pre = vocabulary.pre or "default"
    if pre not in PRE_TOKENIZERS:
        raise ModelFileError(
            path,
            f"metadata 'tokenizer.ggml.pre' is {pre[:60]!r}; supported: "
            + ", ".join(sorted(PRE_TOKENIZERS)),
        )
    words = _words(vocabulary, frozenset(TokenType) - SPECIAL_TYPES)
    engine_merges = _merges(path, vocabulary, words)
    engine = Engine(BPE(words, engine_merges, ignore_merges=pre in WHOLE_WORDS_FIRST))
    engine.pre_tokenizer = PRE_TOKENIZERS[pre]()
    return engine


def _merges(path: str, vocabulary: Vocabulary, words: dict[str, int]) -> list[tuple[str, str]]:
    """The file's merges, less those that would make a control token or need one."""
    known = set(vocabulary.tokens)
    merges: list[tuple[str, str]] = []
    for index, merge in enumerate(vocabulary.merges):
        left, _, right = merge.partition(" ")
        if not {left, right, left + right} <= known or not right:
            raise ModelFileError(
                path,
                f"metadata 'tokenizer.ggml.merges' element {index} is {merge[:60]!r}, which does "
                "not join two tokens into a third; the file is damaged",
            )
        if left in words and right in words and left + right in words:
            merges.append((left, right))
    return merges


def _byte_level_table(vocabulary: Vocabulary) -> tuple[bytes, ...]:
    alphabet = _byte_alphabet()
    literal = SPECIAL_TYPES | {TokenType.USER_DEFINED}

    def bytes_of(text: str, kind: int) -> bytes:
        if kind in literal:
            return text.encode()
        try:
            return bytes([alphabet[char] for char in text])
        except KeyError:  # not written in the byte alphabet
            return text.encode()

    return tuple(map(bytes_of, vocabulary.tokens, vocabulary.types))


def _sentence_piece(path: str, vocabulary: Vocabulary) -> Engine:
    scores = vocabulary.scores
    if scores is None:
        raise ModelFileError(path, "metadata 'tokenizer.ggml.scores' is missing; convert it again")
    words = _words(vocabulary, frozenset({TokenType.NORMAL, TokenType.BYTE}))
    normal = _words(vocabulary, frozenset({TokenType.NORMAL}))
    # The file has no merges, only a score for each token: the pair whose union has the best
    # score is joined first. As ranks this is every way to halve every token, best score
    # first; of equal ones the longer left half, as `transformers` converts such files.
    ranked = [
        (-scores[token_id], -cut, text)
        for text, token_id in normal.items()
        for cut in range(1, len(text))
        if text[:cut] in normal and text[cut:] in normal
    ]
    ranked.sort(key=lambda item: item[:2])
    merges = [(text[:-cut], text[-cut:]) for _, cut, text in ranked]
    has_bytes = any(kind == TokenType.BYTE for kind in vocabulary.types)
    return Engine(BPE(words, merges, byte_fallback=has_bytes, fuse_unk=True))


def _sentence_piece_table(vocabulary: Vocabulary) -> tuple[bytes, ...]:
    # In GGUF files the spaces of user-defined tokens stand as spaces already.
    is_gguf = vocabulary.pipeline is None
    literal = SPECIAL_TYPES | {TokenType.USER_DEFINED} if is_gguf else SPECIAL_TYPES

    def bytes_of(text: str, kind: int) -> bytes:
        match = BYTE_TOKEN.fullmatch(text) if kind == TokenType.BYTE else None
        if match:
            return bytes([int(match.group(1), 16)])
        return (text if kind in literal else text.replace(SPACE, " ")).encode()

    return tuple(map(bytes_of, vocabulary.tokens, vocabulary.types))
