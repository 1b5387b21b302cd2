"""`headway bench overload`: simulated, and over HTTP against a small server in the test."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headway.app.bench_overload_client import counters, note_refusal
from headway.app.bench_overload_report import checks, show
from headway.app.bench_overload_sites import Phase, by_kind, preemptions
from headway.app.cli import main
from headway.core.messages.health import ReplicaStatus
from headway.core.sim.report import Outcome, Record
from tests.unit.app.sim_inputs import write_costs

TARGETS = {"vip": 0.5, "standard": 3.0}
SHORT = ["--prompt-len", "4:8", "--output-len", "2", "--disable-tqdm"]


def simulated(folder: Path, *options: str) -> dict[str, Any]:
    target = folder / "out.json"
    command = ["bench", "overload", "--simulate", "--cost-table", write_costs(folder)]
    assert main([*command, "--json", str(target), "--disable-tqdm", *options]) == 0
    found: dict[str, Any] = json.loads(target.read_text())
    return found


def test_every_request_is_answered_or_refused_at_every_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = simulated(tmp_path, "--minutes", "0.3", "--max-waiting-requests", "20")
    assert list(found["phases"]) == ["vip alone", "0.5 x", "1 x", "2 x"]
    for phase in found["phases"].values():
        total = phase["total"]
        assert total["answered"] + total["refused"] == total["sent"]
        assert total["lost"] == 0
    assert found["checks"]["lost"] == 0
    sent = {name: phase["total"]["sent"] for name, phase in found["phases"].items()}
    assert sent["2 x"] > 1.5 * sent["1 x"] > 1.5 * sent["0.5 x"]
    assert set(found["phases"]["2 x"]["groups"]) == {"vip", "standard", "internal"}
    assert set(found["phases"]["vip alone"]["groups"]) == {"vip"}
    assert "lost: 0" in capsys.readouterr().out


def test_vips_alone_are_those_of_the_highest_load(tmp_path: Path) -> None:
    found = simulated(tmp_path, "--minutes", "0.2", "--capacity", "4")
    alone = found["phases"]["vip alone"]["total"]["sent"]
    assert alone == found["phases"]["2 x"]["groups"]["vip"]["sent"] > 0
    assert found["capacity_requests_s"] == 4


class Handler(BaseHTTPRequestHandler):
    """Answers vips, refuses internals, and hangs up on the prompts of standards."""

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self.reply(200, b'# HELP x y\nrequest_preemption_count{kind="swap"} 3.0\nother 1\n')
        else:
            self.reply(200, b'{"data": [{"id": "tiny"}]}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["ignore_eos"] is True
        key = self.headers["Authorization"]
        if key == "Bearer k-vip":
            events: list[dict[str, Any]] = [{"choices": [{"text": "a"}]}]
            events += [{"choices": [{"text": "", "finish_reason": "length"}]}]
            events += [{"choices": [], "usage": {"completion_tokens": body["max_tokens"]}}]
            lines = b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in events)
            self.reply(200, lines + b"data: [DONE]\n\n")
        elif key == "Bearer k-internal":
            error = {"error": {"code": "overloaded", "message": "full"}}
            self.reply(503, json.dumps(error).encode(), ("Retry-After", "7"))
        else:
            self.close_connection = True

    def reply(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Patient(ThreadingHTTPServer):
    """A burst of connections waits, and none is reset."""

    request_queue_size = 256


@pytest.fixture
def url() -> Iterator[str]:
    server = Patient(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_client_counts_answers_refusals_and_losses(
    tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.json"
    keys = [
        part for name in ("vip", "standard", "internal") for part in ("--key", f"{name}=k-{name}")
    ]
    command = ["bench", "overload", "--base-url", url, "--capacity", "30", "--minutes", "0.01"]
    code = main([*command, *SHORT, *keys, "--json", str(target)])
    phase = json.loads(target.read_text())["phases"]["2 x"]
    assert code == 1, "requests were lost"
    groups = phase["groups"]
    assert groups["vip"]["answered"] == groups["vip"]["sent"] > 0
    assert groups["vip"]["output_tokens"] == 2 * groups["vip"]["sent"]
    assert groups["internal"]["refused"] == groups["internal"]["sent"] > 0
    assert groups["internal"]["reasons"] == {"503 overloaded": groups["internal"]["sent"]}
    assert groups["internal"]["retry_after_s"]["p50"] == 7.0
    assert groups["standard"]["lost"] == groups["standard"]["sent"] > 0
    assert phase["counters"] == {'request_preemption_count{kind="swap"}': 0.0}
    assert "503 overloaded" in capsys.readouterr().out


def test_a_server_that_is_not_there_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "overload", "--base-url", "http://127.0.0.1:9"]) == 2
    assert "no server answers at http://127.0.0.1:9" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--minutes", "0"], "--minutes"),
        (["--capacity", "-1"], "--capacity"),
        (["--base-url", "http://127.0.0.1:9", "--key", "king=x"], "--key"),
    ],
)
def test_bad_options_are_refused(
    capsys: pytest.CaptureFixture[str], options: list[str], problem: str
) -> None:
    assert main(["bench", "overload", *options]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "headers", "reason", "retry"),
    [
        (b'{"error": {"code": "queue_full"}}', {"retry-after": "2"}, "503 queue_full", 2.0),
        (b'{"error": {"type": "overloaded_error"}}', {}, "503 overloaded_error", None),
        (b"<html>", {}, "503 unknown", None),
        (b"{}", {"retry-after": "soon"}, "503 unknown, Retry-After is no number", None),
    ],
)
def test_a_refusal_is_noted_with_its_code_and_retry_time(
    body: bytes, headers: dict[str, str], reason: str, retry: float | None
) -> None:
    record = Record("a", "vip", 0.0)
    note_refusal(record, 503, headers, body)
    assert (record.outcome, record.reason) == (Outcome.REFUSED, reason)
    assert record.retry_after_s == retry


def test_counters_are_those_with_the_word_in_their_name() -> None:
    page = "# TYPE preempt counter\npreempt_total 2\npreempt_created 9\nother_total 5\n"
    assert counters(page, "preempt") == {"preempt_total": 2.0}


def test_preemptions_are_shown_by_class_and_kind_simulated_or_served() -> None:
    status = ReplicaStatus(
        num_running=0,
        num_waiting=0,
        waiting_tokens=0,
        total_blocks=1,
        free_blocks=1,
        cached_blocks=0,
        swapped_by_class=(0, 2, 3),
        recomputed_by_class=(0, 0, 4),
    )
    kinds = {"standard": {"swap": 2}, "internal": {"swap": 3, "recompute": 4}}
    assert by_kind(preemptions(status)) == kinds
    name = "headway_class_preempted_total"
    served = {
        f'{name}{{kind="swap",model="a",slo_class="standard"}}': 2.0,
        f'{name}{{kind="swap",model="b",slo_class="internal"}}': 3.0,
        f'{name}{{kind="recompute",model="b",slo_class="internal"}}': 4.0,
        'vllm:num_preemptions_total{model="a"}': 9.0,
    }
    assert by_kind(served) == kinds
    shown = show([Phase("2 x", 2.0, [answered("vip", 0.0, 0.2)], served)], 1.0, "m", TARGETS)
    assert (
        "2 x: preempted: 2 swap of standard, 3 swap of internal, 4 recompute of internal" in shown
    )


def answered(group: str, arrived: float, ttft: float) -> Record:
    times = [arrived + ttft]
    return Record(
        "a", group, arrived, token_times=times, finished=times[0] + 1, outcome=Outcome.ANSWERED
    )


def refused(group: str, after: float, retry: float | None) -> Record:
    return Record(
        "a", group, 0.0, finished=after, outcome=Outcome.REFUSED, reason="x", retry_after_s=retry
    )


def test_checks_compare_phases_of_one_run() -> None:
    phases = [
        Phase("vip alone", 2.0, [answered("vip", 0.0, 0.2)]),
        Phase("1 x", 1.0, [answered("vip", 0.0, 0.2), answered("standard", 0.0, 0.2)]),
        Phase(
            "2 x",
            2.0,
            [
                answered("vip", 0.0, 0.3),
                refused("standard", 4.0, 2.0),
                refused("internal", 9.0, None),
                Record("lost", "standard", 0.0),
            ],
            resident=[100] * 121 + [104],
        ),
    ]
    found = checks(phases, TARGETS)
    assert found.lost == 1
    assert found.vip_p99_over_alone == pytest.approx(1.5)
    assert found.vip_refused == 0
    assert (found.refusals, found.without_retry_after, found.after_target) == (2, 1, 1)
    assert found.resident_end_over_settled == pytest.approx(1.04)
    assert found.goodput_2x_over_1x == pytest.approx((1 / 9.0) / (2 / 1.2))
