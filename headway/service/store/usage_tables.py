"""The ledger's table, as `migrations/versions/r0002_requests.py` made it: one row a request.

Names are those of `core.messages.record.RequestRecord`, the route's among them.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    String,
    Table,
)

METADATA = MetaData()

REQUESTS = Table(
    "requests",
    METADATA,
    Column("id", String(64), primary_key=True),
    Column("shown_id", String(128), nullable=False, index=True),
    Column("gateway", String(64), nullable=False),
    Column("tenant", String(64), nullable=False),
    Column("key_id", String(64), nullable=False),
    Column("endpoint", String(64), nullable=False),
    Column("slo_class", String(16), nullable=False),
    Column("is_routed", Boolean, nullable=False),
    Column("asked", String(256), nullable=False),
    Column("model", String(256), nullable=False),
    Column("version", String(64), nullable=False),
    Column("arm", String(64), nullable=False),
    Column("reason", String(256), nullable=False),
    Column("degraded", String(64), nullable=False),
    Column("route_max_tokens", Integer),
    Column("replica", String(128), nullable=False),
    Column("began", Double, nullable=False),  # seconds since 1970, as all times here
    Column("hour", Integer, nullable=False),  # hours since 1970, for grouping
    Column("month", Integer, nullable=False),  # 202611 is November 2026, UTC
    Column("took_s", Double, nullable=False),
    Column("first_token_s", Double),
    Column("outcome", String(32), nullable=False),
    Column("finish", String(16), nullable=False),
    Column("error_code", String(64), nullable=False),
    Column("limit", String(16), nullable=False),
    Column("user", String(32), nullable=False),
    Column("is_stream", Boolean, nullable=False),
    Column("num_choices", Integer, nullable=False),
    Column("max_tokens", Integer, nullable=False),
    Column("prompt_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("cached_host_tokens", Integer, nullable=False),
    Column("completion_tokens", Integer, nullable=False),
    Column("sent_tokens", Integer, nullable=False),
    Column("unsure_tokens", Integer, nullable=False),
    Column("recomputed_tokens", Integer, nullable=False),
    Column("queue_s", Double, nullable=False),
    Column("prefill_s", Double, nullable=False),
    Column("decode_s", Double, nullable=False),
    Column("device_s", Double, nullable=False),
    Column("num_chunks", Integer, nullable=False),
    Column("preemptions", Integer, nullable=False),
    Column("preemptions_swapped", Integer, nullable=False),
    Column("failovers", Integer, nullable=False),
    Column("miss_reason", String(32), nullable=False),
    Column("cost", BigInteger, nullable=False),  # micros of the currency of the prices
    Column("is_estimated", Boolean, nullable=False),
    Index("ix_requests_began", "began", "id"),
    Index("ix_requests_tenant_began", "tenant", "began"),
)
