"""What is told of reloads of the configuration, as Prometheus tells of its own."""

from headway.core.base.metrics import Kind, Metric

CONFIG_RELOADS = Metric(
    name="headway_config_reloads_total",
    kind=Kind.COUNTER,
    help="Reloads of the configuration file, by outcome: ok, refused",
    labels=("outcome",),
    unit="reloads",
)
CONFIG_RELOAD_SUCCESSFUL = Metric(
    name="headway_config_last_reload_successful",
    kind=Kind.GAUGE,
    help="1 when the last reload, or the start, was taken; 0: the configuration before is in force",
    labels=(),
    alert="== 0 for 5 minutes: the file is not what is in force; the log says reload_refused",
)
CONFIG_RELOAD_SECONDS = Metric(
    name="headway_config_last_reload_success_timestamp_seconds",
    kind=Kind.GAUGE,
    help="Unix time of the last reload that was taken, or of the start",
    labels=(),
    unit="s",
)
CONFIG_HASH = Metric(
    name="headway_config_hash",
    kind=Kind.GAUGE,
    help="48 bits of the SHA-256 of the file that is in force: the same where the file is",
    labels=(),
    alert="differs between gateways for 10 minutes: one was not reloaded",
)
MODELS_LEAVING = Metric(
    name="headway_config_leaving_models",
    kind=Kind.GAUGE,
    help="Models that a reload has left out and that requests from before are still under way at",
    labels=(),
    unit="models",
)

RELOAD_CATALOGUE: tuple[Metric, ...] = (
    CONFIG_RELOADS,
    CONFIG_RELOAD_SUCCESSFUL,
    CONFIG_RELOAD_SECONDS,
    CONFIG_HASH,
    MODELS_LEAVING,
)
