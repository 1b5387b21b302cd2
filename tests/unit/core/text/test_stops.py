import pytest

from headway.core.text.stops import StopMatcher, Stopped


def run(stops: list[str], pieces: list[str], *, keep: bool = False) -> tuple[list[str], str | None]:
    """Deltas, the flushed rest included, and the stop that matched."""
    matcher = StopMatcher(stops, keep_stop=keep)
    deltas: list[str] = []
    for piece in pieces:
        got = matcher.push(piece)
        if isinstance(got, Stopped):
            return [*deltas, got.text], got.stop
        deltas.append(got)
    return [*deltas, matcher.flush()], None


def test_text_without_stops_passes_through() -> None:
    assert run([], ["a", "b"]) == (["a", "b", ""], None)


def test_stop_strings_01_a_stop_over_three_pieces_never_leaves_in_part() -> None:
    assert run(["lo wor"], ["hel", "lo w", "orld"]) == (["he", "l", ""], "lo wor")


def test_stop_strings_02_only_a_prefix_of_a_stop_is_held_back() -> None:
    stop = "\u0001" + "x" * 150
    assert run([stop], ["Once ", "upon"]) == (["Once ", "upon", ""], None)


def test_text_held_back_in_vain_leaves_with_what_follows() -> None:
    assert run(["abcd"], ["xab", "cx"]) == (["x", "abcx", ""], None)


def test_text_held_back_at_the_end_leaves() -> None:
    assert run(["abc"], ["xab"]) == (["x", "ab"], None)


def test_the_earliest_stop_wins_and_then_the_longest() -> None:
    assert run(["b", "ab", "abc"], ["zabcd"]) == (["z"], "abc")


def test_a_stop_that_is_kept_leaves_whole() -> None:
    assert run(["lo"], ["hel", "o lo!"], keep=True) == (["he", "lo"], "lo")


@pytest.mark.parametrize("stop", ["aab", "aaab", "abab"])
def test_a_stop_that_overlaps_itself_is_found(stop: str) -> None:
    text = "aabaaabababab"
    deltas, found = run([stop], list(text))
    assert found == stop
    assert "".join(deltas) == text[: text.index(stop)]
