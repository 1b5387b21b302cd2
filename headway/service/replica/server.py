"""A replica's process: its link to the server, its threads, and the engine's loop.

    main thread    loads the model, then runs the driver
    receiver       commands from the server into the driver's inbox
    heartbeat      once a second, also while loading and while a step runs
    parent watch   ends the process when the server is gone

The process ends with 0 after Stop, 1 when its loop failed, 2 when it could not start and
3 when its server has gone.
"""

import gc
import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from headway.core.base.clock import Clock
from headway.core.base.errors import StartError
from headway.core.base.units import Seconds
from headway.core.engine.executor import Executor
from headway.core.messages.health import (
    Heartbeat,
    LoadProgress,
    ReplicaFailed,
    ReplicaHello,
)
from headway.service.observe.log import place_of
from headway.service.replica.driver import Driver, DriverSettings, Engine
from headway.service.wire.spec import Launch
from headway.service.wire.zmq import ReplicaLink, remove_sockets

log = logging.getLogger(__name__)

EXIT_STOPPED = 0
EXIT_LOOP_FAILED = 1
EXIT_START_FAILED = 2
EXIT_PARENT_GONE = 3


class Loaded(NamedTuple):
    """A replica that is ready to run: what it computes with, and how it introduces itself."""

    engine: Engine
    executor: Executor
    hello: ReplicaHello
    block_bytes: int = 0  # of one KV block


Load = Callable[[Launch, Callable[[LoadProgress], None]], Loaded]


def serve(launch: Launch, load: Load, clock: Clock, parent_fd: int) -> int:
    """Load, introduce itself, run until told to stop; the process's exit code.

    parent_fd is the reading end of a pipe that the server holds open while it lives.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to handle
    start_thread("parent-watch", lambda: exit_with_parent(parent_fd, launch))
    link = ReplicaLink(launch.commands_address, launch.reports_address)
    replica = _Replica(link, clock)
    start_thread("receiver", replica.receive)
    start_thread("heartbeat", lambda: replica.beat(launch.heartbeat_s))
    code = replica.live(launch, load)
    replica.end()
    link.close()
    return code


class _Replica:
    """What the threads of one replica share."""

    def __init__(self, link: ReplicaLink, clock: Clock) -> None:
        self._link = link
        self._clock = clock
        self._driver: Driver | None = None
        self._running = threading.Event()  # the driver is there, or never will be
        self._ended = threading.Event()

    def live(self, launch: Launch, load: Load) -> int:
        """From loading to the end, in the main thread; what goes wrong is told to the server."""
        doing = "loading"
        try:
            loaded = load(launch, self._link.send)
            # What was made while loading stays: the collector need not look at it again.
            gc.collect()
            gc.freeze()
            # A service manager may signal every process of the server; ours ends when the
            # server, which lets its requests finish first, says so.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            doing = "running"
            settings = DriverSettings(
                depth=launch.spec.depth,
                check_when_idle=launch.spec.check_when_idle,
                weight_bytes=loaded.hello.weight_bytes,
                block_bytes=loaded.block_bytes,
            )
            self._driver = Driver(
                loaded.engine, loaded.executor, self._link.send, self._clock, settings
            )
            self._running.set()
            status = settings.with_memory(loaded.hello.status)
            self._link.send(msgspec.structs.replace(loaded.hello, status=status))
            log.info("model_loaded", extra={"load_s": loaded.hello.load_s})
            self._driver.run()
        except StartError as error:
            self._link.send(ReplicaFailed(message=error.message))
            return EXIT_START_FAILED
        except Exception as error:
            log.exception("replica_failed", extra={"while": doing})
            # Type and place only: a message may quote what a client sent.
            message = f"{type(error).__name__} while {doing}, at {place_of(error)}"
            self._link.send(ReplicaFailed(message=message))
            return EXIT_LOOP_FAILED
        return EXIT_STOPPED

    def receive(self) -> None:
        """Commands into the driver's inbox; they wait here until there is a driver."""
        while (command := self._link.receive()) is not None:
            self._running.wait()
            if self._driver is not None:
                self._driver.put(command)

    def beat(self, every_s: float) -> None:
        """A heartbeat at once and then every `every_s`."""
        while True:
            now = self._clock.now()
            steps, pending_s = (0, 0.0) if self._driver is None else self._driver.progress.read(now)
            self._link.send(Heartbeat(at=Seconds(now), num_steps=steps, since_progress_s=pending_s))
            if self._ended.wait(every_s):
                return

    def end(self) -> None:
        """Let the other threads go; a command that nobody waited for any more is dropped."""
        self._ended.set()
        self._running.set()


def start_thread(name: str, target: Callable[[], None]) -> None:
    """Run `target` in a thread that does not keep the process alive."""
    threading.Thread(target=target, name=name, daemon=True).start()


def exit_with_parent(fd: int, launch: Launch) -> None:
    """Wait until the other end of `fd` is closed, then end this process at once.

    The server holds that end and never writes to it again; the kernel closes it however the
    server dies. What a killed server left behind is removed; the rest goes with the process.
    """
    while os.read(fd, 4096):
        pass
    log.warning("server_gone", extra={"pid": os.getpid()})
    try:
        remove_sockets(launch.commands_address, launch.reports_address)
    finally:
        os._exit(EXIT_PARENT_GONE)
