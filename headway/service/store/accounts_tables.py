"""Tables of tenants, keys and the audit log, as revision 0001 of `migrations` made them."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

METADATA = MetaData()

TENANTS = Table(
    "tenants",
    METADATA,
    Column("name", String(64), primary_key=True),
    Column("slo_class", String(16), nullable=False),
    Column("weight", Double, nullable=False),
    Column("limits", Text, nullable=False),  # JSON of core.tenancy.limits.Limits
    Column("models", Text, nullable=False),  # JSON list of names
    Column("may_degrade", Boolean, nullable=False),
    Column("is_disabled", Boolean, nullable=False),
    Column("created", Double, nullable=False),  # seconds since 1970, as all times here
    Column("changed", Double, nullable=False),
)
KEYS = Table(
    "tenant_keys",
    METADATA,
    Column("id", String(32), primary_key=True),
    Column("tenant", String(64), ForeignKey("tenants.name"), nullable=False, index=True),
    Column("label", String(128), nullable=False),
    Column("hash", Text, nullable=False),  # core.tenancy.account.SecretHash as text
    Column("created", Double, nullable=False),
    Column("expires", Double),
    Column("revoked", Double),
    Column("replaced_by", String(32), nullable=False),  # id of the key it was rotated to; or ""
)
AUDIT = Table(
    "audit",
    METADATA,
    Column(
        "id",
        BigInteger().with_variant(Integer, "sqlite"),
        primary_key=True,
        autoincrement=True,
    ),
    Column("at", Double, nullable=False),
    Column("who", String(128), nullable=False),
    Column("action", String(32), nullable=False),
    Column("tenant", String(64), nullable=False, index=True),
    Column("subject", String(64), nullable=False),  # id of the key, or the tenant's name
    Column("before", Text, nullable=False),  # JSON without secrets; "" for nothing
    Column("after", Text, nullable=False),
)
STATE = Table(
    "account_state",
    METADATA,
    Column("id", Integer, primary_key=True),  # always 1
    Column("revision", BigInteger, nullable=False),
)
