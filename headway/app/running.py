"""The models of a running server: each with its engines, or with the servers behind it."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from headway.app.engine import Engine
from headway.app.fleet import OpenedModel
from headway.app.opening import AnyOpened
from headway.app.settings import Settings
from headway.app.upstreams import OpenedUpstream
from headway.core.text.tokenizer import Tokenizer
from headway.service.gateway.encode import Encoder
from headway.service.gateway.model import ServedModel
from headway.service.gateway.serving import ModelNeeds, UpstreamNeeds
from headway.service.loaders.chat_template import ChatTemplate
from headway.service.loaders.progress import ConsoleProgress
from headway.service.loaders.tokenizer_files import build_tokenizer
from headway.service.observe.clock import SystemClock

Vocabularies = dict[str, tuple[Tokenizer, ChatTemplate]]  # by the path of a model's file


class OwnModel:
    """A model that engines of ours answer for."""

    def __init__(
        self, given: Settings, model: OpenedModel, clock: SystemClock, progress: ConsoleProgress
    ) -> None:
        """given  its settings as they were read; those of `model` are settled"""
        self.given = given
        self.opened = model
        self.engine = Engine(model, clock, progress)
        self._stamps = _stamps(Path(model.card.path))
        self._created = int(time.time())
        self._encoder: Encoder | None = None

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.opened.name

    def has_its_file(self) -> bool:
        """Whether the file is the one that was loaded, as far as it is still there at all."""
        now = _stamps(Path(self.opened.card.path))
        return not now or now == self._stamps

    def start(self) -> None:
        """Begin to load it; returns at once."""
        self.engine.pool.start()

    def read(self, known: Vocabularies, threads: int) -> None:
        """Read its tokenizer and its template, unless they are known; slow, and for a thread."""
        file = self.opened.take_model_file()
        if file.path not in known:
            known[file.path] = build_tokenizer(file), ChatTemplate(file)
        self._encoder = Encoder(*known[file.path], threads)

    async def wait_ready(self) -> None:
        """Wait for its load at start, if there is one; raises StartError."""
        await self.engine.wait_ready()

    async def wait_answers(self) -> None:
        """The same: what has loaded answers. Its error leaves its place to who knows it."""
        await self.engine.pool.wait_ready()

    def needs(self) -> ModelNeeds:
        """What it brings to the gateway, once it was read."""
        assert self._encoder is not None, "not read"
        model = self.opened
        return ModelNeeds(
            model=ServedModel(
                names=model.names,
                root=model.card.name,
                vocab_size=model.card.vocab_size,
                context_length=model.context_length,
                created=self._created,
                sampling=model.sampling,
            ),
            engine=model.settings.engine,
            replicas=model.settings.pool.replicas,
            encoder=self._encoder,
            pool=self.engine.pool,
            totals=self.engine.totals,
        )

    async def stop(self) -> None:
        """End its processes; returns when no child is left."""
        await self.engine.pool.stop()

    def close(self, *, drop: bool) -> None:
        """End its threads, which may `drop` what waits for them."""
        if self._encoder is not None:
            self._encoder.close(drop=drop)


class OtherModel:
    """A model that other servers answer for."""

    def __init__(self, given: Settings, opened: OpenedUpstream, clock: SystemClock) -> None:
        self.given = given
        self.opened = opened
        self.pool = opened.pool(clock)
        self._created = int(time.time())

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.opened.settings.names[0]

    def start(self) -> None:
        """Begin to probe its servers, and to start those that are ours to start."""
        self.pool.start()

    async def wait_ready(self) -> None:
        """Wait until each server was asked once how it is, whatever it said."""
        await self.pool.wait_probed()

    async def wait_answers(self) -> None:
        """Wait until it can answer; raises StartError when it cannot."""
        await self.pool.wait_answers()

    def needs(self) -> UpstreamNeeds:
        """What it brings to the gateway."""
        return UpstreamNeeds(self.pool, self._created)

    async def stop(self) -> None:
        """End what was started for it."""
        await self.pool.stop()

    def close(self, *, drop: bool) -> None:
        """It has no threads."""


AnyRunning = OwnModel | OtherModel


def _stamps(path: Path) -> list[tuple[str, int, int, int]]:
    """Name, file, size and time of a model's file, or of all in its folder; [] if it is gone."""
    try:
        files = sorted(each for each in path.iterdir() if each.is_file())
    except NotADirectoryError:
        files = [path]
    except OSError:
        return []
    try:
        stats = [(each.name, each.stat()) for each in files]
    except OSError:
        return []
    return [(name, each.st_ino, each.st_size, each.st_mtime_ns) for name, each in stats]


