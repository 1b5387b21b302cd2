"""`headway serve` as a process: start, failure to start, graceful end."""

import asyncio
import contextlib
import fcntl
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from headway.app.fleet import served_names
from headway.app.gateway import fit_connections
from headway.app.settings import Settings
from headway.service.gateway.settings import GatewaySettings
from tests.no_tls import NO_TLS
from tests.ports import free_port
from tests.unit.service.gateway.fakes import CHAT, HI, reset, run
from tests.unit.service.loaders.samples import tiny

DEADLINE_S = 60.0


class Process:
    """A running server; its two outputs are read as they come."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.port = port
        url = f"http://127.0.0.1:{port}"
        self.client = httpx.AsyncClient(base_url=url, timeout=DEADLINE_S, verify=NO_TLS)

    async def answers(self, path: str, status: int) -> httpx.Response:
        """Poll until the path answers with the status."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                with contextlib.suppress(httpx.TransportError):
                    answer = await self.client.get(path)
                    if answer.status_code == status:
                        return answer
                await asyncio.sleep(0.01)

    async def ends(self) -> tuple[int, str, str]:
        """Exit code and both outputs."""
        async with asyncio.timeout(DEADLINE_S):
            out, err = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, out.decode(), err.decode()


@asynccontextmanager
async def server(
    mode: str, *options: str, port: int | None = None, environment: dict[str, str] | None = None
) -> AsyncGenerator[Process]:
    chosen = free_port() if port is None else port
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.unit.app.scripted_server", mode, "serve"),
        *("--port", str(chosen), *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )
    here = Process(process, chosen)
    try:
        yield here
    finally:
        await here.client.aclose()
        if process.returncode is None:
            process.kill()
            await process.communicate()


@pytest.fixture
def model(tmp_path: Path) -> str:
    return tiny(tmp_path / "tiny.gguf")


@pytest.mark.spec("L5")
def test_sigterm_lets_streams_end_and_refuses_new_ones_reload_canary_03(model: str) -> None:
    async def scenario() -> None:
        async with server("ready", "--model", model) as here:
            await here.answers("/ready", 200)
            body = HI | {"stream": True, "max_tokens": 60}
            streams = [asyncio.create_task(here.client.post(CHAT, json=body)) for _ in range(3)]
            whole = asyncio.create_task(here.client.post(CHAT, json=HI | {"max_tokens": 60}))
            await busy(here, 4)
            here.process.send_signal(signal.SIGTERM)
            await here.answers("/ready", 503)
            refused = await here.client.post(CHAT, json=HI)
            assert refused.status_code == 503
            assert refused.headers["retry-after"].isdigit()
            for stream in streams:
                text = (await stream).text
                assert text.count('"content":"x"') == 60
                assert text.endswith("data: [DONE]\n\n")
            assert (await whole).status_code == 200
            code, _, err = await here.ends()
            assert code == 0
            assert "engine stopped" in err

    run(scenario())


async def busy(here: Process, count: int) -> None:
    """Wait until so many requests are under way."""
    async with asyncio.timeout(DEADLINE_S):
        wanted = re.compile(rf"^headway_requests_in_flight\{{.*\}} {count}\.0$", re.MULTILINE)
        while not wanted.search((await here.client.get("/metrics")).text):
            await asyncio.sleep(0.01)


def test_streams_over_the_limit_end_with_an_error_event_reload_canary_03(model: str) -> None:
    async def scenario() -> None:
        options = ("--model", model, "--shutdown-timeout", "0.3")
        async with server("ready", *options) as here:
            await here.answers("/ready", 200)
            body = HI | {"stream": True, "max_tokens": 100}
            stream = asyncio.create_task(here.client.post(CHAT, json=body))
            whole = asyncio.create_task(here.client.post(CHAT, json=HI | {"max_tokens": 100}))
            await busy(here, 2)
            here.process.send_signal(signal.SIGINT)
            text = (await stream).text
            assert text.count('data: {"error"') == 1
            assert "[DONE]" not in text
            assert (await whole).status_code == 503
            assert (await here.ends())[0] == 0

    run(scenario())


