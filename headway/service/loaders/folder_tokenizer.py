"""A folder's tokenizer.json and what stands beside it, as a vocabulary and a template."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from headway.service.loaders.folder_files import FolderFiles
from headway.service.loaders.gguf_metadata import Metadata
from headway.service.loaders.model_parts import BYTE_TOKEN, SPACE, TokenType, Vocabulary
from headway.service.loaders.word_models import UnigramModel, WordModel, read_word_model

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
SPECIALS, TEMPLATE = "special_tokens_map.json", "chat_template.jinja"
HOW_TO_WRITE_ONE = (
    "where transformers and sentencepiece are installed, AutoTokenizer.from_pretrained(FOLDER)"
    ".save_pretrained(FOLDER) writes it"
)

Json = Mapping[str, object]


class _Added(msgspec.Struct):
    """A token that is found in a text before anything else."""

    id: int
    content: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False


class _Document(msgspec.Struct):
    model: msgspec.Raw
    added_tokens: list[_Added] = []
    normalizer: dict[str, object] | None = None
    pre_tokenizer: dict[str, object] | None = None
    post_processor: dict[str, object] | None = None
    decoder: dict[str, object] | None = None


class _Words(NamedTuple):
    """Every id of the embedding, and what it stands for."""

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    ids: Mapping[str, int]


def folder_vocabulary(
    files: FolderFiles, config: Metadata, generation: Metadata, rows: int
) -> Vocabulary:
    """The vocabulary of an embedding with so many rows.

    Raises ModelFileError for a tokenizer that is missing, damaged, not of a supported kind
    or that has ids which the embedding has not.
    """
    document = _document(files)
    model = _model(files, document)
    words = _words(files, document, model, rows)
    named = _named(files)
    rules = (*_each(document.normalizer), *_each(document.pre_tokenizer), *_each(document.decoder))
    has_bytes = any(rule.get("type") == "ByteLevel" for rule in rules)
    if isinstance(model, UnigramModel) and not has_bytes and not any(map(_writes_spaces, rules)):
        raise files.fail(
            TOKENIZER, "is a Unigram that does not write spaces as '\u2581': not supported"
        )
    ids = {
        name: _id_of(files, words, named.get(f"{name}_token"), config, f"{name}_token_id")
        for name in ("bos", "eos", "pad")
    }
    bos_id = _leading(document, words)
    add_bos = named.get("add_bos_token")
    return Vocabulary(
        kind="gpt2" if has_bytes else "llama",
        pre=None,
        tokens=words.tokens,
        types=words.types,
        scores=None,
        merges=(),
        bos_id=ids["bos"] if bos_id is None else bos_id,
        eos_id=ids["eos"],
        eot_id=None,
        eom_id=None,
        pad_id=ids["pad"],
        unknown_id=model.unknown_id,
        add_bos=add_bos if isinstance(add_bos, bool) else bos_id is not None,
        add_space_prefix=False,  # the pipeline's own concern
        end_ids=_end_ids(generation, rows) + _end_ids(config, rows),
        pipeline=_pipeline(document, model, words),
        strips_left=frozenset(each.id for each in document.added_tokens if each.lstrip),
        strips_right=frozenset(each.id for each in document.added_tokens if each.rstrip),
    )


def folder_template(files: FolderFiles) -> str | None:
    """The chat template's source, or None where there is none."""
    source = files.text(TEMPLATE)
    if source is not None:
        return source
    found = (files.json(TOKENIZER_CONFIG) or {}).get("chat_template")
    if isinstance(found, list):  # several by name
        found = next(
            (
                each.get("template")
                for each in found
                if isinstance(each, dict) and each.get("name") == "default"
            ),
            None,
        )
    if found is None:
        found = (files.json("chat_template.json") or {}).get("chat_template")
    if found is not None and not isinstance(found, str):
        raise files.fail(TOKENIZER_CONFIG, "has a 'chat_template' that is not a text")
    return found


def _writes_spaces(rule: Json) -> bool:
    return SPACE in (rule.get("replacement"), rule.get("content"))


def _document(files: FolderFiles) -> _Document:
    text = files.text(TOKENIZER)
    if text is None:
        beside = " beside tokenizer.model" if files.size("tokenizer.model") is not None else ""
        raise files.fail(TOKENIZER, f"is missing{beside}; {HOW_TO_WRITE_ONE}")
    try:
        return msgspec.json.decode(text, type=_Document)
    except (msgspec.DecodeError, RecursionError) as error:
        raise files.fail(TOKENIZER, f"is damaged: {error}") from None


