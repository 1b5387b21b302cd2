"""What is counted of the replicas of a pool; the rest of the catalogue is in `core.base.metrics`.

`engine` is a replica's number within its pool, from 0 on.
"""

from headway.core.base.metrics import OWN, Kind, Metric

REPLICA = (*OWN, "engine")

LOAD_BALANCE_SKEW = Metric(
    name="model_load_balance_skew",
    kind=Kind.GAUGE,
    help="Tokens that the busiest replica computed in the last 60 s over the mean of all, less 1; "
    "0 with one replica",
    unit="ratio",
    alert="> 0.3",
)
REPLICA_READY = Metric(
    name="headway_replica_ready",
    kind=Kind.GAUGE,
    help="1 while the replica can answer, else 0",
    labels=REPLICA,
    alert="0 for 5 minutes",
)
REPLICA_EJECTED = Metric(
    name="headway_replica_ejected",
    kind=Kind.GAUGE,
    help="1 while the replica gets nothing because it failed requests, else 0",
    labels=REPLICA,
    alert="1 for 5 minutes",
)
REPLICA_RESTARTS = Metric(
    name="headway_replica_restarts_total",
    kind=Kind.COUNTER,
    help="Times the replica's process was started again after a death",
    labels=REPLICA,
    unit="restarts",
)
REPLICA_IN_FLIGHT = Metric(
    name="headway_replica_requests_in_flight",
    kind=Kind.GAUGE,
    help="Requests that were sent to the replica and have not ended there",
    labels=REPLICA,
    unit="requests",
)
REPLICA_WORK = Metric(
    name="headway_replica_expected_work_seconds",
    kind=Kind.GAUGE,
    help="How long the replica would take to end what it has, as its router expects",
    labels=REPLICA,
    unit="s",
)
ROUTED = Metric(
    name="headway_replica_choices_total",
    kind=Kind.COUNTER,
    help="Requests sent to a replica, by reason: load, prefix (it knows the prompt and others had "
    "less work)",
    labels=(*OWN, "reason"),
    unit="requests",
)
RETRIED = Metric(
    name="headway_requests_retried_total",
    kind=Kind.COUNTER,
    help="Requests sent to another replica before their first token",
    unit="requests",
)
CONTINUED = Metric(
    name="headway_requests_continued_total",
    kind=Kind.COUNTER,
    help="Requests that went on at another replica after their first token",
    unit="requests",
)
BROKEN = Metric(
    name="headway_requests_broken_total",
    kind=Kind.COUNTER,
    help="Requests that were lost with their replica, and did not go on",
    unit="requests",
    alert="> 0 in 10 minutes",
)

ROUTE_CATALOGUE: tuple[Metric, ...] = (
    LOAD_BALANCE_SKEW,
    REPLICA_READY,
    REPLICA_EJECTED,
    REPLICA_RESTARTS,
    REPLICA_IN_FLIGHT,
    REPLICA_WORK,
    ROUTED,
    RETRIED,
    CONTINUED,
    BROKEN,
)
