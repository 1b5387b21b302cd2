"""`headway serve`: one process with the HTTP side, which starts and watches the engine's."""

import asyncio
import contextlib
import re
import resource
import signal
import socket
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from headway import __version__
from headway.app.settings import Settings
from headway.app.settle import give_back
from headway.core.engine.settings import check
from headway.core.messages.health import LoadProgress, ReplicaHello, StepReport
from headway.service.control.supervise import Observers, Supervisor
from headway.service.gateway.assemble import Assembled, GatewayNeeds, assemble
from headway.service.gateway.encode import Encoder
from headway.service.gateway.gauges import EngineTotals, Gauges
from headway.service.gateway.lifecycle import CLOSE_S, HttpServer, StopSignals, bind, url_of
from headway.service.gateway.model import ServedModel
from headway.service.gateway.server import Gateway
from headway.service.gateway.settings import GatewaySettings
from headway.service.loaders.builtin import fetch_builtin
from headway.service.loaders.chat_template import ChatTemplate
from headway.service.loaders.model_files import ModelFile, open_model
from headway.service.loaders.progress import ConsoleProgress
from headway.service.loaders.tokenizer_files import build_tokenizer
from headway.service.observe import log
from headway.service.observe.clock import SystemClock
from headway.service.wire.spec import ReplicaSpec

QUANT_SUFFIX = re.compile(r"[.-](I?Q\d\w*|B?F16|F32)$", re.IGNORECASE)
OTHER_FILES = 128  # descriptors that are not client connections
MOST_FILES = 65536
TICK_S = 1.0
END_NOW_S = 2.0  # for the engine's process after a second signal


class Opened:
    """What was read and taken before anything slow began."""

    def __init__(
        self,
        settings: Settings,
        listener: socket.socket,
        model_file: ModelFile,
        progress: ConsoleProgress,
    ) -> None:
        self.settings = settings
        self.listener = listener
        self.card = model_file.card
        self.progress = progress
        self._model_file: ModelFile | None = model_file

    def take_model_file(self) -> ModelFile:
        """The file, once: its vocabulary, megabytes of text, is let go with it."""
        taken, self._model_file = self._model_file, None
        assert taken is not None, "the model file was taken before"
        return taken


def serve(settings: Settings) -> int:
    """Serve until a signal; the exit code.

    Raises StartError when it cannot start, KeyboardInterrupt for a signal before it serves.
    """
    log.configure(settings.log_level, as_json=settings.log_json)
    # Until the loop has handlers of its own; KeyboardInterrupt then unwinds what is half done.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings = msgspec.structs.replace(settings, gateway=fit_connections(settings.gateway))
    listener = bind(settings.gateway)
    progress = ConsoleProgress()
    try:
        cache = Path(settings.cache_dir) if settings.cache_dir else None
        path = settings.model or fetch_builtin(progress, cache)
        opened = Opened(settings, listener, open_model(path), progress)
        check(settings.engine, opened.card)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(opened))
    finally:
        progress.close()
        listener.close()


def fit_connections(settings: GatewaySettings) -> GatewaySettings:
    """Allow this process as many open files as it may have, and no more connections than that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if limit > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    most = max(1, min(settings.max_connections, max(limit, soft) - OTHER_FILES))
    return msgspec.structs.replace(settings, max_connections=most)


def served_names(settings: Settings, path: str) -> tuple[str, ...]:
    """The names that were set, or the file's name without and with its type of weights."""
    stem = Path(path).stem
    return settings.served_model_name or tuple(dict.fromkeys((QUANT_SUFFIX.sub("", stem), stem)))


def banner(url: str, name: str, hello: ReplicaHello, took_s: float) -> str:
    """What a person needs to know once everything answers."""
    return (
        f"\nHeadway {__version__} is ready after {took_s:.1f} s\n"
        f"  URL         {url}\n"
        f"  model       {name} ({hello.executor})\n"
        f"  context     {hello.max_model_len} tokens\n"
        f"  KV cache    {hello.num_blocks * hello.block_size} tokens\n\n"
        f"Try it:\n"
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d "
        f"""'{{"messages":[{{"role":"user","content":"What is the capital of France?"}}]}}'\n"""
    )


async def _run(opened: Opened) -> int:
    return await _Process(opened).run()


