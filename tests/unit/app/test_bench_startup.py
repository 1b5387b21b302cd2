"""`headway bench startup` around small programs that stand for a server."""

import argparse
import sys

import pytest

from headway.app.bench_startup import Start, figures, table, time_start
from headway.app.option_flags import flags_of
from headway.core.base.errors import StartError

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(int(sys.argv[1]))
        self.end_headers()
        self.wfile.write(b"data: {}\\n\\n")
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print("ready\\n  URL         http://127.0.0.1:%d\\n" % server.server_port, flush=True)
server.serve_forever()
"""


def test_a_start_is_timed_to_ready_and_to_the_first_event() -> None:
    start = time_start([sys.executable, "-c", SERVER, "200"])
    assert 0.0 < start.ready_s < start.first_token_s


def test_a_server_that_refuses_the_completion_is_an_error() -> None:
    with pytest.raises(StartError, match="answered 503"):
        time_start([sys.executable, "-c", SERVER, "503"])


def test_a_server_that_cannot_start_is_quoted() -> None:
    code = "import sys; print('first'); sys.exit('headway serve: no such file')"
    with pytest.raises(StartError, match="status 1 before it was ready: headway serve: no such"):
        time_start([sys.executable, "-c", code])


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(StartError, match="cannot start /nowhere/headway"):
        time_start(["/nowhere/headway"])


def test_options_of_serve_are_passed_on_as_they_were_given() -> None:
    args = argparse.Namespace(
        port="1", threads="2", enable_prefix_caching=False, served_model_name=["a", "b"]
    )
    assert sorted(flags_of(vars(args), ["port"])) == sorted(
        ["--served-model-name", "a", "b", "--threads", "2", "--no-enable-prefix-caching"]
    )


def test_starts_are_reported_in_seconds() -> None:
    starts = [Start(ready_s=1.0, first_token_s=2.0), Start(ready_s=2.0, first_token_s=4.0)]
    found = figures(starts)
    assert found["ready_s"] == {
        "mean": 1.5,
        "percentiles": {"50": 1.5, "90": pytest.approx(1.9), "99": pytest.approx(1.99)},
        "values": [1.0, 2.0],
    }
    shown = table(Start(ready_s=20.0, first_token_s=21.0), starts)
    assert "Cold: ready (s):                         20.00" in shown
    assert "P50 time to first token (s):             3.00" in shown
