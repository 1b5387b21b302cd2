"""What is asked of the ledger, and what it answers: sums by group, and records by page."""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from headway.core.messages.record import RequestRecord

TIMES = ("hour", "day", "month")  # in UTC
GROUPS = ("tenant", "key", "model", "version", "replica", "endpoint", "class", "outcome", *TIMES)
MAX_ROWS = 100_000  # of one answer
DATE = re.compile(r"\d{4}-\d{2}(-\d{2})?")
# 20261130: ISO's other form of a date; as seconds, a day in 1970 that nobody means.
BASIC = re.compile(r"(19|20)\d{4}(\d{2})?")


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which requests to add up, by when they began, and into which groups; "" is any."""

    group_by: tuple[str, ...] = ("tenant", "model", "day")
    since: float | None = None  # seconds since 1970, included
    until: float | None = None  # not included
    tenant: str | None = None
    key: str | None = None
    model: str | None = None


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """One group's sums; `group` has the values of `group_by`, in its order."""

    group: tuple[str, ...]
    requests: int = 0
    ok: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    sent_tokens: int = 0
    recomputed_tokens: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    device_s: float = 0.0
    cost: int = 0  # micros of the currency of the prices


SUMS = tuple(name for name in UsageRow.__struct_fields__ if name not in {"group", "requests", "ok"})


class RecordQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which records to list, the latest first."""

    tenant: str | None = None
    outcome: str | None = None
    model: str | None = None
    since: float | None = None  # seconds since 1970, included
    before: tuple[float, str] | None = None  # `RecordPage.next` of the page before
    limit: int = 100


class RecordPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some records, and where the next page begins; None after the last."""

    records: tuple[RequestRecord, ...] = ()
    next: tuple[float, str] | None = None


def read_groups(text: str) -> tuple[str, ...]:
    """Groups out of "tenant,model,day"; raises ValueError that lists them."""
    groups = tuple(part.strip() for part in text.split(",") if part.strip())
    for group in groups:
        if group not in GROUPS:
            raise ValueError(f"must be of {', '.join(GROUPS)}; got {group!r}")
    if len(set(groups)) != len(groups):
        raise ValueError(f"must name no group twice, got {text!r}")
    return groups


def read_moment(text: str) -> float:
    """Seconds since 1970 of "2026-11", "2026-11-30", an ISO time, or of a number of seconds.

    Without an offset it is UTC. Raises ValueError.
    """
    try:
        if DATE.fullmatch(text):
            return datetime.fromisoformat((text + "-01")[:10]).replace(tzinfo=UTC).timestamp()
        is_number = text.isascii() and text.replace(".", "", 1).isdigit()
        if is_number and not BASIC.fullmatch(text):
            return float(text)
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ValueError(f"must be a date, a time or seconds since 1970, got {text!r}") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def check_span(since: float | None, until: float | None) -> None:
    """Raises ValueError where no time lies between them."""
    if since is not None and until is not None and until <= since:
        raise ValueError("must be later than the beginning, and is not included")


def name_of_time(unit: str, began: float) -> str:
    """How the hour, day or month of a moment is called."""
    form = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d", "month": "%Y-%m"}[unit]
    return datetime.fromtimestamp(began, UTC).strftime(form)


def group_of(record: RequestRecord, groups: Iterable[str]) -> tuple[str, ...]:
    """The values of these groups that the record has."""
    return tuple(_value(record, group) for group in groups)


def page_of(found: Sequence[RequestRecord], limit: int) -> RecordPage:
    """A page of `limit` records, out of one more than that if there are more."""
    records = tuple(found[:limit])
    after = (records[-1].began, records[-1].id) if len(found) > limit else None
    return RecordPage(records=records, next=after)


def _value(record: RequestRecord, group: str) -> str:
    if group in TIMES:
        return name_of_time(group, record.began)
    if group in {"model", "version"}:
        return str(getattr(record.route, group)) if record.route is not None else ""
    name = {"key": "key_id", "class": "slo_class"}.get(group, group)
    return str(getattr(record, name))
