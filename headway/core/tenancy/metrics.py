"""What is counted of each class of service; the rest of the catalogue is in `core.base.metrics`."""

from headway.core.base.metrics import OWN, SECOND_BUCKETS, Kind, Metric

CLASSED = (*OWN, "slo_class")
CLASS_FIRST_TOKEN = Metric(
    name="headway_class_time_to_first_token_seconds",
    kind=Kind.HISTOGRAM,
    help="From a request's arrival to its first token, by class; see --slo-ttft",
    labels=CLASSED,
    unit="s",
    buckets=SECOND_BUCKETS,
    alert="P99 of vip > its promise for 5 minutes",
)
CLASS_REQUESTS = Metric(
    name="headway_class_requests_total",
    kind=Kind.COUNTER,
    help="Requests that ended, by class and outcome, from when their class is known",
    labels=(*CLASSED, "outcome"),
    unit="requests",
    alert='outcome "rejected_..." of vip > 0 in 5 minutes',
)
CLASS_PREEMPTED = Metric(
    name="headway_class_preempted_total",
    kind=Kind.COUNTER,
    help="Sequences stopped, by their own class and by what became of their blocks: "
    "swap (kept in the host tier) or recompute",
    labels=(*CLASSED, "kind"),
    unit="sequences",
)

LIMIT_DENIALS = Metric(
    name="headway_limit_denials_total",
    kind=Kind.COUNTER,
    help="Requests refused for a limit of their tenant's own, by its class and by the limit: "
    "requests, tokens, concurrency, budget",
    labels=("slo_class", "kind"),
    unit="requests",
)
TENANT_DENIALS = Metric(
    name="headway_tenant_limit_denials_total",
    kind=Kind.COUNTER,
    help="The same by tenant; only with metrics_by_tenant, since every tenant is a series",
    labels=("tenant", "kind"),
    unit="requests",
)
LIMIT_STORE_UP = Metric(
    name="headway_limit_store_up",
    kind=Kind.GAUGE,
    help="1 while the shared store counts tenants' limits, 0 while this gateway counts its share "
    "of them; absent where nothing is shared",
    labels=(),
    alert="0 for 1 minute",
)
LIMIT_DEGRADED = Metric(
    name="headway_limit_degraded_answers_total",
    kind=Kind.COUNTER,
    help="Answers about limits that were given from this gateway's share, without the shared store",
    labels=(),
    unit="answers",
    alert="> 0 in 5 minutes",
)

LIMIT_CATALOGUE: tuple[Metric, ...] = (
    LIMIT_DENIALS,
    TENANT_DENIALS,
    LIMIT_STORE_UP,
    LIMIT_DEGRADED,
)
CLASS_CATALOGUE: tuple[Metric, ...] = (CLASS_FIRST_TOKEN, CLASS_REQUESTS, CLASS_PREEMPTED)
