"""Writing to a client's connection at once, past ASGI's messages."""

from collections.abc import Iterable

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

Header = tuple[bytes, bytes]


class DirectWriter:
    """Writes parts of one chunked answer as uvicorn's own cycle would, in one call each.

    Most of what a token costs is waking tasks and passing messages. `begin` and `push` are False
    where something has to wait, or nobody is there: then nothing was written.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def take_body(self) -> bytes | None:
        """The request's whole body, once; None where ASGI has to be asked."""
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected or cycle.response_complete:
            return None
        cycle.flow.resume_reading()
        cycle.message_event.clear()  # told by it next: that the client is gone
        body, cycle.body = bytes(cycle.body), bytearray()
        return body

    def begin(self, headers: Iterable[Header], data: bytes) -> bool:
        """Write the header of a 200 and the first part of its body, as one packet if they fit."""
        cycle = self._cycle
        if cycle.response_started or not self._may_write():
            return False
        lines = [STATUS_LINE[200]]
        for name, value in (*cycle.default_headers, *headers):
            lines += (name, b": ", value, b"\r\n")
        if not cycle.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"transfer-encoding: chunked\r\n\r\n")
        cycle.response_started = cycle.chunked_encoding = True
        cycle.waiting_for_100_continue = False
        cycle.transport.write(b"".join(lines) + _chunk(data))
        return True

    def push(self, data: bytes) -> bool:
        """Write a further part."""
        cycle = self._cycle
        if not cycle.chunked_encoding or cycle.response_complete or not self._may_write():
            return False
        cycle.transport.write(_chunk(data))
        return True

    def _may_write(self) -> bool:
        cycle = self._cycle
        is_gone = cycle.disconnected or cycle.transport.is_closing()
        return not (is_gone or cycle.flow.write_paused)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
