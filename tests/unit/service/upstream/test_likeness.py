"""Chunks that are changed by their bytes come out as those that are decoded and written anew."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.service.upstream.answers import Shown, StreamedAnswer
from headway.service.upstream.likeness import Gain, likeness_of
from tests.upstreams import chunk, usage_chunk

SHOWN = Shown("chatcmpl-ours", "ours", include_usage=False, num_choices=1)


def written(each: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps({**each, "id": "ours"}, separators=(",", ":")).encode() + b"\n\n"


def through(datas: Sequence[bytes]) -> list[tuple[bytes, list[Gain]]]:
    """Each event and its gains, with all that one answer learns on its way."""
    answer, found = StreamedAnswer(SHOWN, 1), []
    for data in datas:
        gains: list[Gain] = []
        found.append((answer.take(data, gains), gains))
    return found


def each_alone(datas: Sequence[bytes]) -> list[tuple[bytes, list[Gain]]]:
    """The same by an answer that has learnt nothing yet."""
    return [through([data])[0] for data in datas]


TEXTS = st.one_of(
    st.text(max_size=6),
    st.sampled_from(["", '"', "\\", "\n", '","x":"', "content", '"content":"', "你好", "?", "🙂"]),
)
FORMS = st.sampled_from([(", ", ": "), (",", ":")])


@given(st.lists(TEXTS, min_size=1, max_size=8), FORMS, st.booleans())
def test_learnt_or_not_every_chunk_comes_out_the_same(
    texts: list[str], form: tuple[str, str], is_ascii: bool
) -> None:
    chunks = [chunk(text, usage=None) for text in texts] + [chunk(finish="stop")]
    datas = [json.dumps(e, separators=form, ensure_ascii=is_ascii).encode() for e in chunks]
    assert through(datas) == each_alone(datas)


@given(st.lists(TEXTS, min_size=1, max_size=8))
def test_completions_and_thoughts_come_out_the_same_too(texts: list[str]) -> None:
    datas = []
    for text in texts:
        completion = {"id": "x", "model": "theirs", "choices": [{"index": 0, "text": text}]}
        thought = {"index": 0, "delta": {"content": None, "reasoning_content": text}}
        datas += [json.dumps(completion).encode()]
        datas += [json.dumps({**chunk(), "choices": [thought]}).encode()]
    assert through(datas) == each_alone(datas)


def test_a_plain_chunk_is_changed_without_being_decoded() -> None:
    data = json.dumps(chunk("one")).encode()
    alike = likeness_of(data, chunk("one"), written)
    assert alike is not None
    assert alike.gain == Gain(0, 1)
    assert alike.rewritten(json.dumps(chunk("two")).encode()) == written(chunk("two"))


@pytest.mark.parametrize(
    "other",
    [
        json.dumps(chunk('say "two"')).encode(),
        json.dumps(chunk("")).encode(),
        json.dumps(chunk("two", created=2)).encode(),
        json.dumps(chunk("two")).encode().replace(b"two", b"t\xffo"),
        json.dumps(chunk("two")).encode().replace(b"two", b"t\to"),
        json.dumps(chunk("two"))[:-9].encode(),
        json.dumps(chunk("two")).encode() + b" ",
        b"[DONE]",
    ],
)
def test_what_is_not_quite_alike_is_left_to_who_decodes_it(other: bytes) -> None:
    alike = likeness_of(json.dumps(chunk("one")).encode(), chunk("one"), written)
    assert alike is not None
    assert alike.rewritten(other) == b""


@pytest.mark.parametrize(
    "each",
    [
        chunk(finish="stop"),
        {**chunk("a"), "usage": usage_chunk()["usage"]},
        {**chunk(), "choices": [{"index": 0, "delta": {"content": "a"}, "token_ids": [1, 2]}]},
        {**chunk(), "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]},
        {**chunk(), "choices": [{"index": 0, "delta": {"role": "assistant", "content": "a"}}]},
        {**chunk(), "choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0}]}}]},
        {**chunk(), "choices": []},
        {**chunk(), "choices": [3]},
        usage_chunk(),
    ],
)
def test_a_chunk_that_says_more_than_a_text_teaches_nothing(each: dict[str, Any]) -> None:
    assert likeness_of(json.dumps(each).encode(), each, written) is None
