"""What is counted of requests that go to other servers; the rest is in `core.base.metrics`."""

from headway.core.base.metrics import OWN, Kind, Metric

OF_REPLICA = (*OWN, "replica")  # host:port of one upstream

UPSTREAM_UP = Metric(
    name="headway_upstream_up",
    kind=Kind.GAUGE,
    help="1 while requests are sent to this upstream, 0 while it is left out",
    labels=OF_REPLICA,
    alert="0 for 2 minutes",
)
UPSTREAM_IN_FLIGHT = Metric(
    name="headway_upstream_in_flight_requests",
    kind=Kind.GAUGE,
    help="Requests that this gateway has at this upstream now",
    labels=OF_REPLICA,
    unit="requests",
)
UPSTREAM_WAITING = Metric(
    name="headway_upstream_waiting_requests",
    kind=Kind.GAUGE,
    help="Requests that wait here for a free upstream",
    unit="requests",
)
UPSTREAM_ATTEMPTS = Metric(
    name="headway_upstream_attempts_total",
    kind=Kind.COUNTER,
    help="Requests sent to this upstream, by outcome: ok, refused (the request's own fault), "
    "busy, failed, cancelled; a request that is tried twice counts twice",
    labels=(*OF_REPLICA, "outcome"),
    unit="requests",
    alert='outcome "failed" > 5 % for 5 minutes',
)
UPSTREAM_RETRIES = Metric(
    name="headway_upstream_retries_total",
    kind=Kind.COUNTER,
    help="Requests that were sent again, to another upstream, before anything of an answer came",
    unit="requests",
)
UPSTREAM_ESTIMATED = Metric(
    name="headway_upstream_estimated_usage_total",
    kind=Kind.COUNTER,
    help="Answers whose upstream told no usage, so that their tokens were estimated",
    unit="requests",
)
UPSTREAM_TOLD_RUNNING = Metric(
    name="headway_upstream_told_running_requests",
    kind=Kind.GAUGE,
    help="Requests that this upstream says it runs, whoever sent them",
    labels=OF_REPLICA,
    unit="requests",
)
UPSTREAM_TOLD_WAITING = Metric(
    name="headway_upstream_told_waiting_requests",
    kind=Kind.GAUGE,
    help="Requests that this upstream says wait inside it, whoever sent them",
    labels=OF_REPLICA,
    unit="requests",
)
UPSTREAM_TOLD_KV = Metric(
    name="headway_upstream_told_kv_usage",
    kind=Kind.GAUGE,
    help="How full this upstream says its KV cache is",
    labels=OF_REPLICA,
    unit="ratio 0 to 1",
)
UPSTREAM_STARTS = Metric(
    name="headway_upstream_process_starts_total",
    kind=Kind.COUNTER,
    help="Times that this gateway started the upstream's process (`launch`)",
    labels=OF_REPLICA,
    unit="starts",
    alert="> 2 in 10 minutes",
)

UPSTREAM_CATALOGUE: tuple[Metric, ...] = (
    UPSTREAM_UP,
    UPSTREAM_IN_FLIGHT,
    UPSTREAM_WAITING,
    UPSTREAM_ATTEMPTS,
    UPSTREAM_RETRIES,
    UPSTREAM_ESTIMATED,
    UPSTREAM_TOLD_RUNNING,
    UPSTREAM_TOLD_WAITING,
    UPSTREAM_TOLD_KV,
    UPSTREAM_STARTS,
)
