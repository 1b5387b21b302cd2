"""Tokenizers built from model files, against plain reference implementations."""

import itertools
import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
import regex
from gguf import GGUFWriter
from hypothesis import given
from hypothesis import strategies as st

from headway.core.base.errors import InvalidRequest, ModelFileError
from headway.core.text.tokenizer import Tokenizer
from headway.service.loaders.model_files import ModelFile, Vocabulary, open_model
from headway.service.loaders.pre_tokenizers import LLAMA3, PRE_TOKENIZERS, TEKKEN
from headway.service.loaders.tokenizer_files import (
    FileTokenizer,
    any_of,
    build_table,
    build_tokenizer,
)
from tests.unit.service.loaders.samples import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    Change,
    add_shape,
    add_tensors,
    byte_alphabet,
    remove,
    replace,
    tiny_model,
    write,
)

TEXTS = [
    "Hello, world",
    "The capital of France is",
    "  two  spaces, a tab\tand\r\n\r\nlines \n ",
    "It's we'll they'VE 12345 3.14 007",
    "Žluťoučký kůň úpěl ďábelské ódy",
    "你好，世界！今天天气很好。",
    "こんにちは世界、元気ですか",
    "Привет, как дела?",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "👨‍👩‍👧‍👦 😀 ✊🏽 e\u0301",
    "def f(x):\n    return {x: [1, 2]}  # ok\n",
    "\ufeffHi",
    "ab\0c",
    "\u2581 stays \u00a0 and \u3000",
    "x" * 300,
]
GPT2_WORDS = regex.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)


@pytest.fixture(scope="module")
def tokenizer(smollm2: ModelFile) -> FileTokenizer:
    return build_tokenizer(smollm2)


def plain(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special=True, parse_special=False)


def text_of(tokenizer: Tokenizer, ids: list[int]) -> str:
    return b"".join(map(tokenizer.token_bytes, ids)).decode()


