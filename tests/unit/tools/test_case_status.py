"""Every failure case is listed, and what is called covered has a test of its name."""

from pathlib import Path

import pytest

from tools.case_status import (
    ROOT,
    Entry,
    as_toml,
    case_ids,
    functions_of_tests,
    mentions,
    problems,
    read_entries,
    updated,
)

COVERED = Entry(state="covered", tests=("tests/a/test_a.py::test_usage_01_counts",))
TESTS = ("tests/a/test_a.py::test_usage_01_counts", "tests/a/test_a.py::test_other")


def test_the_status_of_every_case_is_true() -> None:
    assert problems(case_ids(ROOT), read_entries(ROOT), functions_of_tests(ROOT)) == []


def test_there_are_eighty_cases() -> None:
    ids = case_ids(ROOT)
    assert len(ids) == len(set(ids)) == 80


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ({}, "usage-01: not listed"),
        ({"usage-01": COVERED, "usage-99": COVERED}, "usage-99: no such case"),
        ({"usage-01": Entry(state="done")}, "usage-01: state 'done' is none of"),
        ({"usage-01": Entry(state="covered")}, "usage-01: covered, but names no test"),
        ({"usage-01": Entry(state="later")}, "usage-01: later, but gives no reason"),
        (
            {"usage-01": Entry(state="covered", tests=("tests/a/test_a.py::test_gone",))},
            "usage-01: there is no test tests/a/test_a.py::test_gone",
        ),
        (
            {"usage-01": Entry(state="covered", tests=TESTS)},
            "usage-01: the name of tests/a/test_a.py::test_other does not have the id",
        ),
    ],
)
def test_a_wrong_entry_is_named(entries: dict[str, Entry], problem: str) -> None:
    assert any(line.startswith(problem) for line in problems(["usage-01"], entries, TESTS))


def test_a_right_file_has_no_problems() -> None:
    entries = {"usage-01": COVERED, "usage-02": Entry(state="later", reason="tier 2")}
    assert problems(["usage-01", "usage-02"], entries, TESTS) == []


def test_an_id_counts_only_as_whole_words_of_the_name() -> None:
    assert mentions("tests/t.py::test_usage_01", "usage-01")
    assert mentions("tests/t.py::test_streams_usage_01_and_02", "usage-01")
    assert not mentions("tests/t.py::test_usage_011", "usage-01")
    assert not mentions("tests/test_usage_01.py::test_other", "usage-01")


def test_writing_marks_what_tests_mention_and_takes_back_what_they_no_longer_do() -> None:
    entries = {
        "usage-02": COVERED,
        "usage-03": Entry(state="later", reason="tier 2"),
    }
    assert updated(["usage-01", "usage-02", "usage-03"], entries, TESTS) == {
        "usage-01": COVERED,
        "usage-02": Entry(state="open"),
        "usage-03": Entry(state="later", reason="tier 2"),
    }


def test_what_is_written_is_read_back_the_same(tmp_path: Path) -> None:
    entries = {
        "usage-01": COVERED,
        "usage-02": Entry(state="later", reason='a "quoted" reason', note="ä"),
    }
    folder = tmp_path / "tests/cases"
    folder.mkdir(parents=True)
    (folder / "status.toml").write_text(as_toml(entries))
    assert read_entries(tmp_path) == entries
