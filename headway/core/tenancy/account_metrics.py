"""What is counted of tenants' keys and of the operator's."""

from headway.core.base.metrics import Kind, Metric

ACCOUNTS_AGE = Metric(
    name="headway_accounts_age_seconds",
    kind=Kind.GAUGE,
    help="Since tenants and keys were last compared with the store; older than that, a revoked "
    "key may still be good",
    labels=(),
    unit="s",
    alert="> 30",
)
KEY_CHECKS = Metric(
    name="headway_key_checks_total",
    kind=Kind.COUNTER,
    help="Keys that took a slow check, by how it ended: good, wrong, unknown, or full",
    labels=("result",),
    unit="checks",
    alert='result "full" > 0 in 5 minutes: somebody guesses keys',
)
ADMIN_REFUSED = Metric(
    name="headway_admin_refused_total",
    kind=Kind.COUNTER,
    help="Requests to /admin without the right key",
    labels=(),
    unit="requests",
    alert="> 10 in 5 minutes: somebody guesses admin keys",
)

ACCOUNT_CATALOGUE: tuple[Metric, ...] = (ACCOUNTS_AGE, KEY_CHECKS, ADMIN_REFUSED)
