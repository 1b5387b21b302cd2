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
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import uvloop

from headway import __version__
from headway.app.banner import Shown, banner
from headway.app.engine import Engine
from headway.app.fleet import OpenedModel, check_names, fitted, opened
from headway.app.limits import TenantLimits
from headway.app.model_source import locate
from headway.app.reload import Again, Reloader
from headway.app.sections import check_against
from headway.app.settings import Settings
from headway.app.settle import give_back
from headway.app.stores import Stores, access_of, keeper_of, open_stores
from headway.app.upstreams import OpenedUpstream, open_upstreams
from headway.core.route.table import PoolFacts
from headway.core.tenancy.price import PriceTable
from headway.core.text.tokenizer import Tokenizer
from headway.service.control.memory import available_bytes
from headway.service.gateway.assemble import (
    Assembled,
    GatewayNeeds,
    ModelNeeds,
    UpstreamNeeds,
    assemble,
)
from headway.service.gateway.books import NoLedger
from headway.service.gateway.encode import Encoder
from headway.service.gateway.ledger import Keeper
from headway.service.gateway.lifecycle import (
    CLOSE_S,
    HttpServer,
    StopSignals,
    bind,
    bind_admin,
    url_of,
)
from headway.service.gateway.model import ServedModel
from headway.service.gateway.models import Models
from headway.service.gateway.server import Gateway
from headway.service.gateway.settings import GatewaySettings
from headway.service.loaders.chat_template import ChatTemplate
from headway.service.loaders.model_files import ModelFile, open_model
from headway.service.loaders.progress import ConsoleProgress
from headway.service.loaders.tokenizer_files import build_tokenizer
from headway.service.observe import log
from headway.service.observe.clock import SystemClock
from headway.service.upstream.settings import facts_of

OTHER_FILES = 128  # descriptors that are not client connections
MOST_FILES = 65536
TICK_S = 1.0
END_NOW_S = 2.0  # for the engine's process after a second signal


class Opened(NamedTuple):
    """What was read and taken before anything slow began."""

    settings: Settings  # of the server; those of its models are their own
    listener: socket.socket
    models: list[OpenedModel]
    progress: ConsoleProgress
    stores: Stores = Stores()
    admin_listener: socket.socket | None = None  # None: /admin is on the other one, or not at all
    upstreams: Sequence[OpenedUpstream] = ()
    began: tuple[Settings, ...] = ()  # as they were given
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
        others = open_upstreams(models)
        own = open_all(models, progress)
        found = Opened(settings, listener, own, progress, stores, admin_listener, others)
        found = found._replace(began=tuple(models), again=again)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(found))
    finally:
        progress.close()
        listener.close()
        if admin_listener is not None:
            admin_listener.close()
        stores.close()


def open_all(models: Sequence[Settings], progress: ConsoleProgress) -> list[OpenedModel]:
    """All models' files, read as far as needed to know that they can be served together here.

    Models that other servers answer for have none; their names and routes are checked with these.
    """
    found = []
    for index, each in enumerate(models):
        if each.upstream is None:
            with_names, file = located(each, progress)
            found.append(opened(with_names, index, len(models), file))
    others = [each.upstream for each in models if each.upstream is not None]
    check_names(found, others)
    pools = [PoolFacts(names=each.names) for each in found]
    pools += [facts_of(each) for each in others]
    settings = models[0]
    check_against(pools, settings.routes, settings.prices, settings.file)
    fitted(found, available_bytes())
    return found


