"""What is counted of loads and unloads; the rest of the catalogue is in `core.base.metrics`."""

from headway.core.base.metrics import OWN, Kind, Metric

MODEL_LOADS = Metric(
    name="headway_model_loads_total",
    kind=Kind.COUNTER,
    help="Times the model was loaded, by outcome: ok, failed; restarts after a death apart",
    labels=(*OWN, "outcome"),
    unit="loads",
    alert='outcome "failed" > 0 in 10 minutes',
)
MODEL_UNLOADS = Metric(
    name="headway_model_unloads_total",
    kind=Kind.COUNTER,
    help="Times the model was unloaded because it was idle or drained",
    unit="unloads",
)
MODEL_LOAD_SECONDS = Metric(
    name="headway_model_load_seconds",
    kind=Kind.GAUGE,
    help="How long the last load took; what Retry-After goes by",
    unit="s",
)
MODEL_WAITING = Metric(
    name="headway_model_load_waiting_requests",
    kind=Kind.GAUGE,
    help="Requests that wait for the model to be loaded",
    unit="requests",
)

FLEET_CATALOGUE: tuple[Metric, ...] = (
    MODEL_LOADS,
    MODEL_UNLOADS,
    MODEL_LOAD_SECONDS,
    MODEL_WAITING,
)
