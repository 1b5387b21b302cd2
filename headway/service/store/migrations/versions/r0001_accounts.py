"""Tenants, their keys, the audit log, and the revision by which gateways notice a change."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

# SQLite numbers rows by itself only in a column of exactly this type.
NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "tenants",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("slo_class", sa.String(16), nullable=False),
        sa.Column("weight", sa.Double, nullable=False),
        sa.Column("limits", sa.Text, nullable=False),
        sa.Column("models", sa.Text, nullable=False),
        sa.Column("may_degrade", sa.Boolean, nullable=False),
        sa.Column("is_disabled", sa.Boolean, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("changed", sa.Double, nullable=False),
    )
    op.create_table(
        "tenant_keys",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column(
            "tenant",
            sa.String(64),
            sa.ForeignKey("tenants.name", name="fk_tenant_keys_tenant"),
            nullable=False,
            index=True,
        ),
        sa.Column("label", sa.String(128), nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("expires", sa.Double),
        sa.Column("revoked", sa.Double),
        sa.Column("replaced_by", sa.String(32), nullable=False),
    )
    op.create_table(
        "audit",
        sa.Column("id", NUMBER, primary_key=True, autoincrement=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("who", sa.String(128), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False, index=True),
        sa.Column("subject", sa.String(64), nullable=False),
        sa.Column("before", sa.Text, nullable=False),
        sa.Column("after", sa.Text, nullable=False),
    )
    state = op.create_table(
        "account_state",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("revision", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(state, [{"id": 1, "revision": 0}])
