"""Months by which budgets are counted."""

from datetime import UTC, datetime

import pytest

from headway.core.tenancy.budget import month_of, month_starts

DAY_MS = 86_400_000


def ms(*when: int) -> int:
    return int(datetime(*when, tzinfo=UTC).timestamp()) * 1000  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(
    ("now", "starts"),
    [
        ((2026, 11, 30, 23, 59), [(2026, 10, 1), (2026, 11, 1), (2026, 12, 1), (2027, 1, 1)]),
        ((2026, 12, 1), [(2026, 11, 1), (2026, 12, 1), (2027, 1, 1), (2027, 2, 1)]),
        ((2028, 2, 29), [(2028, 1, 1), (2028, 2, 1), (2028, 3, 1), (2028, 4, 1)]),
    ],
)
def test_months_begin_at_midnight_utc_of_their_first_day(
    now: tuple[int, ...], starts: list[tuple[int, ...]]
) -> None:
    assert month_starts(ms(*now)) == tuple(ms(*start) for start in starts)
    assert month_of(ms(*now)) == (ms(*starts[1]), ms(*starts[2]))


def test_a_months_last_millisecond_is_its_own() -> None:
    begin, end = month_of(ms(2028, 2, 10))
    assert end - begin == 29 * DAY_MS
    assert month_of(end - 1)[0] == begin
    assert month_of(end)[0] == end
