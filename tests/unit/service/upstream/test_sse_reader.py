"""Events out of bytes that were cut anywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.base.errors import UpstreamBroken
from headway.service.upstream.sse_reader import SseReader

RECORDED = (
    ": keepalive\n\n"
    'data: {"content":"你好 🙂"}\n\n'
    "event: chunk\nid: 7\ndata: first\ndata:second\n\n"
    "data\n\ndata: [DONE]\n\n"
).encode()
WANTED = ['{"content":"你好 🙂"}'.encode(), b"first\nsecond", b"", b"[DONE]"]


def fed(*pieces: bytes) -> list[bytes]:
    reader = SseReader()
    return [data for piece in pieces for data in reader.feed(piece)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
def test_streaming_sse_03_the_events_are_the_same_however_they_were_written(
    end: bytes, size: int
) -> None:
    text = RECORDED.replace(b"\n", end)
    assert fed(*(text[i : i + size] for i in range(0, len(text), size))) == WANTED


@given(st.lists(st.integers(1, 9), min_size=1), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_no_way_of_cutting_changes_what_is_read(sizes: list[int], end: bytes) -> None:
    text = RECORDED.replace(b"\n", end)
    pieces, start, turn = [], 0, 0
    while start < len(text):
        pieces.append(text[start : start + sizes[turn % len(sizes)]])
        start += len(pieces[-1])
        turn += 1
    assert fed(*pieces) == WANTED


def test_a_byte_order_mark_at_the_beginning_is_skipped() -> None:
    assert fed(b"\xef\xbb\xbfdata: a\n\n") == [b"a"]


def test_only_one_space_behind_the_colon_is_no_part_of_the_data() -> None:
    assert fed(b"data:  a\n\ndata:b\n\n") == [b" a", b"b"]


def test_what_a_clean_end_cuts_off_is_given_by_finish() -> None:
    reader = SseReader()
    assert reader.feed(b"data: a\n\ndata: [DONE]") == [b"a"]
    assert reader.finish() == [b"[DONE]"]
    assert reader.finish() == []


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 50, b"data: xxxxxxxx\n" * 9])
def test_an_event_over_the_limit_is_refused_before_it_is_kept(piece: bytes) -> None:
    reader = SseReader(max_event_bytes=32)
    with pytest.raises(UpstreamBroken, match="more than 32 bytes"):
        reader.feed(piece)


def test_many_events_that_are_small_each_may_come_in_one_piece() -> None:
    assert SseReader(max_event_bytes=32).feed(b"data: x\n\n" * 100) == [b"x"] * 100
