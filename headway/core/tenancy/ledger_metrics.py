"""What is counted of the ledger itself; one series a gateway."""

from headway.core.base.metrics import Kind, Metric

LEDGER_RECORDS = Metric(
    name="headway_ledger_records_total",
    kind=Kind.COUNTER,
    help="Records of requests: written to the store, or dropped because the spool was full or "
    "could not be written",
    labels=("state",),
    unit="records",
    alert='state "dropped" > 0 in 5 minutes',
)
LEDGER_LOST = Metric(
    name="headway_ledger_lost_requests_total",
    kind=Kind.COUNTER,
    help="Requests found open in the spool of a gateway that had died",
    labels=(),
    unit="requests",
)
LEDGER_DAMAGED = Metric(
    name="headway_ledger_damaged_frames_total",
    kind=Kind.COUNTER,
    help="Frames of a spool that could not be read back; the torn end of a file is not counted",
    labels=(),
    unit="frames",
    alert="> 0",
)
LEDGER_ERRORS = Metric(
    name="headway_ledger_write_errors_total",
    kind=Kind.COUNTER,
    help="Failed writes, to the spool or from it to the store",
    labels=("to",),
    unit="writes",
    alert="> 0 for 5 minutes",
)
LEDGER_SPOOL_BYTES = Metric(
    name="headway_ledger_spool_bytes",
    kind=Kind.GAUGE,
    help="Size of this gateway's spool",
    labels=(),
    unit="bytes",
    alert="> 80 % of --ledger-spool-bytes",
)
LEDGER_LAG = Metric(
    name="headway_ledger_lag_seconds",
    kind=Kind.GAUGE,
    help="For how long the store has been behind the spool",
    labels=(),
    unit="s",
    alert="> 60",
)

LEDGER_CATALOGUE: tuple[Metric, ...] = (
    LEDGER_RECORDS,
    LEDGER_LOST,
    LEDGER_DAMAGED,
    LEDGER_ERRORS,
    LEDGER_SPOOL_BYTES,
    LEDGER_LAG,
)