def located(settings: Settings, progress: ConsoleProgress) -> tuple[Settings, ModelFile]:
    """The model, fetched first if it is not here; a hub's is called by its id unless named."""
    cache = Path(settings.cache_dir) if settings.cache_dir else None
    path, names = locate(settings.model, progress, cache)
    names = settings.served_model_name or names
    return msgspec.structs.replace(settings, served_model_name=names), open_model(path)


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
        self._engines = [Engine(each, self._clock, opened.progress) for each in opened.models]
        self._upstreams = [each.pool(self._clock) for each in opened.upstreams]
        self._name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._limits = TenantLimits(opened.settings.rate_limits, self._name)

    async def run(self) -> int:
        """Start, serve, end; raises StartError when the file is unfit or the engine's first
        start fails.
        """
        self._signals.install()
        for engine in self._engines:
            engine.pool.start()
        for pool in self._upstreams:
            pool.start()
        self._limits.start()
        try:
            # The engines' processes start meanwhile; the thread leaves the loop to them.
            encoders = await asyncio.to_thread(self._make_encoders)
            try:
                await self._serve_with(encoders)
            finally:
                for encoder in encoders:
                    encoder.close()
        finally:
            await self._end_engines()
            await self._limits.close()
        return 0

    async def _serve_with(self, encoders: Sequence[Encoder]) -> None:
        """Put the gateway together, serve, and keep what is still to be kept."""
        opened = self._opened
        on_lost = self._limits.on_lost
        keeper = keeper_of(opened.settings, opened.stores, self._name, self._prices, on_lost)
        try:
            if opened.settings.prices.models:  # else nothing was spent
                await self._limits.recall(keeper)
            parts = self._assemble(encoders, keeper)
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
        ticks = [asyncio.create_task(_tick(parts.models)), asyncio.create_task(parts.follow())]
        self._reload_at_signal(parts)
        try:
            if await self._first_of(self._wait_ready(), http):
                give_back()
                self._show_ready()
                await self._first_of(asyncio.Event().wait(), http)
            await self._drain(parts.gateway)
        finally:
            for task in ticks:
                task.cancel()
            for server in servers:
                server.stop()
            await self._end_engines()
            await asyncio.wait((http,), timeout=2 * CLOSE_S)

    def _reload_at_signal(self, parts: Assembled) -> None:
        opened = self._opened
        if opened.again is not None:
            reloader = Reloader(opened.began, opened.again, parts.reloadable, self._prices)
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloader.reload)

    async def _wait_ready(self) -> None:
        """Wait for all that is loaded at start; raises the first StartError."""
        await asyncio.gather(
            *(engine.wait_ready() for engine in self._engines),
            *(pool.wait_probed() for pool in self._upstreams),
        )

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
        stopping = asyncio.gather(
            *(engine.pool.stop() for engine in self._engines),
            *(pool.stop() for pool in self._upstreams),
        )
        insisted = asyncio.ensure_future(self._signals.insisted.wait())
        await asyncio.wait((stopping, insisted), return_when=asyncio.FIRST_COMPLETED)
        insisted.cancel()
        if not stopping.done():
            await asyncio.wait((stopping,), timeout=END_NOW_S)
            stopping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await stopping

    def _make_encoders(self) -> list[Encoder]:
        """One a model; those of the same file share its tokenizer."""
        read: dict[str, tuple[Tokenizer, ChatTemplate]] = {}
        threads = self._opened.settings.gateway.encode_threads
        encoders = []
        for model in self._opened.models:
            model_file = model.take_model_file()
            if model_file.path not in read:
                read[model_file.path] = build_tokenizer(model_file), ChatTemplate(model_file)
            encoders.append(Encoder(*read[model_file.path], threads))
        return encoders

    def _assemble(self, encoders: Sequence[Encoder], keeper: Keeper | None) -> Assembled:
        ledger = NoLedger() if keeper is None else keeper.ledger
        settings, created = self._opened.settings, int(time.time())
        models: list[ModelNeeds | UpstreamNeeds] = [
            ModelNeeds(
                model=ServedModel(
                    names=model.names,
                    root=model.card.name,
                    vocab_size=model.card.vocab_size,
                    context_length=model.context_length,
                    created=created,
                    sampling=model.sampling,
                ),
                engine=model.settings.engine,
                replicas=model.settings.pool.replicas,
                encoder=encoder,
                pool=engine.pool,
                totals=engine.totals,
            )
            for model, engine, encoder in zip(
                self._opened.models, self._engines, encoders, strict=True
            )
        ]
        for each, other in zip(self._opened.upstreams, self._upstreams, strict=True):
            models.insert(each.place, UpstreamNeeds(other, created))
        return assemble(
            GatewayNeeds(
                settings=settings.gateway,
                api_limits=settings.limits,
                seed=settings.seed,
                models=models,
                clock=self._clock,
                version=__version__,
                books=self._limits.books(ledger, self._prices, settings.prices.currency),
                access=access_of(settings, self._opened.stores, keeper),
                keeper=keeper,
                rate_limits=self._limits.table,
                limit_state=self._limits.state,
                routes=settings.routes,
            )
        )

    def _show_ready(self) -> None:
        self._opened.progress.close()
        models = [
            Shown(engine.model.name, engine.pool.view().hello, engine.model.sampling)
            for engine in self._engines
        ]
        others = [(each.settings.names[0], each.told()) for each in self._upstreams]
        took_s = time.monotonic() - self._began
        print(banner(url_of(self._opened.listener), models, took_s, others), flush=True)
