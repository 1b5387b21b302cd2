"""What /admin tells of the ledger."""

import msgspec

from headway.core.messages.record import RequestRecord


class UsageList(msgspec.Struct, frozen=True, kw_only=True):
    """Every row has the groups and the sums by their names."""

    object: str = "list"
    group_by: tuple[str, ...]
    data: list[dict[str, str | int | float]]
    total: dict[str, int | float]


class RequestList(msgspec.Struct, frozen=True, kw_only=True):
    """Some records, and what to ask with to get the next ones."""

    object: str = "list"
    data: tuple[RequestRecord, ...]
    next: str | None  # `before` of the next page


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """One request explained; the sentences by topic, and all of them as one paragraph."""

    request: RequestRecord
    why: dict[str, str]
    text: str
