"""What a person sees of a long step, on a terminal and in a log."""

import io

import pytest

from headway.service.loaders.progress import ConsoleProgress, silent


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_plain_line_for_every_quarter() -> None:
    stream = io.StringIO()
    progress = ConsoleProgress(stream)
    for done in range(0, 100_000_001, 1_000_000):
        progress("fetching", done, 100_000_000)
    progress("checking", 5, 5)
    progress.close()
    assert stream.getvalue().splitlines() == [
        "fetching: 0% (0.0 of 100.0 MB)",
        "fetching: 25% (25.0 of 100.0 MB)",
        "fetching: 50% (50.0 of 100.0 MB)",
        "fetching: 75% (75.0 of 100.0 MB)",
        "fetching: 100% (100.0 of 100.0 MB)",
        "checking: 100% (0.0 of 0.0 MB)",
    ]


def test_a_terminal_gets_one_bar_for_each_job() -> None:
    stream = Terminal()
    progress = ConsoleProgress(stream)
    progress("fetching", 0, 1000)
    progress("fetching", 500, 1000)
    progress("fetching", 1000, 1000)
    progress("checking", 3, 10)
    progress.close()
    shown = stream.getvalue()
    assert "fetching: 100%" in shown
    assert "checking:  30%" in shown
    assert shown.endswith("\n")


def test_the_silent_one_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    silent("fetching", 1, 2)
    assert capsys.readouterr() == ("", "")