def test_a_second_signal_ends_now_with_0(model: str) -> None:
    async def scenario() -> None:
        async with server("ready", "--model", model) as here:
            await here.answers("/ready", 200)
            body = HI | {"stream": True, "max_tokens": 100}
            stream = asyncio.create_task(here.client.post(CHAT, json=body))
            await busy(here, 1)
            here.process.send_signal(signal.SIGTERM)
            await here.answers("/ready", 503)
            here.process.send_signal(signal.SIGTERM)
            code, _, _ = await here.ends()
            assert code == 0
            assert '"error"' in (await stream).text, "it did not wait for the stream's end"

    run(scenario())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_loading_ends_with_0(model: str, number: signal.Signals) -> None:
    async def scenario() -> None:
        async with server("loading", "--model", model) as here:
            await here.answers("/health", 200)
            here.process.send_signal(number)
            assert (await here.ends())[0] == 0

    run(scenario())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_model_is_fetched_ends_with_0_and_no_traceback(
    tmp_path: Path, number: signal.Signals
) -> None:
    async def scenario() -> None:
        with open(tmp_path / ".lock", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # as if another process fetched it
            async with server("ready", "--cache-dir", str(tmp_path)) as here:
                async with asyncio.timeout(DEADLINE_S):
                    while str(lock.name) not in open_files(here.process.pid):
                        await asyncio.sleep(0.01)
                here.process.send_signal(number)
                code, _, err = await here.ends()
                assert code == 0
                assert "Traceback" not in err

    run(scenario())


def open_files(pid: int) -> list[str]:
    return [file.path for file in psutil.Process(pid).open_files()]


def test_while_loading_it_is_alive_not_ready_and_refuses(model: str) -> None:
    async def scenario() -> None:
        async with server("loading", "--model", model) as here:
            await here.answers("/health", 200)
            ready = await here.client.get("/ready")
            assert ready.status_code == 503
            assert ready.json() == {"state": "starting", "reason": "loading weights 40 %"}
            refused = await here.client.post(CHAT, json=HI)
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "7"

    run(scenario())


def test_once_ready_it_prints_what_a_person_needs(model: str) -> None:
    async def scenario() -> None:
        async with server("ready", "--model", model, "--served-model-name", "a", "b") as here:
            await here.answers("/ready", 200)
            names = [entry["id"] for entry in (await here.client.get("/v1/models")).json()["data"]]
            assert names == ["a", "b"]
            here.process.send_signal(signal.SIGTERM)
            code, out, _ = await here.ends()
            assert code == 0
            for part in (
                f"http://127.0.0.1:{here.port}",
                "model       a (scripted)",
                "context     128 tokens",
                "KV cache    1024 tokens",
                f"curl http://127.0.0.1:{here.port}/v1/chat/completions",
            ):
                assert part in out

    run(scenario())


async def one_line(mode: str, *options: str, port: int | None = None) -> str:
    """The one line on stderr with which the start fails, and exit code 2."""
    async with server(mode, *options, port=port) as here:
        code, out, err = await here.ends()
        assert code == 2
        assert out == ""
        lines = [line for line in err.splitlines() if line.startswith("headway serve: ")]
        assert (
            lines == [err.splitlines()[-1]]
            or lines == [line for line in err.splitlines() if "engine stopped" not in line][-1:]
        )
        return lines[0].removeprefix("headway serve: ")


def test_a_start_that_fails_is_one_line_with_the_cause_startup_config_01(
    model: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        missing = str(tmp_path / "none.gguf")
        assert (await one_line("ready", "--model", missing)).startswith(f"{missing}: ")
        broken = tmp_path / "broken.gguf"
        broken.write_bytes(b"GGUF" + b"\x00" * 10)
        assert (await one_line("ready", "--model", str(broken))).startswith(f"{broken}: ")
        said = await one_line("broken", "--model", model)
        assert said == "tiny.gguf: tensor 'x' is cut short; get the file again"
        said = await one_line("ready", "--model", model, "--block-size", "0")
        assert said.startswith("--block-size: must be a power of two")
        said = await one_line("ready", "--model", model, "--max-model-len", "9000")
        assert said.startswith("--max-model-len: 9000 is over the 128 tokens")
        said = await one_line("ready", "--model", model, "--frobnicate")
        assert said.startswith("--frobnicate: is not an option")
        said = await one_line("ready", "--config", str(tmp_path / "no.toml"))
        assert "cannot be read" in said

    run(scenario())


def test_a_port_in_use_is_one_line_at_once_startup_config_01(model: str) -> None:
    async def scenario() -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            said = await one_line("ready", "--model", model, port=port)
            assert said.startswith(f"--port: {port} is in use on 127.0.0.1")

    run(scenario())


def test_a_client_that_resets_does_not_disturb_the_others(model: str) -> None:
    async def scenario() -> None:
        async with server("ready", "--model", model) as here:
            await here.answers("/ready", 200)
            stays = asyncio.create_task(
                here.client.post(CHAT, json=HI | {"stream": True, "max_tokens": 10})
            )
            await busy(here, 1)
            reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
            writer.write(b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: t\r\nContent-Le")
            reset(writer)
            assert (await stays).text.endswith("data: [DONE]\n\n")
            del reader

    run(scenario())


def test_the_model_is_named_after_its_file_without_and_with_its_weights() -> None:
    for stem, names in {
        "SmolLM2-135M-Instruct.Q4_1": ("SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct.Q4_1"),
        "llama-7b-BF16": ("llama-7b", "llama-7b-BF16"),
        "model": ("model",),
        "phi-3": ("phi-3",),
    }.items():
        path = f"/x/{stem}.gguf"
        assert served_names(Settings(), path) == names
    chosen = Settings(served_model_name=("a", "b"))
    assert served_names(chosen, "/x/m.gguf") == ("a", "b")


def test_a_folder_is_named_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "Tiny-0.5B"
    folder.mkdir()
    assert served_names(Settings(), str(folder)) == ("Tiny-0.5B",)


def test_connections_never_need_more_files_than_the_process_may_open() -> None:
    fitted = fit_connections(GatewaySettings(max_connections=10**9))
    assert 1 <= fitted.max_connections < 10**9
    assert fit_connections(GatewaySettings(max_connections=5)).max_connections == 5
