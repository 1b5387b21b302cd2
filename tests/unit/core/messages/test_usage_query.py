from datetime import UTC, datetime

import pytest

from headway.core.messages.usage import (
    GROUPS,
    check_span,
    group_of,
    name_of_time,
    read_groups,
    read_moment,
)
from tests.unit.service.store.records import NOON, record


def at(*parts: int) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11", at(2026, 11, 1)),
        ("2026-11-30", at(2026, 11, 30)),
        ("2026-11-30T12:30", at(2026, 11, 30, 12, 30)),
        ("2026-11-30T12:30:00+02:00", at(2026, 11, 30, 10, 30)),
        ("2026-11-30T12:30:00Z", at(2026, 11, 30, 12, 30)),
        ("20261130", at(2026, 11, 30)),
        ("1796040000", NOON),
        ("0", 0.0),
        ("1796040000.5", NOON + 0.5),
    ],
)
def test_moments_are_read_in_utc(text: str, moment: float) -> None:
    assert read_moment(text) == moment


@pytest.mark.parametrize(
    "text", ["", "soon", "2026-13", "2026-02-30", "202611", "20261332", "1e9", "nan", "-5", "١٢"]
)
def test_what_is_no_moment_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="must be a date"):
        read_moment(text)


def test_a_span_has_to_have_something_in_it() -> None:
    for since, until in ((None, None), (1.0, None), (None, 1.0), (1.0, 2.0)):
        check_span(since, until)
    for until in (1.0, 0.5):
        with pytest.raises(ValueError, match="later than the beginning"):
            check_span(1.0, until)


def test_groups_are_read_in_order_and_checked() -> None:
    assert read_groups("tenant, day") == ("tenant", "day")
    assert read_groups("") == ()
    with pytest.raises(ValueError, match="must be of tenant, key"):
        read_groups("tenant,prompt")
    with pytest.raises(ValueError, match="no group twice"):
        read_groups("day,day")


def test_times_have_names_that_sort() -> None:
    assert [name_of_time(unit, NOON) for unit in ("hour", "day", "month")] == [
        "2026-11-30T12",
        "2026-11-30",
        "2026-11",
    ]


def test_a_record_has_a_value_of_every_group() -> None:
    assert group_of(record(replica="r-1"), GROUPS) == (
        *("acme", "k1", "m", "stable", "r-1", "chat_completions", "standard", "ok"),
        *("2026-11-30T12", "2026-11-30", "2026-11"),
    )
    assert group_of(record(route=None), ("model", "version")) == ("", "")