class RunningModels:
    """All models of a server, in the order of its file; those that come or leave beside them."""

    def __init__(
        self,
        given: Sequence[Settings],
        opened: Sequence[AnyOpened],
        clock: SystemClock,
        progress: ConsoleProgress,
    ) -> None:
        self._clock = clock
        self._progress = progress
        self._beside: set[AnyRunning] = set()
        self.all = self.made(given, opened)

    @property
    def own(self) -> tuple[OwnModel, ...]:
        """Those of engines of ours."""
        return tuple(each for each in self.all if isinstance(each, OwnModel))

    @property
    def others(self) -> tuple[OtherModel, ...]:
        """Those of other servers."""
        return tuple(each for each in self.all if isinstance(each, OtherModel))

    @property
    def everywhere(self) -> tuple[AnyRunning, ...]:
        """All that have processes or connections: also what comes or leaves."""
        return (*self.all, *self._beside)

    def made(
        self,
        given: Sequence[Settings],
        opened: Sequence[AnyOpened],
        kept: Mapping[int, AnyRunning] | None = None,
    ) -> tuple[AnyRunning, ...]:
        """Models by their settings, not started, but for those that are kept."""
        before = kept or {}
        return tuple(
            before[index] if index in before else self._make(settings, model)
            for index, (settings, model) in enumerate(zip(given, opened, strict=True))
        )

    def start(self) -> None:
        """Begin to start all; returns at once."""
        for each in self.all:
            each.start()

    def read(self, models: Iterable[AnyRunning], threads: int) -> None:
        """Read the tokenizers; slow, and for a thread. Those of the same file share one."""
        known: Vocabularies = {}
        for each in models:
            if isinstance(each, OwnModel):
                each.read(known, threads)

    async def wait_ready(self) -> None:
        """Wait for all that is loaded at start; raises the first StartError."""
        await asyncio.gather(*(each.wait_ready() for each in self.all))

    def coming(self, models: Iterable[AnyRunning]) -> None:
        """Begin to start these beside the others; they end with `drop`, or with all."""
        self._beside.update(models)
        for each in models:
            each.start()

    def exchange(self, models: Sequence[AnyRunning]) -> list[AnyRunning]:
        """These are the models from now on; those that leave, which go on until `drop`."""
        leaving = [each for each in self.all if each not in models]
        self.all = tuple(models)
        self._beside = (self._beside | set(leaving)) - set(models)
        return leaving

    async def drop(self, models: Iterable[AnyRunning]) -> None:
        """End models that nobody uses; returns when no child of theirs is left."""
        await asyncio.gather(*(each.stop() for each in models))
        for each in models:
            each.close(drop=False)
            self._beside.discard(each)

    async def stop(self) -> None:
        """End all; returns when no child is left."""
        await asyncio.gather(*(each.stop() for each in self.everywhere))

    def close(self) -> None:
        """End the threads."""
        for each in self.everywhere:
            each.close(drop=True)

    def _make(self, given: Settings, opened: AnyOpened) -> AnyRunning:
        if isinstance(opened, OpenedModel):
            return OwnModel(given, opened, self._clock, self._progress)
        return OtherModel(given, opened, self._clock)
