"""Structured logging: one line a record, an event name and its fields, to stderr.

    log = logging.getLogger(__name__)
    log.warning("replica_lost", extra={"pid": pid, "cause": cause})

gives `2026-01-31T12:00:00.123Z WARNING replica_lost cause="killed by SIGKILL" pid=17`. An
exception is logged by its type and the place where it was raised. Its message and its
traceback are not: they may quote what a client sent.
"""

import datetime
import json
import logging
import sys
import traceback
from typing import TextIO

# What every record has by itself; the rest of its dictionary came through `extra`.
_OWN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+.:/@%,")

# Libraries that tell of each start or each call; what they have to warn of is let through.
TALKATIVE = ("alembic", "httpx")


def place_of(error: BaseException) -> str:
    """Where an exception was raised, as `file.py:12 in function`; nothing of its message."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "unknown place"
    last = frames[-1]
    path = "/".join(last.filename.rsplit("/", 3)[-3:])
    return f"{path}:{last.lineno} in {last.name}"


class LineFormatter(logging.Formatter):
    """Formats a record as one line of `key=value` fields, or of JSON."""

    def __init__(self, *, as_json: bool = False) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line; line breaks inside a value are escaped."""
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        at = when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        fields = _fields_of(record)
        if self._as_json:
            head = {"at": at, "level": record.levelname, "event": record.getMessage()}
            return json.dumps(head | fields, default=str)
        pairs = (f"{name}={_plain(value)}" for name, value in sorted(fields.items()))
        return " ".join((at, record.levelname, _plain(record.getMessage()), *pairs))


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    fields = {k: v for k, v in vars(record).items() if k not in _OWN_FIELDS}
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        fields["exception"] = type(error).__name__
        fields["place"] = place_of(error)
    return fields


def _plain(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return text if text and _PLAIN.issuperset(text) else json.dumps(text, ensure_ascii=False)


def configure(level: str = "info", *, as_json: bool = False, stream: TextIO | None = None) -> None:
    """Send every logger's records to `stream` (stderr) as lines; replaces earlier handlers.

    level is one of debug, info, warning, error. Raises ValueError for another.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter(as_json=as_json))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
