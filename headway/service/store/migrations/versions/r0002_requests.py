"""The ledger: one row a request."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

TEXTS = {
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
NUMBERS = (
    *("hour", "month", "num_choices", "max_tokens", "prompt_tokens", "cached_tokens"),
    *("cached_host_tokens", "completion_tokens", "sent_tokens", "unsure_tokens"),
    *("recomputed_tokens", "num_chunks", "preemptions", "preemptions_swapped", "failovers"),
)
SECONDS = ("began", "took_s", "queue_s", "prefill_s", "decode_s", "device_s")


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "requests",
        sa.Column("id", sa.String(64), primary_key=True),
        *(sa.Column(name, sa.String(size), nullable=False) for name, size in TEXTS.items()),
        *(sa.Column(name, sa.Integer, nullable=False) for name in NUMBERS),
        *(sa.Column(name, sa.Double, nullable=False) for name in SECONDS),
        sa.Column("is_routed", sa.Boolean, nullable=False),
        sa.Column("is_stream", sa.Boolean, nullable=False),
        sa.Column("is_estimated", sa.Boolean, nullable=False),
        sa.Column("route_max_tokens", sa.Integer),
        sa.Column("first_token_s", sa.Double),
        sa.Column("cost", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_requests_shown_id", "requests", ["shown_id"])
    op.create_index("ix_requests_began", "requests", ["began", "id"])
    op.create_index("ix_requests_tenant_began", "requests", ["tenant", "began"])
