"""A real `headway serve` with scripted engines, its configuration file, and reloads of it."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from tests.e2e.server import free_port

DEADLINE_S = 60.0  # only ever reached by a test that fails
CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 12}


class Serving:
    """The running server; its configuration is JSON, which is YAML too."""

    def __init__(self, folder: Path, config: Mapping[str, object], port: int) -> None:
        self.file = folder / "headway.yaml"
        self.log = folder / "server.log"
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_S)
        self.pid = 0
        self.write(config)

    def write(self, config: Mapping[str, object]) -> None:
        """Another configuration, not reloaded yet; a key a line."""
        self.file.write_text(json.dumps(config, indent=1))

    async def reload(self, config: Mapping[str, object]) -> str:
        """Write it and ask for a reload; the line of the log that says how that went."""
        known = len(self.told())
        self.write(config)
        os.kill(self.pid, signal.SIGHUP)
        await self.until(lambda: len(self.told()) > known)
        return self.told()[-1]

    def told(self) -> list[str]:
        """What the log says of reloads."""
        lines = self.log.read_text().splitlines()
        return [line for line in lines if re.search(r" (reloaded|reload_refused) ", line)]

    def stopped(self) -> list[str]:
        """Files of models whose engines have ended."""
        return re.findall(r"^engine stopped (\S+)$", self.log.read_text(), re.MULTILINE)

    async def until(self, claim: object) -> None:
        """Poll until it holds."""
        assert callable(claim)
        async with asyncio.timeout(DEADLINE_S):
            while not claim():
                await asyncio.sleep(0.01)

    async def stream(self, model: str) -> str:
        """The text of a streamed answer, which must be a whole one."""
        pieces, body = [], HI | {"model": model, "stream": True}
        async with self.client.stream("POST", CHAT, json=body) as answer:
            assert answer.status_code == 200, await answer.aread()
            lines = [line async for line in answer.aiter_lines() if line.startswith("data: ")]
        assert lines[-1] == "data: [DONE]", lines[-3:]
        for line in lines[:-1]:
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            pieces += [each["delta"].get("content") for each in event["choices"]]
        return "".join(piece for piece in pieces if piece)

    async def ask(self, model: str) -> httpx.Response:
        """A short answer."""
        return await self.client.post(CHAT, json=HI | {"model": model, "max_tokens": 1})

    async def names(self) -> list[str]:
        """Of all models."""
        return [each["id"] for each in (await self.client.get("/v1/models")).json()["data"]]

    async def metric(self, series: str) -> float | None:
        """One value of /metrics."""
        for line in (await self.client.get("/metrics")).text.splitlines():
            name, _, value = line.rpartition(" ")
            if name == series:
                return float(value)
        return None


@asynccontextmanager
async def serving(
    folder: Path, config: Mapping[str, object], *options: str, keys: Sequence[str] = ()
) -> AsyncIterator[Serving]:
    """The server from the moment it is ready until the block ends."""
    port = free_port()
    here = Serving(folder, config, port)
    with here.log.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.unit.app.scripted_server", "ready", "serve"),
            *("--port", str(port), "--config", str(here.file), *options),
            stdout=log,
            stderr=log,
            env=os.environ | {"XDG_DATA_HOME": str(folder / "data-home")},  # no other's records
        )
    here.pid = process.pid
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not await _is_ready(here):
                assert process.returncode is None, here.log.read_text()
                await asyncio.sleep(0.02)
        yield here
    finally:
        await here.client.aclose()
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DEADLINE_S):
                    await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, here.log.read_text()[-2000:]


async def _is_ready(here: Serving) -> bool:
    try:
        return (await here.client.get("/ready")).status_code == 200
    except httpx.TransportError:
        return False
