"""Calendar months in UTC, by which budgets are counted."""

from datetime import UTC, datetime


def month_starts(now_ms: int) -> tuple[int, int, int, int]:
    """Beginnings of the month before this one, of this one and the next two, in ms since 1970.

    A month is called by its beginning. Four of them, because who asks and who counts may have
    clocks that differ by some hours.
    """
    now = datetime.fromtimestamp(now_ms / 1000, tz=UTC)
    this = now.year * 12 + now.month - 1
    before, current, after, last = (_start(month) for month in range(this - 1, this + 3))
    return before, current, after, last


def month_of(now_ms: int) -> tuple[int, int]:
    """Beginning of the month of that time, and of the next one."""
    return month_starts(now_ms)[1:3]


def _start(month: int) -> int:
    """Of a month counted from year 0."""
    year, index = divmod(month, 12)
    return int(datetime(year, index + 1, 1, tzinfo=UTC).timestamp()) * 1000
