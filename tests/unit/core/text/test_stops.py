import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def plain_push(stops: list[str], held: str, text: str) -> tuple[str, str | None]:
    """What is held back and the stop that matched, written for reading."""
    pending = held + text
    found = [(at, -len(stop), stop) for stop in stops if (at := pending.find(stop)) >= 0]
    if found:
        return "", min(found)[2]
    tails = [pending[at:] for at in range(len(pending))]
    kept = [tail for tail in tails if any(stop.startswith(tail) for stop in stops)]
    return max(kept, key=len, default=""), None


FEW = st.text("ab", min_size=1, max_size=6)


@given(st.lists(FEW, min_size=1, max_size=4), st.lists(st.text("abc", max_size=5), max_size=12))
def test_pieces_leave_as_by_a_plain_search(stops: list[str], pieces: list[str]) -> None:
    matcher, held = StopMatcher(stops, keep_stop=True), ""
    for piece in pieces:
        pending = held + piece
        held, stop = plain_push(stops, held, piece)
        got = matcher.push(piece)
        if stop is not None:
            assert got == Stopped(pending[: pending.index(stop) + len(stop)], stop)
            return
        assert got == pending[: len(pending) - len(held)]
    assert matcher.flush() == held


class Watched(str):
    """A stop string that counts how often it is looked into."""

    num_looks = 0

    def __getitem__(self, key: object) -> str:
        Watched.num_looks += 1
        return super().__getitem__(key)  # type: ignore[index]


def test_long_stops_that_nearly_match_cost_a_few_looks_a_character() -> None:
    stops = [Watched("a" * (1000 + i) + "b") for i in range(8)]
    stops += [Watched("c" * 1000 + "a" * i) for i in range(8)]
    matcher = StopMatcher(stops)
    Watched.num_looks = 0
    for _ in range(2000):
        matcher.push("a")
    assert Watched.num_looks < 2000 * 16 * 7
    got = matcher.push("b")
    assert isinstance(got, Stopped)
    assert got.stop == stops[7]
