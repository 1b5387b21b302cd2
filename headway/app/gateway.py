"""`headway serve`: one process with the HTTP side, which starts and watches the engine's."""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import time
import uuid
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

import msgspec
import uvloop

from headway import __version__
from headway.app.banner import Shown, banner
from headway.app.limits import TenantLimits
from headway.app.opening import AnyOpened, open_models
from headway.app.reload import Again, Reach, Reloader
from headway.app.reload_state import ReloadState
from headway.app.running import RunningModels
from headway.app.settings import Settings
from headway.app.settle import collect_less, give_back
from headway.app.stores import Stores, access_of, keeper_of, open_stores
from headway.core.tenancy.price import PriceTable
from headway.service.gateway.assemble import Assembled, GatewayNeeds, assemble
from headway.service.gateway.books import NoLedger
from headway.service.gateway.ledger import Keeper
from headway.service.gateway.lifecycle import (
    CLOSE_S,
    HttpServer,
    StopSignals,
    bind,
    bind_admin,
    url_of,
)
from headway.service.gateway.models import Models
from headway.service.gateway.server import Gateway
from headway.service.gateway.settings import GatewaySettings
from headway.service.loaders.progress import ConsoleProgress
from headway.service.observe import log
from headway.service.observe.clock import SystemClock

OTHER_FILES = 128  # descriptors that are not client connections
MOST_FILES = 65536
TICK_S = 1.0
END_NOW_S = 2.0  # for the engine's process after a second signal


class Opened(NamedTuple):
    """What was read and taken before anything slow began."""

    settings: Settings  # of the server; those of its models are their own
    listener: socket.socket
    given: Sequence[Settings]  # of each model, as they were read
    models: list[AnyOpened]
    progress: ConsoleProgress
    stores: Stores = Stores()
    admin_listener: socket.socket | None = None  # None: /admin is on the other one, or not at all
    again: Again | None = None


def serve(models: Sequence[Settings], again: Again | None = None) -> int:
    """Serve these models until a signal; the exit code.

    What belongs to the server is taken from the first one's settings. Raises StartError when it
    cannot start, KeyboardInterrupt for a signal before it serves.

    again   reads the settings anew, for a reload at SIGHUP; None: there is none
    """
    settings = models[0]
    log.configure(settings.log_level, as_json=settings.log_json)
    # Until the loop has handlers of its own; KeyboardInterrupt then unwinds what is half done.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings = msgspec.structs.replace(settings, gateway=fit_connections(settings.gateway))
    listener = bind(settings.gateway)
    progress, stores, admin_listener = ConsoleProgress(), Stores(), None
    try:
        admin_listener = bind_admin(settings.gateway)
        stores = open_stores(settings)
        own = open_models(models, progress)
        found = Opened(settings, listener, models, own, progress, stores, admin_listener, again)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(found))
    finally:
        progress.close()
        listener.close()
        if admin_listener is not None:
            admin_listener.close()
        stores.close()


