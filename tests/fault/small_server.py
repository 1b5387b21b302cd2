"""A server that another one starts: `small_server.py PORT FILE [MODE]`.

It answers every GET with 200, has a child that would outlive it, and writes both pids to FILE.
MODE `deaf` ignores SIGTERM; `sick` answers 500.
"""

import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PORT, FILE, MODE = int(sys.argv[1]), Path(sys.argv[2]), (sys.argv[3:] or [""])[0]


class Handler(BaseHTTPRequestHandler):
    """Answers probes."""

    def do_GET(self) -> None:
        """A health, good or bad."""
        self.send_response(500 if MODE == "sick" else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    if MODE == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "1000"])
    written = FILE.with_suffix(".part")
    written.write_text(f"{os.getpid()} {child.pid}")
    written.replace(FILE)
    ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
