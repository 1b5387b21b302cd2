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

CLASS_CATALOGUE: tuple[Metric, ...] = (CLASS_FIRST_TOKEN, CLASS_REQUESTS, CLASS_PREEMPTED)
