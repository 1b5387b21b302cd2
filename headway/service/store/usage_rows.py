"""A record of a request as a row of the table `requests`, and back; imports no SQL library."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from headway.core.messages.record import RequestRecord, Route

HOUR_S, DAY_S = 3600, 86400
OF_ROUTE = ("asked", "model", "version", "arm", "reason", "degraded")
OWN = tuple(name for name in RequestRecord.__struct_fields__ if name != "route")
# What a client chose must not cost the record: characters of each text, as the table has them.
TEXT_SIZES: Mapping[str, int] = {
    "id": 64,
    "shown_id": 128,
    "gateway": 64,
    "tenant": 64,
    "key_id": 64,
    "endpoint": 64,
    "slo_class": 16,
    "asked": 256,
    "model": 256,
    "version": 64,
    "arm": 64,
    "reason": 256,
    "degraded": 64,
    "replica": 128,
    "outcome": 32,
    "finish": 16,
    "error_code": 64,
    "limit": 16,
    "user": 32,
    "miss_reason": 32,
}


def row_of(record: RequestRecord) -> dict[str, Any]:
    """By column."""
    began = datetime.fromtimestamp(record.began, UTC)
    row = {name: getattr(record, name) for name in OWN}
    route = record.route or Route(model="", version="", reason="")
    row |= {name: getattr(route, name) for name in OF_ROUTE}
    row |= {
        "is_routed": record.route is not None,
        "route_max_tokens": route.max_tokens,
        "hour": int(record.began // HOUR_S),
        "month": began.year * 100 + began.month,
    }
    for name, size in TEXT_SIZES.items():
        row[name] = row[name].replace("\0", "")[:size]
    return row


def record_of(row: Mapping[str, Any]) -> RequestRecord:
    """What `row_of` made a row of."""
    route = None
    if row["is_routed"]:
        given = {name: row[name] for name in OF_ROUTE}
        route = Route(**given, max_tokens=row["route_max_tokens"])
    return RequestRecord(**{name: row[name] for name in OWN}, route=route)