def merged(pieces: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """Byte-pair merging by the book: again and again the pair of the lowest rank."""
    while True:
        pairs = [(ranks.get((a, b)), i) for i, (a, b) in enumerate(itertools.pairwise(pieces))]
        found = [(rank, i) for rank, i in pairs if rank is not None]
        if not found:
            return pieces
        at = min(found)[1]
        pieces = [*pieces[:at], pieces[at] + pieces[at + 1], *pieces[at + 2 :]]


def reference_ids(vocabulary: Vocabulary, text: str) -> list[int]:
    """Byte-level BPE with single digits, written for reading."""
    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    ranks = {}
    for rank, merge in enumerate(vocabulary.merges):
        left, right = merge.split(" ")
        ranks[left, right] = rank
    alphabet = byte_alphabet()
    found: list[int] = []
    for run in regex.findall(r"\p{N}|\P{N}+", text):
        for word in GPT2_WORDS.findall(run):
            found += [ids[p] for p in merged([alphabet[b] for b in word.encode()], ranks)]
    return found


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_ids_are_those_of_a_plain_implementation(
    smollm2: ModelFile, tokenizer: FileTokenizer, text: str
) -> None:
    ids = plain(tokenizer, text)
    assert ids == reference_ids(smollm2.vocabulary, text)
    assert text_of(tokenizer, ids) == text


def test_chat_template_01_a_prompt_has_no_bos_where_the_file_wants_none(
    tokenizer: FileTokenizer,
) -> None:
    assert plain(tokenizer, "Hello, world") == [19556, 28, 905]
    assert plain(tokenizer, "") == []
    assert tokenizer.bos_id is None
    assert tokenizer.vocab_size == 49152


def test_utf8_detok_04_odd_characters_never_become_control_tokens(
    tokenizer: FileTokenizer,
) -> None:
    assert plain(tokenizer, "ab\0c") == [369, 190, 83]
    for byte in (0x04, 0x06, 0x13, 0x14, 0x16, 0x1D):
        ids = plain(tokenizer, f"a{chr(byte)}b")
        assert text_of(tokenizer, ids) == "ab"
        assert not any(map(tokenizer.is_special, ids))
        assert plain(tokenizer, chr(byte)) == []
    with pytest.raises(InvalidRequest, match="lone surrogate at character 1"):
        plain(tokenizer, "a\ud800b")


def test_control_tokens_in_text_are_text_unless_they_are_asked_for(
    tokenizer: FileTokenizer,
) -> None:
    text = "<|im_start|>user\nHi<|im_end|><|endoftext|>"
    ids = plain(tokenizer, text)
    assert not any(map(tokenizer.is_special, ids))
    assert text_of(tokenizer, ids) == text
    parsed = tokenizer.encode(text, add_special=True, parse_special=True)
    assert [i for i in parsed if tokenizer.is_special(i)] == [1, 2, 0]
    assert text_of(tokenizer, parsed) == text


def test_no_text_gives_a_control_token(smollm2: ModelFile, tokenizer: FileTokenizer) -> None:
    random = Random(4)
    pieces = [*smollm2.vocabulary.tokens[:17], "<", "|", "im", "_", "start", ">", " ", "é", "\x04"]
    for _ in range(300):
        text = "".join(random.choices(pieces, k=12))
        assert not any(map(tokenizer.is_special, plain(tokenizer, text)))


def test_ends_are_the_turn_s_and_the_text_s(tokenizer: FileTokenizer) -> None:
    assert tokenizer.eos_ids == (2, 0)
    assert [tokenizer.is_special(i) for i in (0, 16, 17)] == [True, True, False]
    assert tokenizer.token_bytes(2) == b"<|im_end|>"
    assert tokenizer.token_bytes(10813) == b"\xf0\x9f"
    assert tokenizer.token_bytes(190) == b"\0"


def test_concurrency_02_threads_get_the_ids_of_a_single_one(tokenizer: FileTokenizer) -> None:
    random = Random(5)
    texts = [" ".join(random.choices(TEXTS, k=3)) for _ in range(400)]
    alone = [plain(tokenizer, text) for text in texts]
    with ThreadPoolExecutor(16) as pool:
        for _ in range(3):
            assert list(pool.map(lambda text: plain(tokenizer, text), texts)) == alone


def test_other_threads_run_while_a_long_text_is_encoded(tokenizer: FileTokenizer) -> None:
    begun, num_turns = threading.Event(), 0
    text = "hello world " * 60_000

    def encode() -> int:
        begun.set()
        return len(plain(tokenizer, text))

    with ThreadPoolExecutor(1) as pool:
        encoding = pool.submit(encode)
        begun.wait()
        while not encoding.done():
            threading.Event().wait(0.001)
            num_turns += 1
        assert encoding.result() == 2 * 60_000 + 1
    assert num_turns > 10  # one or two when the interpreter is held


@given(
    texts=st.sets(st.text("ab|<.", min_size=1, max_size=6), min_size=1, max_size=12),
    within=st.text("ab|<.", max_size=60),
)
def test_any_of_finds_the_longest_of_its_texts(texts: set[str], within: str) -> None:
    plainly = "|".join(map(re.escape, sorted(texts, key=lambda text: (-len(text), text))))
    pattern = any_of(texts)
    assert pattern is not None
    assert pattern.split(within) == re.split(f"({plainly})", within)


def test_a_family_of_texts_far_too_deep_to_nest_is_found_too() -> None:
    pattern = any_of("a" * length for length in range(1, 500))
    assert pattern is not None
    assert [len(found) for found in pattern.findall("a" * 700)] == [499, 201]


def bos(token_id: int, add: bool | None) -> Change:
    def change(writer: GGUFWriter) -> None:
        writer.add_bos_token_id(token_id)
        if add is not None:
            writer.add_add_bos_token(add)

    return change


def test_chat_template_01_a_file_that_wants_bos_gets_exactly_one(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(tiny_model(tmp_path, bos(1, True)))
    hi = plain(tokenizer, "Hi")
    assert hi[0] == 1
    assert hi.count(1) == 1
    written = tokenizer.encode("<|im_start|>Hi", add_special=True, parse_special=True)
    assert written == hi
    as_text = plain(tokenizer, "<|im_start|>Hi")
    assert as_text.count(1) == 1
    assert text_of(tokenizer, as_text[1:]) == "<|im_start|>Hi"


def test_llama_3_files_begin_with_bos_unless_they_say_otherwise(tmp_path: Path) -> None:
    pre = replace("tokenizer.ggml.pre", "llama-bpe")
    assert build_tokenizer(tiny_model(tmp_path, pre, bos(1, None))).bos_id == 1
    assert build_tokenizer(tiny_model(tmp_path, pre, bos(1, False))).bos_id is None
    assert build_tokenizer(tiny_model(tmp_path, bos(1, None))).bos_id is None


def test_every_pre_tokenizer_loses_nothing(tmp_path: Path) -> None:
    for pre in PRE_TOKENIZERS:
        tokenizer = build_tokenizer(tiny_model(tmp_path, replace("tokenizer.ggml.pre", pre)))
        for text in TEXTS:
            assert text_of(tokenizer, plain(tokenizer, text)) == text


def words(pre: str, text: str) -> list[str]:
    return [text[start:end] for _, (start, end) in PRE_TOKENIZERS[pre]().pre_tokenize_str(text)]


def test_families_cut_text_as_their_patterns_say() -> None:
    assert words("gpt-2", "we're 1234  ok") == ["we", "'re", " 1234", " ", " ok"]
    assert words("smollm", "a 12") == ["a", " ", "1", "2"]
    assert words("llama-bpe", "We'RE 12345\n\nok") == ["We", "'RE", " ", "123", "45", "\n\n", "ok"]
    assert words("qwen2", "x12") == ["x", "1", "2"]
    assert words("tekken", "camelCase") == ["camel", "Case"]
    for pre, pattern in (("llama-bpe", LLAMA3), ("tekken", TEKKEN)):
        for text in TEXTS:
            expected = [m.group() for m in regex.finditer(pattern, text)]
            assert words(pre, text) == expected


def test_an_unknown_pre_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, replace("tokenizer.ggml.pre", "klingon"))
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.pre' is 'klingon'; supported:"):
        build_tokenizer(model)
    missing = tiny_model(tmp_path, remove("tokenizer.ggml.pre"))
    assert plain(build_tokenizer(missing), "hell")[0] == missing.vocabulary.tokens.index("hell")


def test_an_unknown_kind_of_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, replace("tokenizer.ggml.model", "bert"))
    with pytest.raises(ModelFileError, match="'bert'; supported: gpt2"):
        build_tokenizer(model)


