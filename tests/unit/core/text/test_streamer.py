from headway.core.messages.path import Sampling
from headway.core.text.streamer import TokenStreamer
from tests.fakes import EOS, ByteTokenizer, greedy

FAMILY = "👨‍👩‍👧‍👦"


def streamer(sampling: Sampling | None = None) -> TokenStreamer:
    return TokenStreamer(ByteTokenizer(), sampling or greedy())


def test_utf8_detok_02_a_character_leaves_only_when_it_is_whole() -> None:
    stream = streamer()
    deltas = [stream.push(byte).text for byte in FAMILY.encode()]
    assert "".join(deltas) == FAMILY
    assert not any("\ufffd" in delta for delta in deltas)


def test_utf8_detok_02_two_streams_do_not_mix() -> None:
    one, two = streamer(), streamer()
    text_one, text_two = "", ""
    for a, b in zip("你好".encode(), "ďďď".encode(), strict=True):
        text_one += one.push(a).text
        text_two += two.push(b).text
    assert (text_one, text_two) == ("你好", "ďďď")


def test_utf8_detok_01_half_a_character_at_the_end_leaves_as_a_replacement() -> None:
    stream = streamer()
    assert stream.push(0xF0).text == ""
    assert stream.push(0x9F).text == ""
    assert stream.flush().text == "\ufffd"


def test_a_byte_that_can_never_be_text_leaves_at_once() -> None:
    assert streamer().push(0xFF).text == "\ufffd"


def test_special_tokens_are_text_only_when_asked_for() -> None:
    assert streamer().push(EOS).text == ""
    kept = Sampling(max_tokens=1, seed=0, skip_special_tokens=False)
    assert streamer(kept).push(EOS).text == "<eos>"


def test_stops_are_looked_for_only_once_they_may_end_the_answer() -> None:
    stream = streamer(greedy(stop=("ab",)))
    assert stream.push(ord("a"), may_stop=False).text == "a"
    assert stream.push(ord("b"), may_stop=False).text == "b"
    assert stream.push(ord("a")).text == ""
    assert stream.push(ord("b")) == ("", "ab")