def fit_connections(settings: GatewaySettings) -> GatewaySettings:
    """Allow this process as many open files as it may have, and no more connections than that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if limit > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    most = max(1, min(settings.max_connections, max(limit, soft) - OTHER_FILES))
    return msgspec.structs.replace(settings, max_connections=most)


async def _run(opened: Opened) -> int:
    return await _Process(opened).run()


async def _tick(models: Models) -> None:
    while True:
        for served in models.all:
            served.tick()
        await asyncio.sleep(TICK_S)


async def _until_stopped(servers: Sequence[HttpServer]) -> None:
    await asyncio.gather(*(server.run_until_stopped() for server in servers))


class _Process:
    """The parts of a running server, from start to end."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._began = time.monotonic()
        self._signals = StopSignals()
        self._clock = SystemClock()
        self._prices = PriceTable(opened.settings.prices.models)
        self._models = RunningModels(opened.given, opened.models, self._clock, opened.progress)
        self._reload_asked = asyncio.Event()
        self._name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._limits = TenantLimits(opened.settings.rate_limits, self._name)

    async def run(self) -> int:
        """Start, serve, end; raises StartError when the file is unfit or the engine's first
        start fails.
        """
        self._signals.install()
        if self._opened.again is not None:  # what is asked for before all is ready waits
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, self._reload_asked.set)
        self._models.start()
        self._limits.start()
        try:
            # The engines' processes start meanwhile; the thread leaves the loop to them.
            threads = self._opened.settings.gateway.encode_threads
            await asyncio.to_thread(self._models.read, self._models.all, threads)
            try:
                await self._serve_with_stores()
            finally:
                self._models.close()
        finally:
            await self._end_engines()
            await self._limits.close()
        return 0

    async def _serve_with_stores(self) -> None:
        """Put the gateway together, serve, and keep what is still to be kept."""
        opened = self._opened
        on_lost = self._limits.on_lost
        keeper = keeper_of(opened.settings, opened.stores, self._name, self._prices, on_lost)
        try:
            self._limits.remember_by(keeper)
            if opened.settings.prices.models:  # else nothing was spent
                await self._limits.recall_again()
            parts = self._assemble(keeper)
            try:
                await parts.load()
                await self._serve(parts)
            finally:
                parts.close()
        finally:
            if keeper is not None:
                await keeper.close()

    async def _serve(self, parts: Assembled) -> None:
        settings, listener = self._opened.settings.gateway, self._opened.listener
        servers = [HttpServer(parts.gateway, settings, listener)]
        if self._opened.admin_listener is not None:
            admin = HttpServer(parts.gateway.administer, settings, self._opened.admin_listener)
            servers.append(admin)
        http = asyncio.create_task(_until_stopped(servers))
        beside = [asyncio.create_task(_tick(parts.models)), asyncio.create_task(parts.follow())]
        try:
            if await self._first_of(self._models.wait_ready(), http):
                give_back()
                collect_less()
                self._show_ready(parts.reloadable.keys.is_open)
                beside.append(asyncio.create_task(self._reload_when_asked(parts)))
                await self._first_of(asyncio.Event().wait(), http)
            await self._drain(parts.gateway)
        finally:
            for task in beside:
                task.cancel()
            for server in servers:
                server.stop()
            await self._end_engines()
            await asyncio.wait((http,), timeout=2 * CLOSE_S)

    async def _reload_when_asked(self, parts: Assembled) -> None:
        """Until cancelled."""
        opened = self._opened
        if opened.again is None:
            return
        began = opened.given[0]
        state = ReloadState(began.file)
        parts.exporter.add_source(state.samples)
        recall = self._limits.recall_again
        reach = Reach(parts.reloadable, self._models, self._prices, state, recall)
        await Reloader(began, opened.again, reach, opened.progress).run(self._reload_asked)

    async def _first_of(self, work: Coroutine[Any, Any, object], http: asyncio.Task[None]) -> bool:
        """Do the work unless a signal comes first; False when it did. Raises what fails."""
        task = asyncio.ensure_future(work)
        asked = asyncio.ensure_future(self._signals.asked.wait())
        try:
            await asyncio.wait((task, asked, http), return_when=asyncio.FIRST_COMPLETED)
            if http.done():
                http.result()
            if task.done():
                task.result()
            return task.done() and not self._signals.asked.is_set()
        finally:
            task.cancel()
            asked.cancel()

    async def _drain(self, gateway: Gateway) -> None:
        """Let requests finish within the limit; a second signal ends that at once."""
        timeout = self._opened.settings.gateway.shutdown_timeout
        gateway.drain()
        landed = asyncio.ensure_future(gateway.landed())
        insisted = asyncio.ensure_future(self._signals.insisted.wait())
        try:
            await asyncio.wait(
                (landed, insisted), timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
            gateway.abort()
            await asyncio.wait((landed,), timeout=CLOSE_S)
        finally:
            landed.cancel()
            insisted.cancel()

    async def _end_engines(self) -> None:
        """No child is left after this: what does not stop in time is killed on the way out."""
        stopping = asyncio.ensure_future(self._models.stop())
        insisted = asyncio.ensure_future(self._signals.insisted.wait())
        await asyncio.wait((stopping, insisted), return_when=asyncio.FIRST_COMPLETED)
        insisted.cancel()
        if not stopping.done():
            await asyncio.wait((stopping,), timeout=END_NOW_S)
            stopping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await stopping

    def _assemble(self, keeper: Keeper | None) -> Assembled:
        ledger = NoLedger() if keeper is None else keeper.ledger
        settings = self._opened.settings
        return assemble(
            GatewayNeeds(
                settings=settings.gateway,
                api_limits=settings.limits,
                seed=settings.seed,
                models=[each.needs() for each in self._models.all],
                clock=self._clock,
                version=__version__,
                books=self._limits.books(ledger, self._prices, settings.prices.currency),
                access=access_of(settings, self._opened.stores, keeper),
                keeper=keeper,
                rate_limits=self._limits.table,
                limit_state=self._limits.state,
                routes=settings.routes,
                on_budgets=self._limits.recall_again,
            )
        )

    def _show_ready(self, is_open: bool) -> None:
        self._opened.progress.close()
        models = [
            Shown(each.name, each.engine.pool.view().hello, each.opened.sampling)
            for each in self._models.own
        ]
        others = [(each.name, each.pool.told()) for each in self._models.others]
        took_s = time.monotonic() - self._began
        url = url_of(self._opened.listener)
        print(banner(url, models, took_s, others, needs_key=not is_open), flush=True)
