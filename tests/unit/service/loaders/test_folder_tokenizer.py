"""Tokenizers and templates of folders: the ids of the library that wrote them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from headway.core.base.errors import ModelFileError
from headway.core.messages.path import Sampling
from headway.core.text.streamer import TokenStreamer
from headway.service.loaders.chat_template import ChatTemplate
from headway.service.loaders.model_files import ModelFile, open_model
from headway.service.loaders.tokenizer_files import FileTokenizer, build_tokenizer
from tests.unit.service.loaders.folder_samples import tokenizer, write_folder, write_json

TEXTS = [
    "",
    " ",
    "hello",
    " hello  world ",
    "The quick brown fox\n\njumps over 1234567 dogs.",
    "Ünïcödé: naïve café — “quotes”",
    "cafe\u0301 \u1112\u1161\u11ab",  # letters that compose
    "日本語のテキスト、中文文本, 한국어 텍스트",
    "مرحبا بالعالم שלום עולם",
    "😀🏳️‍🌈 emoji\t\ttabs\r\n",
    "▁ and ▁▁ stand for spaces",
    "<s>literal</s> <unk> <0x41>",
    "x = [i for i in range(10)]  # code",
]
CORPUS = [
    *TEXTS,
    "the cat and the dog",
    "hello hello world",
    "日本語 日本語",
    "range | of things!",
] * 3
SPECIALS = ["<unk>", "<s>", "</s>", "<|user|>"]


def trained(tokenizer: Tokenizer, *, alphabet: list[str] | None = None) -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=[*SPECIALS, *(alphabet or [])],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet is None else [],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_level() -> Tokenizer:
    found = Tokenizer(models.BPE(ignore_merges=True))
    split = Regex(r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+")
    found.normalizer = normalizers.NFC()
    found.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(split, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    found.decoder = decoders.ByteLevel()
    found = trained(found)
    found.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return found


def sentence_piece(
    normalizer: normalizers.Normalizer | None, pre_tokenizer: pre_tokenizers.PreTokenizer | None
) -> Tokenizer:
    found = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    found.normalizer = normalizer
    found.pre_tokenizer = pre_tokenizer
    found.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    trained(found, alphabet=[f"<0x{byte:02X}>" for byte in range(256)])
    form = json.loads(found.to_str())
    # Bytes are words and no added tokens, as in converted models.
    form["added_tokens"] = form["added_tokens"][: len(SPECIALS)]
    found = Tokenizer.from_str(json.dumps(form))
    found.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return found


def legacy() -> Tokenizer:
    prefix = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return sentence_piece(prefix, None)


def metaspace_first() -> Tokenizer:
    cut = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    return sentence_piece(None, cut)


def gemma() -> Tokenizer:
    found = sentence_piece(
        normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous")
    )
    found.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("▁▁▁", normalized=False)])
    return found


def unigram() -> Tokenizer:
    found = Tokenizer(models.Unigram())
    found.normalizer = normalizers.NFC()
    found.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    found.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=360, special_tokens=SPECIALS, unk_token="<unk>", show_progress=False
    )
    found.train_from_iterator(CORPUS, trainer)
    found.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return found


def unigram_with_bytes() -> Tokenizer:
    form = json.loads(unigram().to_str())
    form["normalizer"] = None
    form["pre_tokenizer"]["prepend_scheme"] = "first"
    form["model"]["vocab"] += [[f"<0x{byte:02X}>", -1000.0] for byte in range(256)]
    form["model"]["byte_fallback"] = True
    found = Tokenizer.from_str(json.dumps(form))
    found.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return found


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte level": byte_level,
    "legacy sentence piece": legacy,
    "metaspace, first": metaspace_first,
    "gemma": gemma,
    "unigram": unigram,
    "unigram with bytes": unigram_with_bytes,
}


def folder_with(folder: Path, library: Tokenizer) -> ModelFile:
    """A model with this tokenizer, and with eight rows more than it needs."""
    rows = library.get_vocab_size() + 8
    path = write_folder(folder, rows=rows)
    library.save(str(path / "tokenizer.json"))
    return open_model(str(path))


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_the_library(kind: str, tmp_path: Path) -> None:
    library = KINDS[kind]()
    ours = build_tokenizer(folder_with(tmp_path, library))
    assert ours.bos_id == 1
    assert ours.eos_ids[0] == 2
    for text in [*TEXTS, "<s>hello", "one<|user|> two</s>three", "<|user|><|user|> x"]:
        want = library.encode(text).ids
        got = ours.encode(text, add_special=True, parse_special=True)
        assert got == (want[1:] if text.startswith("<s>") else want), text
        if "<" not in text:
            assert ours.encode(text, add_special=True, parse_special=False) == want, text
        assert ours.min_tokens(text) <= len(want)


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_of_tokens_give_the_text_back(kind: str, tmp_path: Path) -> None:
    library = KINDS[kind]()
    ours = build_tokenizer(folder_with(tmp_path, library))
    for text in TEXTS:
        ids = ours.encode(text, add_special=False, parse_special=False)
        found = b"".join(map(ours.token_bytes, ids)).decode().strip()
        is_composed = "\u0301" in text and kind in ("byte level", "unigram")
        if not is_composed and "\u2581" not in text:
            assert found == text.strip()
    assert ours.token_bytes(ours.vocab_size - 1) == b""


def test_a_control_token_in_plain_text_stays_text(tmp_path: Path) -> None:
    for name, make in KINDS.items():
        ours = build_tokenizer(folder_with(tmp_path / name.replace(",", ""), make()))
        ids = ours.encode("a</s>b<|user|>", add_special=False, parse_special=False)
        assert not {ours.is_special(token_id) for token_id in ids} & {True}
        assert b"</s>" in b"".join(map(ours.token_bytes, ids))


NEVER_SEEN = "so 𝔘𝔫𝔨nown ꙮ!"


def streamed(ours: FileTokenizer, ids: list[int]) -> str:
    """What a client sees, token by token."""
    streamer = TokenStreamer(ours, Sampling(max_tokens=1, seed=0))
    return "".join(streamer.push(token_id).text for token_id in ids) + streamer.flush().text


def test_a_unigram_writes_what_it_has_no_word_for_byte_by_byte(tmp_path: Path) -> None:
    library = unigram_with_bytes()
    ours = build_tokenizer(folder_with(tmp_path, library))
    want = library.encode(NEVER_SEEN, add_special_tokens=False).ids
    assert ours.encode(NEVER_SEEN, add_special=True, parse_special=False)[1:] == want
    assert not any(map(ours.is_special, want))
    assert streamed(ours, want) == " " + NEVER_SEEN
    assert streamed(ours, want).strip() == library.decode(want).strip()


def test_a_unigram_without_bytes_has_one_token_for_what_it_does_not_know(tmp_path: Path) -> None:
    library = unigram()
    ours = build_tokenizer(folder_with(tmp_path, library))
    want = library.encode(NEVER_SEEN, add_special_tokens=False).ids
    assert ours.encode(NEVER_SEEN, add_special=False, parse_special=False) == want
    assert 0 in want
    assert streamed(ours, want) == " so nown !"
    assert ours.min_tokens(NEVER_SEEN * 1000) == 0


def test_a_text_that_is_called_as_an_unknown_token_is_no_unknown_token(tmp_path: Path) -> None:
    ours = build_tokenizer(folder_with(tmp_path, unigram()))
    ids = ours.encode("<unk> <s>", add_special=False, parse_special=False)
    assert len(ids) > 4
    assert not {0, 1} & set(ids)


def test_words_that_rules_throw_away_have_no_least_number_of_tokens(tmp_path: Path) -> None:
    library = unigram_with_bytes()
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    ours = build_tokenizer(folder_with(tmp_path, library))
    assert ours.min_tokens(" " * 10_000) == 0


def test_white_space_that_a_token_takes_is_no_token(tmp_path: Path) -> None:
    library = byte_level()
    library.add_special_tokens([AddedToken("<|end|>", lstrip=True, rstrip=True, special=True)])
    model = folder_with(tmp_path, library)
    ours = build_tokenizer(model)
    text = "one \n<|end|>\n two"
    want = library.encode(text, add_special_tokens=False).ids
    assert ours.encode(text, add_special=False, parse_special=True) == want
    source = "{% for m in messages %}{{ m['content'] }} \n<|end|>\n{% endfor %}"
    template = ChatTemplate(model._replace(chat_template=source))
    ids = template.encode([{"role": "user", "content": "one"}], ours, add_generation_prompt=False)
    assert ids == [1, *library.encode("one<|end|>", add_special_tokens=False).ids]


def test_a_switch_in_the_configuration_turns_the_first_token_off(tmp_path: Path) -> None:
    folder_with(tmp_path, byte_level())
    names = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": False}
    write_json(tmp_path / "tokenizer_config.json", names)
    model = open_model(str(tmp_path))
    assert build_tokenizer(model).bos_id is None
    assert (model.vocabulary.bos_id, model.vocabulary.eos_id) == (1, 2)


def template_of(folder: Path) -> str | None:
    return open_model(str(folder)).chat_template


def test_a_template_comes_from_its_own_file_first(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    assert template_of(folder) is None
    write_json(folder / "chat_template.json", {"chat_template": "c"})
    assert template_of(folder) == "c"
    several = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "b"}]
    write_json(folder / "tokenizer_config.json", {"chat_template": several})
    assert template_of(folder) == "b"
    write_json(folder / "tokenizer_config.json", {"chat_template": "a"})
    assert template_of(folder) == "a"
    (folder / "chat_template.jinja").write_text("file")
    assert template_of(folder) == "file"


def test_rules_that_the_library_does_not_know_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    write_json(folder / "tokenizer.json", {**tokenizer(), "normalizer": {"type": "Strange"}})
    with pytest.raises(ModelFileError, match=r"tokenizer\.json is not what"):
        build_tokenizer(open_model(str(folder)))
