"""Server-sent events as bytes."""

HEADERS = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),  # nginx: pass events on at once
)
KEEPALIVE = b": keepalive\n\n"  # a comment: clients ignore it
DONE = b"data: [DONE]\n\n"


def event(data: bytes) -> bytes:
    """One event; `data` is JSON on one line."""
    return b"data: " + data + b"\n\n"