@pytest.mark.parametrize("merge", ["q", "a b", "h é x", ""])
def test_a_merge_that_joins_nothing_is_refused(tmp_path: Path, merge: str) -> None:
    model = tiny_model(tmp_path, replace("tokenizer.ggml.merges", [merge]))
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.merges' element 0"):
        build_tokenizer(model)


def test_no_merge_makes_a_control_token(tmp_path: Path) -> None:
    model = tiny_model(
        tmp_path, replace("tokenizer.ggml.merges", ["h e", "he ll"]), specials=["hell", "ll"]
    )
    ids = plain(build_tokenizer(model), "hell")
    assert [model.vocabulary.tokens[i] for i in ids] == ["he", "l", "l"]


def test_end_tokens_come_from_the_file_and_from_the_family(tmp_path: Path) -> None:
    def named(writer: GGUFWriter) -> None:
        writer.add_eos_token_id(3)
        writer.add_eot_token_id(1)

    specials = ["<s>", "<|eot_id|>", "<|im_end|>", "</s>"]
    tokenizer = build_tokenizer(tiny_model(tmp_path, named, specials=specials))
    assert tokenizer.eos_ids == (3, 1, 2)


# SentencePiece. The scores make "ab" win over "bc".
PIECES: list[tuple[str, float, int]] = [
    ("<unk>", 0.0, UNKNOWN),
    ("<s>", 0.0, CONTROL),
    ("</s>", 0.0, CONTROL),
    *((f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)),
    *((char, -20.0 - i, NORMAL) for i, char in enumerate("▁abcdehlo<s/>")),
    ("ab", -1.0, NORMAL),
    ("bc", -2.0, NORMAL),
    ("abc", -3.0, NORMAL),
    ("▁h", -4.0, NORMAL),
    ("el", -5.0, NORMAL),
    ("▁hel", -6.0, NORMAL),
    ("lo", -7.0, NORMAL),
    ("▁hello", -8.0, NORMAL),
    ("▁▁", -9.0, NORMAL),
    ("[TOOL]", 0.0, USER_DEFINED),
]


def add_sentence_piece(writer: GGUFWriter) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _, _ in PIECES])
    writer.add_token_scores([score for _, score, _ in PIECES])
    writer.add_token_types([kind for _, _, kind in PIECES])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    add_tensors(writer, len(PIECES))


def sentence_piece(tmp_path: Path, *changes: Change) -> FileTokenizer:
    path = write(tmp_path / "spm.gguf", add_shape, add_sentence_piece, *changes)
    return build_tokenizer(open_model(path))


def spm_reference(text: str) -> Iterator[str]:
    """SentencePiece BPE: again and again the neighbours whose union has the best score."""
    scores = {piece: score for piece, score, kind in PIECES if kind == NORMAL}
    symbols = list(text.replace(" ", "▁"))
    while True:
        unions = [(a + b, i) for i, (a, b) in enumerate(itertools.pairwise(symbols))]
        known = [(-scores[union], i) for union, i in unions if union in scores]
        if not known:
            break
        at = min(known)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    for symbol in symbols:
        if symbol in scores:
            yield symbol
        else:
            yield from (f"<0x{byte:02X}>" for byte in symbol.encode())


