"""Servers that the gateway starts itself: waited for, started again, and ended with all below."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from headway.core.base.errors import StartError
from headway.service.observe.clock import SystemClock
from headway.service.upstream.pool import UpstreamPool
from headway.service.upstream.settings import UpstreamSettings
from headway.service.wire.transport import ReplicaState
from tests.e2e.server import free_port
from tests.fault.processes import ROOT

SERVER = Path(__file__).with_name("small_server.py")
LAUNCHING = Path(__file__).with_name("launching.py")
DEADLINE_S = 90.0  # only ever reached by a test that fails


async def until(claim: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not claim():
            await asyncio.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def pids_of(file: Path) -> list[int]:
    return [int(word) for word in file.read_text().split()] if file.exists() else []


@asynccontextmanager
async def launched(file: Path, *mode: str, **fields: Any) -> AsyncIterator[UpstreamPool]:
    given = {"probe_interval": 0.05, "stop_timeout": 5.0, "health_path": "/health", **fields}
    settings = UpstreamSettings(
        name="m",
        url=f"http://127.0.0.1:{free_port()}",
        launch=(sys.executable, str(SERVER), "{port}", str(file), *mode),
        **given,
    )
    pool = UpstreamPool(settings, None, None, SystemClock())
    pool.start()
    try:
        yield pool
    finally:
        await pool.stop()


def is_ready(pool: UpstreamPool) -> bool:
    return pool.view().state is ReplicaState.READY


def test_it_is_started_waited_for_and_ended_with_its_children(tmp_path: Path) -> None:
    async def scenario() -> None:
        file = tmp_path / "pids"
        async with launched(file) as pool:
            assert not is_ready(pool)
            await until(lambda: is_ready(pool))
            pids = pids_of(file)
            assert all(is_alive(pid) for pid in pids)
        assert len(pids) == 2
        await until(lambda: not any(is_alive(pid) for pid in pids))

    asyncio.run(scenario())


def test_one_that_is_killed_is_started_again_and_left_out_meanwhile(tmp_path: Path) -> None:
    async def scenario() -> None:
        file = tmp_path / "pids"
        async with launched(file) as pool:
            await until(lambda: is_ready(pool))
            first, orphan = pids_of(file)
            os.kill(first, signal.SIGKILL)
            await until(lambda: not is_ready(pool))
            await until(lambda: is_ready(pool))
            assert pids_of(file)[0] != first
            await until(lambda: not is_alive(orphan))
            (starts,) = [s.value for s in pool.samples() if s.metric.name.endswith("starts_total")]
            assert starts == 2

    asyncio.run(scenario())


def test_one_that_ignores_the_request_to_end_is_killed(tmp_path: Path) -> None:
    async def scenario() -> None:
        file = tmp_path / "pids"
        async with launched(file, "deaf", stop_timeout=0.2) as pool:
            await until(lambda: is_ready(pool))
            pids = pids_of(file)
        assert not is_alive(pids[0])
        await until(lambda: not is_alive(pids[1]))

    asyncio.run(scenario())


def test_one_that_never_gets_well_is_started_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        file = tmp_path / "pids"
        async with launched(file, "sick", launch_timeout=2.0) as pool:
            await until(lambda: pids_of(file))
            first = pids_of(file)[0]
            await until(lambda: pids_of(file)[0] != first)
            await until(lambda: not is_alive(first))
            assert not is_ready(pool)

    asyncio.run(scenario())


def test_a_program_that_is_not_there_is_tried_again_and_harms_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = UpstreamSettings(
            name="m", url=f"http://127.0.0.1:{free_port()}", launch=(str(tmp_path / "none"),)
        )
        pool = UpstreamPool(settings, None, None, SystemClock())
        pool.start()
        await pool.wait_probed()
        assert not is_ready(pool)
        await pool.stop()

    asyncio.run(scenario())


def test_a_gateway_that_is_killed_leaves_none_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        file = tmp_path / "pids"
        url = f"http://127.0.0.1:{free_port()}"
        command = [sys.executable, str(LAUNCHING), url]
        command += [sys.executable, str(SERVER), "{port}", str(file)]
        gateway = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
        try:
            await until(lambda: pids_of(file))
            pids = pids_of(file)
        finally:
            gateway.kill()
            gateway.wait()
        await until(lambda: not any(is_alive(pid) for pid in pids))

    asyncio.run(scenario())


def test_who_waits_for_its_answer_is_told_of_a_process_that_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = UpstreamSettings(
            name="m",
            url=f"http://127.0.0.1:{free_port()}",
            launch=(sys.executable, "-c", "raise SystemExit(3)"),
            health_path="/health",
        )
        pool = UpstreamPool(settings, None, None, SystemClock())
        pool.start()
        try:
            with pytest.raises(StartError, match="its process ended"):
                await pool.wait_answers()
        finally:
            await pool.stop()
        async with launched(tmp_path / "pids") as well:
            await well.wait_answers()
            assert well.replicas[0].is_healthy

    asyncio.run(scenario())