def _model(files: FolderFiles, document: _Document) -> WordModel:
    try:
        return read_word_model(document.model)
    except ValueError as error:
        raise files.fail(TOKENIZER, str(error)) from None


def _words(files: FolderFiles, document: _Document, model: WordModel, rows: int) -> _Words:
    tokens, types = [""] * rows, [int(TokenType.UNUSED)] * rows
    ids: dict[str, int] = {}
    for text, token_id in model.words():
        _check_id(files, text, token_id, rows)
        ids.setdefault(text, token_id)
        is_byte = model.byte_fallback and BYTE_TOKEN.fullmatch(text) is not None
        tokens[token_id] = text
        types[token_id] = TokenType.BYTE if is_byte else TokenType.NORMAL
    if isinstance(model, UnigramModel) and model.unknown_id is not None:
        types[model.unknown_id] = TokenType.UNKNOWN
    for added in document.added_tokens:
        _check_id(files, added.content, added.id, rows)
        if ids.setdefault(added.content, added.id) != added.id or tokens[added.id] not in (
            "",
            added.content,
        ):
            raise files.fail(
                TOKENIZER, f"gives id {added.id} or token {added.content[:60]!r} twice"
            )
        tokens[added.id] = added.content
        types[added.id] = TokenType.CONTROL if added.special else TokenType.USER_DEFINED
    return _Words(tuple(tokens), tuple(types), ids)


def _check_id(files: FolderFiles, text: str, token_id: int, rows: int) -> None:
    if not 0 <= token_id < rows:
        raise files.fail(
            TOKENIZER,
            f"gives token {text[:60]!r} the id {token_id}, but the model's embedding has "
            f"{rows} rows; the tokenizer is of another model",
        )


def _pipeline(document: _Document, model: WordModel, words: _Words) -> str:
    """The library's own form, less everything that is done here.

    Control tokens are no words there: no text becomes one by itself.
    """
    hidden = frozenset(
        token_id for token_id, kind in enumerate(words.types)
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN)
    )  # fmt: skip
    form: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": document.normalizer,
        "pre_tokenizer": document.pre_tokenizer,
        "post_processor": None,
        "decoder": None,
        "model": model.without(hidden),
    }
    return msgspec.json.encode(form).decode()


def _named(files: FolderFiles) -> dict[str, object]:
    """Names of special tokens and switches; those of tokenizer_config.json come first."""
    found: dict[str, object] = {}
    for name in (SPECIALS, TOKENIZER_CONFIG):
        values = files.json(name) or {}
        found |= {key: value for key, value in values.items() if value is not None}
    return found


def _id_of(
    files: FolderFiles, words: _Words, token: object, config: Metadata, key: str
) -> int | None:
    """By the token's text, or by the number that config.json gives."""
    text = token.get("content") if isinstance(token, dict) else token
    if isinstance(text, str):
        token_id = words.ids.get(text)
        if token_id is None:
            raise files.fail(
                TOKENIZER_CONFIG,
                f"names the token {text[:60]!r}, which {TOKENIZER} does not have",
            )
        return token_id
    given = config.values.get(key)
    return config.token_id(key, len(words.tokens)) if type(given) is int else None


def _end_ids(values: Metadata, rows: int) -> tuple[int, ...]:
    key = "eos_token_id"
    if isinstance(values.values.get(key), int):
        token_id = values.token_id(key, rows)
        return () if token_id is None else (token_id,)
    found = values.integers(key) or ()
    outside = next((token_id for token_id in found if not 0 <= token_id < rows), None)
    if outside is not None:
        raise values.fail(key, f"holds {outside}, outside the vocabulary of {rows} tokens")
    return found


def _leading(document: _Document, words: _Words) -> int | None:
    """The token that the post-processor puts before a text."""
    for each in _each(document.post_processor):
        single = each.get("single")
        first = single[0] if isinstance(single, list) and single else None
        special = first.get("SpecialToken") if isinstance(first, dict) else None
        name = special.get("id") if isinstance(special, dict) else None
        if isinstance(name, str) and name in words.ids:
            return words.ids[name]
    return None


def _each(part: Json | None) -> Iterator[Json]:
    """A part of the pipeline, or all that a sequence consists of."""
    if part is None:
        return
    inner: Sequence[object] = ()
    for key in ("normalizers", "pretokenizers", "processors", "decoders"):
        found = part.get(key)
        inner = found if isinstance(found, list) else inner
    if not inner:
        yield part
    for each in inner:
        if isinstance(each, dict):
            yield from _each(each)
