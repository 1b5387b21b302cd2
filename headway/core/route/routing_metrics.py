"""What is counted of decisions about routes; the rest is in `core.base.metrics`."""

from headway.core.base.metrics import OWN, Kind, Metric

ROUTED = Metric(
    name="headway_routed_requests_total",
    kind=Kind.COUNTER,
    help="Requests by the name they asked for, the version they got, and why; see x-headway-route",
    labels=(*OWN, "route", "version", "reason"),
    unit="requests",
)
ROUTE_AVOIDED = Metric(
    name="headway_route_avoided_total",
    kind=Kind.COUNTER,
    help="Requests that were to go to this model and went elsewhere, as it could not answer",
    labels=(*OWN, "route"),
    unit="requests",
    alert="> 0 in 5 minutes: a version is down and another one carries its traffic",
)
DEGRADED = Metric(
    name="headway_degraded_requests_total",
    kind=Kind.COUNTER,
    help="Requests that got a lesser answer than this model's: model, max_tokens, answer",
    labels=(*OWN, "kind"),
    unit="requests",
    alert='kind "answer" > 0 in 5 minutes',
)
CONGESTED = Metric(
    name="headway_model_congested",
    kind=Kind.GAUGE,
    help="1 while requests of the class are degraded rather than sent to this model",
    labels=(*OWN, "slo_class"),
)
CASCADES = Metric(
    name="headway_cascade_requests_total",
    kind=Kind.COUNTER,
    help="Requests this model answered first: kept, or escalated by logprob, length, empty, "
    "unscored (its server told no log-probabilities), unfit (it cannot take the request), error",
    labels=(*OWN, "outcome"),
    unit="requests",
)
ESCALATION_RATE = Metric(
    name="headway_cascade_escalation_rate",
    kind=Kind.GAUGE,
    help="Requests that were escalated over those this model answered first, since the start",
    unit="ratio 0 to 1",
)

ROUTING_CATALOGUE: tuple[Metric, ...] = (
    ROUTED,
    ROUTE_AVOIDED,
    DEGRADED,
    CONGESTED,
    CASCADES,
    ESCALATION_RATE,
)
