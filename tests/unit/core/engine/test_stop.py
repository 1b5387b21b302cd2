from headway.core.engine.stop import Gain, end_ids, take_token
from headway.core.messages.path import FinishReason, Sampling
from headway.core.text.streamer import TokenStreamer
from tests.fakes import EOS, ByteTokenizer, greedy


def run(sampling: Sampling, tokens: list[int]) -> tuple[str, Gain, int]:
    """Whole text, the last gain, and how many tokens were taken."""
    streamer = TokenStreamer(ByteTokenizer(), sampling)
    ends = end_ids(sampling, (EOS,))
    text, gain = "", Gain("")
    for position, token in enumerate(tokens):
        gain = take_token(token, position, sampling, ends, streamer)
        text += gain.text
        if gain.finish_reason is not None:
            return text, gain, position + 1
    return text, gain, len(tokens)


def test_end_of_sequence_ends_without_text() -> None:
    text, gain, _ = run(greedy(), [*b"hi", EOS, *b"no"])
    assert (text, gain.finish_reason, gain.stop_reason) == ("hi", FinishReason.STOP, None)


def test_the_last_allowed_token_ends_with_length_and_its_text() -> None:
    text, gain, count = run(greedy(2), [*b"hi!"])
    assert (text, gain.finish_reason, count) == ("hi", FinishReason.LENGTH, 2)


def test_a_stop_on_the_last_allowed_token_is_a_stop() -> None:
    text, gain, _ = run(greedy(2, stop=("i",)), [*b"hi"])
    assert (text, gain.finish_reason, gain.stop_reason) == ("h", FinishReason.STOP, "i")


def test_text_held_back_for_a_stop_leaves_when_the_length_ends_it() -> None:
    text, gain, _ = run(greedy(2, stop=("ix",)), [*b"hi"])
    assert (text, gain.finish_reason) == ("hi", FinishReason.LENGTH)


def test_ignore_eos_goes_on_but_stop_tokens_still_end() -> None:
    sampling = Sampling(max_tokens=9, seed=0, ignore_eos=True, stop_token_ids=(ord("!"),))
    text, gain, _ = run(sampling, [*b"a", EOS, *b"b!"])
    assert (text, gain.finish_reason, gain.stop_reason) == ("ab", FinishReason.STOP, ord("!"))


def test_a_stop_token_is_text_only_when_stops_are_kept() -> None:
    sampling = Sampling(max_tokens=9, seed=0, stop_token_ids=(ord("!"),), include_stop=True)
    assert run(sampling, [*b"a!"])[0] == "a!"


def test_nothing_ends_it_before_min_tokens() -> None:
    text, gain, count = run(greedy(stop=("a",), min_tokens=3), [*b"abca"])
    assert (text, gain.finish_reason, count) == ("abc", FinishReason.STOP, 4)
    text, gain, count = run(greedy(min_tokens=2), [EOS, EOS])
    assert (gain.finish_reason, count) == (FinishReason.STOP, 2)


def test_half_a_character_at_the_end_becomes_a_replacement() -> None:
    assert run(greedy(1), [0xF0])[0] == "\ufffd"
