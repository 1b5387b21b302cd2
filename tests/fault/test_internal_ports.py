"""What listens between our processes, and what happens to bytes that are no message."""

import ast
import asyncio
import logging
import os
import pickle
import socket
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

from headway.core.base.units import Seconds
from headway.core.messages.health import Heartbeat, Report
from headway.core.messages.path import Cancel, Finished
from headway.service.control.supervise import Supervisor
from headway.service.wire import codec
from headway.service.wire.zmq import ReplicaLink, ServerLink
from tests.fault.processes import ROOT, pid_of, supervised, until
from tests.fault.scripted import request

# A ZMTP 3 greeting with the NULL mechanism, then a frame that claims 2 GiB.
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
HUGE_FRAME = GREETING + b"\x02" + (2**31).to_bytes(8, "big") + b"x" * 1000


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


def sockets_of(supervisor: Supervisor) -> list[str]:
    """Paths of the Unix sockets that this process listens on for its replica."""
    assert pid_of(supervisor)
    paths = [str(connection.laddr) for connection in psutil.Process().net_connections("unix")]
    return sorted({path for path in paths if "/replica-" in path})


def test_security_deserialization_01_garbage_on_the_sockets_changes_nothing(
    short_folder: Path,
) -> None:
    pwned = short_folder / "pwned"
    garbage = [pickle.dumps(Touch(pwned)), os.urandom(4096), HUGE_FRAME, GREETING]

    async def test() -> None:
        async with supervised(step_s=0.001) as supervisor:
            await supervisor.wait_ready()
            pid, before = pid_of(supervisor), psutil.Process().memory_info().rss
            paths = sockets_of(supervisor)
            assert len(paths) == 2
            for path in paths:
                for data in garbage:
                    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as intruder:
                        intruder.connect(path)
                        intruder.settimeout(60.0)
                        send_or_be_cut_off(intruder, data)
            mailbox = supervisor.call(request(max_tokens=3))
            while not isinstance(await mailbox.get(), Finished):
                pass
            assert pid_of(supervisor) == pid
            assert psutil.Process().memory_info().rss - before < 64 * 1024 * 1024

    run(test())
    assert not pwned.exists()


def send_or_be_cut_off(intruder: socket.socket, data: bytes) -> None:
    try:
        intruder.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        return


def listening(pid: int) -> set[object]:
    """Network addresses that a process accepts connections on."""
    found = psutil.Process(pid).net_connections(kind="inet")
    return {c.laddr for c in found if c.status == psutil.CONN_LISTEN or not c.raddr}


def test_security_deserialization_01_nothing_listens_on_a_network() -> None:
    async def test() -> None:
        before = listening(os.getpid())  # other tests of this run may have servers
        async with supervised() as supervisor:
            await supervisor.wait_ready()
            assert listening(pid_of(supervisor)) == set()
            assert listening(os.getpid()) == before
            assert len(sockets_of(supervisor)) == 2, "it is the files that it listens on"

    run(test())


def test_security_deserialization_01_bad_frames_are_dropped_with_one_log_line_each(
    short_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pwned = short_folder / "pwned"
    beat = Heartbeat(at=Seconds(1.0), num_steps=1, since_progress_s=0.0)
    bad = [b"", pickle.dumps(Touch(pwned)), os.urandom(64), b"\x63" + codec.encode(beat)[1:]]

    async def test() -> None:
        received: list[Report] = []
        server = ServerLink(short_folder, "replica")
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        peer = context.socket(zmq.PAIR)
        try:
            server.listen(received.append)
            peer.connect(server.reports_address)
            for frame in (*bad, codec.encode(beat)):
                peer.send(frame)
            await until(lambda: bool(received), "the one good frame has come")
            assert received == [beat]
        finally:
            context.destroy(linger=0)
            server.close()

    with caplog.at_level(logging.WARNING):
        run(test())
    dropped = [record for record in caplog.records if record.message == "bad_frame_dropped"]
    assert len(dropped) == len(bad)
    assert not pwned.exists()


def test_security_deserialization_01_a_replica_drops_bad_commands_and_hears_the_next(
    short_folder: Path,
) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    peer = context.socket(zmq.PAIR)
    try:
        peer.bind(f"ipc://{short_folder}/commands")
        link = ReplicaLink(f"ipc://{short_folder}/commands", f"ipc://{short_folder}/reports")
        for frame in (b"", pickle.dumps(Touch(short_folder / "pwned")), os.urandom(64)):
            peer.send(frame)
        peer.send(codec.encode(Cancel(request_id="r1")))
        assert link.receive() == Cancel(request_id="r1")
        assert not (short_folder / "pwned").exists()
        receiver = threading.Thread(target=link.receive)
        receiver.start()
        link.close()  # wakes the receiver, which would otherwise wait for ever
        receiver.join()
    finally:
        context.destroy(linger=0)


def test_security_deserialization_01_no_module_can_unpickle_what_comes_in() -> None:
    modules = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "multiprocessing"}
    calls = {"recv_pyobj", "send_pyobj", "recv_multipart_pyobj"}
    found: list[str] = []
    sources = sorted((ROOT / "headway").rglob("*.py"))
    assert len(sources) > 20
    for path in sources:
        for node in ast.walk(ast.parse(path.read_text())):
            names: set[str] = set()
            if isinstance(node, ast.Import):
                names = {alias.name.split(".")[0] for alias in node.names} & modules
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = {node.module.split(".")[0]} & modules
            elif isinstance(node, ast.Attribute):
                names = {node.attr} & calls
                if isinstance(node.value, ast.Name) and (node.value.id, node.attr) == (
                    "torch",
                    "load",
                ):
                    names = {"torch.load"}
            found += [f"{path.relative_to(ROOT)}: {name}" for name in names]
    assert found == []