async def _tick(gauges: Gauges) -> None:
    while True:
        gauges.tick()
        await asyncio.sleep(TICK_S)


class _Process:
    """The parts of a running server, from start to end."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._began = time.monotonic()
        self._signals = StopSignals()
        self._clock = SystemClock()
        self._totals = EngineTotals()
        self._supervisor = self._make_supervisor()

    async def run(self) -> int:
        """Start, serve, end; raises StartError when the file is unfit or the engine's first
        start fails.
        """
        self._signals.install()
        self._supervisor.start()
        try:
            # The engine's process starts meanwhile; the thread leaves the loop to it.
            encoder = await asyncio.to_thread(self._make_encoder)
            try:
                await self._serve(self._assemble(encoder))
            finally:
                encoder.close()
        finally:
            await self._end_engine()
        return 0

    async def _serve(self, parts: Assembled) -> None:
        server = HttpServer(parts.gateway, self._opened.settings.gateway, self._opened.listener)
        http = asyncio.create_task(server.run_until_stopped())
        ticks = asyncio.create_task(_tick(parts.gauges))
        try:
            if await self._first_of(self._supervisor.wait_ready(), http):
                give_back()
                self._show_ready()
                await self._first_of(asyncio.Event().wait(), http)
            await self._drain(parts.gateway)
        finally:
            ticks.cancel()
            server.stop()
            await self._end_engine()
            await asyncio.wait((http,), timeout=2 * CLOSE_S)

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

    async def _end_engine(self) -> None:
        """No child is left after this: what does not stop in time is killed on the way out."""
        stopping = asyncio.ensure_future(self._supervisor.stop())
        insisted = asyncio.ensure_future(self._signals.insisted.wait())
        await asyncio.wait((stopping, insisted), return_when=asyncio.FIRST_COMPLETED)
        insisted.cancel()
        if not stopping.done():
            await asyncio.wait((stopping,), timeout=END_NOW_S)
            stopping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await stopping

    def _make_encoder(self) -> Encoder:
        model_file = self._opened.take_model_file()
        threads = self._opened.settings.gateway.encode_threads
        return Encoder(build_tokenizer(model_file), ChatTemplate(model_file), threads)

    def _make_supervisor(self) -> Supervisor:
        settings, card = self._opened.settings, self._opened.card
        spec = ReplicaSpec(
            model_path=card.path,
            card=card,
            engine=settings.engine,
            executor=settings.executor_choice,
            cache_dir=settings.cache_dir,
            dtype=settings.executor.dtype,
            device=settings.executor.device,
            threads=settings.executor.threads,
            attention=settings.executor.attention,
            cpu_isa=settings.cpu.cpu_isa,
            kv_cache_dtype=settings.cpu.kv_cache_dtype,
            log_level=settings.log_level,
            log_json=settings.log_json,
        )
        observers = Observers(on_report=self._observe, on_load=self._show_load)
        return Supervisor(spec, settings.supervisor, self._clock, observers)

    def _observe(self, _: StepReport) -> None:
        self._totals.observe(self._supervisor.view(), self._clock.now())

    def _assemble(self, encoder: Encoder) -> Assembled:
        settings, card = self._opened.settings, self._opened.card
        model = ServedModel(
            names=served_names(settings, card.path),
            root=card.name,
            vocab_size=card.vocab_size,
            context_length=card.context_length,
            created=int(time.time()),
        )
        needs = GatewayNeeds(
            settings=settings.gateway,
            api_limits=settings.limits,
            engine=settings.engine,
            seed=settings.seed,
            model=model,
            encoder=encoder,
            replica=self._supervisor,
            totals=self._totals,
            clock=self._clock,
            version=__version__,
        )
        return assemble(needs)

    def _show_load(self, progress: LoadProgress) -> None:
        if self._supervisor.view().restarts > 0:
            return
        if progress.stage == "weights":
            self._opened.progress("loading the weights", progress.done, progress.total)
        elif progress.stage == "kernels":
            print("compiling the kernels, 20 to 30 s, once on this machine", file=sys.stderr)

    def _show_ready(self) -> None:
        self._opened.progress.close()
        hello = self._supervisor.view().hello
        if hello is not None:
            name = served_names(self._opened.settings, self._opened.card.path)[0]
            took_s = time.monotonic() - self._began
            print(banner(url_of(self._opened.listener), name, hello, took_s), flush=True)
