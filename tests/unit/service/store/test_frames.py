from hypothesis import given
from hypothesis import strategies as st

from headway.service.store.frames import HEAD, MAGIC, frame, frames

PAYLOADS = st.lists(st.binary(max_size=60), max_size=8)


def payloads(data: bytes) -> list[bytes | None]:
    return [found.payload for found in frames(data)]


@given(PAYLOADS)
def test_what_was_framed_is_found(given_: list[bytes]) -> None:
    assert payloads(b"".join(frame(each) for each in given_)) == given_


@given(PAYLOADS, st.data())
def test_a_torn_end_loses_the_last_frame_only_and_is_no_damage(
    given_: list[bytes], data: st.DataObject
) -> None:
    last = frame(b"the last one")
    cut = data.draw(st.integers(0, len(last) - 1))
    torn = b"".join(frame(each) for each in given_) + last[:cut]
    assert payloads(torn) == given_


def test_a_damaged_frame_is_told_and_the_next_one_is_found() -> None:
    whole = [frame(b"one"), frame(b"two"), frame(b"three")]
    for at in range(len(whole[1])):
        broken = bytearray(whole[1])
        broken[at] ^= 0xFF
        assert payloads(whole[0] + bytes(broken) + whole[2]) == [b"one", None, b"three"]


def test_damage_at_the_end_is_told_too() -> None:
    broken = frame(b"two")[:-1] + b"?"
    assert payloads(frame(b"one") + broken) == [b"one", None]
    assert payloads(b"no frame at all, whatever it is") == [None]


def test_zeros_that_a_file_system_left_behind_are_one_damage() -> None:
    assert payloads(frame(b"one") + bytes(5000)) == [b"one", None]


def test_a_payload_that_holds_a_frame_is_not_taken_apart() -> None:
    inner = frame(b"inner")
    assert payloads(frame(inner) + frame(MAGIC)) == [inner, MAGIC]


def test_offsets_are_those_behind_each_frame() -> None:
    data = frame(b"ab") + frame(b"")
    assert [found.end for found in frames(data)] == [HEAD.size + 2, 2 * HEAD.size + 2]
    assert [found.payload for found in frames(data, HEAD.size + 2)] == [b""]