def test_sentence_piece_merges_by_score_and_falls_back_to_bytes(tmp_path: Path) -> None:
    tokenizer = sentence_piece(tmp_path)
    names = [text for text, _, _ in PIECES]
    random = Random(6)
    texts = ["hello", "abc", "abcabcbc", "  hello  hello", "é世\n", "<0x41>", "\x04", "<s>"]
    texts += ["".join(random.choices("abchelo é", k=20)) for _ in range(200)]
    for text in texts:
        ids = plain(tokenizer, text)
        assert ids[0] == 1
        assert [names[i] for i in ids[1:]] == list(spm_reference(" " + text))
        assert not any(map(tokenizer.is_special, ids[1:]))
        assert text_of(tokenizer, ids[1:]) == " " + text


def assert_bounded(tokenizer: FileTokenizer, texts: Sequence[str]) -> None:
    for text in texts:
        for parse_special in (False, True):
            ids = tokenizer.encode(text, add_special=False, parse_special=parse_special)
            assert tokenizer.min_tokens(text) <= len(ids), ascii(text)


def test_a_text_has_at_least_the_tokens_that_its_bytes_tell(tokenizer: FileTokenizer) -> None:
    random = Random(7)
    every_byte = bytes(range(256)).decode("latin-1")
    texts = [*TEXTS, "", " " * 5000, "\x04" * 5000, every_byte * 20, "<|im_start|>" * 100]
    texts += ["".join(random.choices("ab \n\x04é世=-", k=500)) for _ in range(50)]
    assert_bounded(tokenizer, texts)
    assert tokenizer.min_tokens("a word or two, " * 100_000) > 8192


def test_a_text_has_at_least_the_pieces_that_its_bytes_tell(tmp_path: Path) -> None:
    tokenizer = sentence_piece(tmp_path)
    random = Random(8)
    texts = ["", "▁" * 999, " " * 999, "hello " * 99, "▁hello" * 99, "[TOOL]" * 99, "</s>" * 99]
    texts += ["".join(random.choices("abchelo é▁", k=200)) for _ in range(100)]
    assert_bounded(tokenizer, texts)
    assert tokenizer.min_tokens("a world " * 10_000) > 1000


def test_sentence_piece_parses_control_tokens_only_when_asked(tmp_path: Path) -> None:
    tokenizer = sentence_piece(tmp_path)
    parsed = tokenizer.encode("<s>hello</s>", add_special=True, parse_special=True)
    assert parsed == [1, len(PIECES) - 3, 2]
    assert plain(tokenizer, "</s>").count(2) == 0


def test_a_user_defined_token_is_found_in_every_text(tmp_path: Path) -> None:
    tokenizer = sentence_piece(tmp_path)
    last = len(PIECES) - 1
    assert plain(tokenizer, "[TOOL]") == [1, last]
    assert not tokenizer.is_special(last)
    assert tokenizer.token_bytes(last) == b"[TOOL]"


def test_no_space_is_put_first_where_the_file_says_so(tmp_path: Path) -> None:
    tokenizer = sentence_piece(tmp_path, lambda writer: writer.add_add_space_prefix(False))
    ids = plain(tokenizer, "hello")
    assert text_of(tokenizer, ids[1:]) == "hello"


def test_sentence_piece_without_scores_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.scores' is missing"):
        sentence_piece(tmp_path, remove("tokenizer.ggml.scores"))


def test_characters_without_any_token_are_left_out(tmp_path: Path) -> None:
    def no_bytes(writer: GGUFWriter) -> None:
        kinds = [NORMAL if kind == BYTE else kind for _, _, kind in PIECES]
        writer.kv_data[0]["tokenizer.ggml.token_type"].value = kinds

    tokenizer = sentence_piece(tmp_path, no_bytes)
    assert text_of(tokenizer, plain(tokenizer, "a世b")[1:]) == " ab"
    assert tokenizer.min_tokens("世" * 1000) == 0


def test_the_documented_pre_tokenizers_are_those_there_are() -> None:
    page = Path(__file__).parents[4] / "docs" / "templates.md"
    named = regex.search(r"with the pre-tokenizers (.*?); and", page.read_text(), regex.S)
    assert named
    assert set(regex.findall(r"`([^`]+)`", named.group(1))) == set(PRE_TOKENIZERS)


def test_an_engine_s_table_agrees_with_the_whole_tokenizer(
    smollm2: ModelFile, tokenizer: FileTokenizer
) -> None:
    table = build_table(smollm2)
    assert table.eos_ids == tokenizer.eos_ids
    for token_id in range(tokenizer.vocab_size):
        assert table.token_bytes(token_id) == tokenizer.token_bytes(token_id)
        assert table.is_special(token_id) == tokenizer.is_special(token_id)
    assert table.is_special(tokenizer.eos_ids[0])
    assert not table.is_special(1000)
