"""What a benchmark sends."""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from headway.app.bench_dataset import (
    DEFAULT_IDS,
    RandomShape,
    exact_text,
    random_ids,
    random_text,
    read_sharegpt,
    sharegpt_prompts,
)
from headway.core.base.errors import InvalidSetting

WORDS = [a + b for a in "bdfgklmnprst" for b in ("an", "orel", "it", "umon")]


class WordCodec:
    """One token a word of the list, and one a character of any other word."""

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for word in text.split():
            ids += [WORDS.index(word)] if word in WORDS else [1000 + ord(c) for c in word]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(WORDS[i] if i < len(WORDS) else chr(i - 1000) for i in ids)

    def plain_ids(self) -> Sequence[int]:
        return range(len(WORDS))


class MergingCodec(WordCodec):
    """Two equal words in a row are one token, as real vocabularies merge neighbours."""

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for token in super().encode(text):
            if ids and ids[-1] == token:
                ids[-1] = token + 500
            else:
                ids.append(token)
        return ids


def test_random_ids_have_exactly_the_lengths_asked_for_and_share_the_prefix() -> None:
    shape = RandomShape(input_len=20, output_len=7, prefix_len=5)
    prompts = random_ids(shape, 4, DEFAULT_IDS, Random(0))
    assert [len(p.content) for p in prompts] == [25] * 4
    assert [(p.num_tokens, p.max_tokens) for p in prompts] == [(25, 7)] * 4
    assert len({p.content[:5] for p in prompts}) == 1
    assert len({p.content for p in prompts}) == 4


def test_random_ids_come_only_from_the_ids_given() -> None:
    shape = RandomShape(input_len=200, output_len=1)
    (prompt,) = random_ids(shape, 1, [4, 5, 6], Random(0))
    assert set(prompt.content) == {4, 5, 6}


def test_a_range_ratio_varies_both_lengths_within_its_bounds() -> None:
    shape = RandomShape(input_len=100, output_len=10, range_ratio=0.5)
    prompts = random_ids(shape, 300, DEFAULT_IDS, Random(0))
    lengths = {len(p.content) for p in prompts}
    assert min(lengths) < 60 < 140 < max(lengths)
    assert lengths <= set(range(50, 151))
    assert {p.max_tokens for p in prompts} == set(range(5, 16))


@pytest.mark.parametrize("codec", [WordCodec(), MergingCodec()], ids=lambda c: type(c).__name__)
def test_random_text_has_exactly_the_length_asked_for(codec: WordCodec) -> None:
    shape = RandomShape(input_len=40, output_len=3, prefix_len=12)
    prompts = random_text(shape, 5, codec, Random(3))
    assert [len(codec.encode(str(p.content))) for p in prompts] == [52] * 5
    first = str(prompts[0].content)
    assert all(str(p.content)[:40] == first[:40] for p in prompts)


def test_a_text_without_words_of_its_own_is_its_prefix() -> None:
    assert exact_text(2, "ban dit", WORDS, WordCodec(), Random(0)) == "ban dit"


def test_a_vocabulary_without_words_is_refused_with_the_way_out() -> None:
    class Letters(WordCodec):
        def plain_ids(self) -> Sequence[int]:
            return range(1033, 1064)

    with pytest.raises(InvalidSetting, match="--backend openai"):
        random_text(RandomShape(input_len=4, output_len=1), 1, Letters(), Random(0))


def sharegpt_file(folder: Path, pairs: Sequence[tuple[str, ...]]) -> Path:
    path = folder / "share.json"
    turns = [[{"from": "human", "value": text} for text in pair] for pair in pairs]
    path.write_text(json.dumps([{"id": "x", "conversations": turn} for turn in turns]))
    return path


def test_sharegpt_takes_the_first_two_turns_and_leaves_out_lone_or_empty_ones(
    tmp_path: Path,
) -> None:
    path = sharegpt_file(tmp_path, [("a", "b", "c"), ("alone",), ("", "x"), ("d", "e")])
    assert read_sharegpt(path) == [("a", "b"), ("d", "e")]


def test_sharegpt_prompts_ask_for_answers_as_long_as_the_recorded_ones() -> None:
    pairs = [("ban bit bumon dan", "dit " * 9)]
    (prompt,) = sharegpt_prompts(pairs, 1, WordCodec(), None, Random(0))
    assert (prompt.content, prompt.num_tokens, prompt.max_tokens) == ("ban bit bumon dan", 4, 9)


def test_sharegpt_conversations_of_unusual_length_are_left_out() -> None:
    good = ("ban bit bumon dan", "dit " * 9)
    short, silent = ("ban", "dit " * 9), ("ban bit bumon dan", "dit")
    long, huge = ("ban " * 1025, "dit " * 9), ("ban " * 1000, "dit " * 1100)
    prompts = sharegpt_prompts([short, silent, long, huge, good], 3, WordCodec(), None, Random(0))
    assert [p.content for p in prompts] == [good[0]] * 3


def test_sharegpt_without_a_tokenizer_needs_an_output_length() -> None:
    with pytest.raises(InvalidSetting, match="--sharegpt-output-len"):
        sharegpt_prompts([("a", "b")], 1, None, None, Random(0))
    (prompt,) = sharegpt_prompts([("a", "b")], 1, None, 12, Random(0))
    assert (prompt.num_tokens, prompt.max_tokens) == (None, 12)


def test_a_dataset_without_a_usable_conversation_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="usable length"):
        sharegpt_prompts([("ban", "dit")], 1, WordCodec(), None, Random(0))


@pytest.mark.parametrize("content", ["{", '{"a": 1}', "[1]"])
def test_a_file_that_is_not_sharegpt_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(content)
    with pytest.raises(InvalidSetting, match=r"odd\.json is not ShareGPT"):
        read_sharegpt(path)


def test_a_missing_dataset_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"cannot read .*none\.json"):
        read_sharegpt(tmp_path / "none.json")
