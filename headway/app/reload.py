"""The configuration file read again, at SIGHUP: all of it is right and taken, or none of it.

A reload changes models, tenants and keys, routes, prices, limits and what is logged. A model that
is as it was goes on untouched. One that is new, or set otherwise, is started beside the others
first; once it answers, requests that come are routed by the new configuration, and those under way
end where they are. A model that is left out ends after the last of them. Where anything is wrong,
or does not start, what was in force stays so.

What the process itself was started with (addresses, stores, bounds) takes a restart: a file in
which that differs is refused as a whole, so that nobody believes in a change that did not happen.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from headway.app.document import read_document
from headway.app.opening import AnyOpened, open_models
from headway.app.options import OPTIONS
from headway.app.reload_state import ReloadState, hash_of
from headway.app.running import AnyRunning, OtherModel, OwnModel, RunningModels
from headway.app.sections import RATE_LIMITS, TenantEntry, keys_of, with_line
from headway.app.settings import Settings
from headway.core.base.errors import InvalidSetting, StartError
from headway.core.tenancy.limits import UNLIMITED
from headway.core.tenancy.price import PriceSettings, PriceTable
from headway.core.tenancy.tenant import read_tenants
from headway.service.gateway.admin_keys import check_admin_keys
from headway.service.gateway.journey import LAST_WORDS_S
from headway.service.gateway.reload import Change, Reloadable
from headway.service.loaders.progress import ConsoleProgress
from headway.service.observe.log import configure as configure_log
from headway.service.upstream.settings import Endpoint

log = logging.getLogger(__name__)

Again = Callable[[], Sequence[Settings]]  # raises StartError
# Of one model; all other settings are the server's.
OF_A_MODEL = (
    *("model", "served_model_name", "executor_choice", "generation_config", "upstream"),
    *("executor", "cpu", "engine", "residency", "pool"),
)
KEYS: Mapping[tuple[str, str], str] = {(each.section, each.field): each.key for each in OPTIONS}


class Reach(NamedTuple):
    """The parts of a running server that a reload reaches."""

    gateway: Reloadable
    models: RunningModels
    prices: PriceTable
    state: ReloadState
    recall: Callable[[], Awaitable[None]]  # what was spent this month, for budgets that are new


class _Found(NamedTuple):
    """A configuration as it was read, opened and checked."""

    models: tuple[Settings, ...]
    opened: list[AnyOpened]
    kept: dict[int, AnyRunning]  # by place: it runs as it is set there
    hash: int

    @property
    def settings(self) -> Settings:
        """Of the server."""
        return self.models[0]


class Reloader:
    """Reads the settings again when it is asked to, and brings what runs to what they say."""

    def __init__(
        self, began: Settings, again: Again, reach: Reach, progress: ConsoleProgress
    ) -> None:
        """`began` are the server's settings as the start read them; `again` reads them anew."""
        self._settings = began  # in force
        self._again = again
        self._reach = reach
        self._progress = progress
        self._leaving: set[asyncio.Task[None]] = set()

    async def run(self, asked: asyncio.Event) -> None:
        """Reload whenever it is asked for, one after the other, until cancelled."""
        try:
            while True:
                await asked.wait()
                asked.clear()
                await self.reload()
        finally:
            for task in self._leaving:
                task.cancel()

    async def reload(self) -> bool:
        """Take the file as it is now; False, with the reason in the log, if that cannot be."""
        state = self._reach.state
        try:
            found = await asyncio.to_thread(self._read)
            lineup = await self._take(found)
        except StartError as error:
            state.refused()
            log.error("reload_refused", extra={"reason": error.message})
            return False
        except Exception:
            state.refused()
            log.exception("reload_refused", extra={"reason": "a fault in Headway itself"})
            return False
        leaving = self._reach.models.exchange(lineup)
        self._change_prices(found.settings, {each.name for each in leaving})
        await self._reach.recall()
        state.taken(found.hash)
        added = [each.name for index, each in enumerate(lineup) if index not in found.kept]
        log.info(
            "reloaded",
            extra={
                "file": found.settings.file,
                "models_started": ",".join(added) or "none",
                "models_leaving": ",".join(each.name for each in leaving) or "none",
            },
        )
        # Last, so that a change to fewer lines is still told of.
        configure_log(found.settings.log_level, as_json=found.settings.log_json)
        for each in leaving:
            self._see_off(each)
        return True

    def _read(self) -> _Found:
        """The settings as they are now, and what they name opened; blocks. Raises StartError."""
        models = tuple(self._again())
        settings = models[0]
        hash_ = hash_of(settings.file)
        _check_server(self._settings, settings)
        _check_keys(settings)
        running = self._reach.models.all
        kept = _unchanged(models, [each for each in running if isinstance(each, OwnModel)])
        own = {index: each.opened for index, each in kept.items()}
        opened = open_models(models, self._progress, own)
        others = [each for each in running if isinstance(each, OtherModel)]
        return _Found(models, opened, kept | _the_same(opened, others), hash_)

    async def _take(self, found: _Found) -> tuple[AnyRunning, ...]:
        """The models from now on, ready, and the gateway told; raises StartError."""
        reach, settings = self._reach, found.settings
        _check_ports(found, reach.models.everywhere)
        lineup = reach.models.made(found.models, found.opened, found.kept)
        fresh = [each for index, each in enumerate(lineup) if index not in found.kept]
        try:
            reach.models.coming(fresh)
            threads = settings.gateway.encode_threads
            await asyncio.to_thread(reach.models.read, fresh, threads)
            await _all_answer(lineup, fresh, settings.file)
            reach.gateway.apply(_change(settings, lineup))
        except Exception:
            await reach.models.drop(fresh)
            raise
        return lineup

    def _change_prices(self, settings: Settings, leaving: set[str]) -> None:
        """The prices from now on; requests under way at a model that leaves keep theirs."""
        before = self._settings.prices.models
        self._settings = settings
        kept = {name: price for name, price in before.items() if name in leaving}
        self._reach.prices.replace({**kept, **settings.prices.models})

    def _see_off(self, model: AnyRunning) -> None:
        """End it after the last request that is under way there."""
        task = asyncio.get_running_loop().create_task(self._leave(model))
        self._leaving.add(task)
        self._reach.state.num_leaving = len(self._leaving)
        task.add_done_callback(self._has_left)

    async def _leave(self, model: AnyRunning) -> None:
        await self._reach.gateway.left(model.needs())
        await asyncio.sleep(LAST_WORDS_S)  # what was cancelled there is still to be accounted for
        await self._reach.models.drop([model])
        log.info("model_left", extra={"model": model.name})

    def _has_left(self, task: asyncio.Task[None]) -> None:
        self._leaving.discard(task)
        self._reach.state.num_leaving = len(self._leaving)
        with contextlib.suppress(asyncio.CancelledError):
            if (error := task.exception()) is not None:
                log.error("model_cannot_leave", exc_info=error)
        if not self._leaving:
            self._reach.prices.replace(self._settings.prices.models)


def differing(old: Settings, new: Settings) -> list[str]:
    """Keys of the settings that are not the same, as a file has them."""
    found = []
    for name in Settings.__struct_fields__:
        before, after = getattr(old, name), getattr(new, name)
        if before == after:
            continue
        if not isinstance(before, msgspec.Struct) or type(before) is not type(after):
            found.append(KEYS.get(("", name), name))
            continue
        fields = type(before).__struct_fields__
        changed = [each for each in fields if getattr(before, each) != getattr(after, each)]
        found += [KEYS.get((name, each), f"{name}.{each}") for each in changed]
    return found


def _check_server(began: Settings, now: Settings) -> None:
    """Raise InvalidSetting where something differs that only a start decides."""
    changed = differing(_of_server(began), _of_server(now))
    if changed:
        document = read_document(Path(now.file))
        place = document.place_of(changed[0])
        section = document.content.get(RATE_LIMITS)
        if isinstance(section, dict) and changed[0] in section:  # it may stand in either place
            place = (RATE_LIMITS, *place)
        raise InvalidSetting(
            document.where(*place),
            f"restart needed: a reload cannot change {', '.join(changed)}",
        )


def _of_server(settings: Settings) -> Settings:
    """What only a start decides: the settings without what a reload may change."""
    limits = msgspec.structs.replace(
        settings.rate_limits, default=UNLIMITED, tenants={}, reserve_tokens=1
    )
    gateway = msgspec.structs.replace(settings.gateway, api_key=(), tenant=())
    nobody: tuple[TenantEntry, ...] = ()
    blank = Settings()
    return msgspec.structs.replace(
        settings,
        routes=None,
        prices=PriceSettings(),
        tenants=nobody,
        rate_limits=limits,
        gateway=gateway,
        log_level=blank.log_level,
        log_json=blank.log_json,
        **{name: getattr(blank, name) for name in OF_A_MODEL},
    )


def _of_model(settings: Settings) -> tuple[object, ...]:
    return tuple(getattr(settings, name) for name in OF_A_MODEL)


def _unchanged(models: Sequence[Settings], running: Sequence[OwnModel]) -> dict[int, OwnModel]:
    """Models of ours that run as they are set, by their places."""
    found: dict[int, OwnModel] = {}
    for index, each in enumerate(models):
        for own in running:
            is_as = _of_model(own.given) == _of_model(each) and own.has_its_file()
            if is_as and own not in found.values():
                found[index] = own
                break
    return found


def _the_same(opened: Sequence[AnyOpened], running: Sequence[OtherModel]) -> dict[int, OtherModel]:
    """The same of other servers, whose keys and certificates count too."""
    found: dict[int, OtherModel] = {}
    for index, each in enumerate(opened):
        for other in running:
            if other not in found.values() and other.opened.is_as(each):
                found[index] = other
                break
    return found


def _check_keys(settings: Settings) -> None:
    """Raise InvalidSetting for keys that cannot be."""
    by_flag = read_tenants(settings.gateway.tenant)
    keys = [*by_flag, *with_line(settings.file, lambda: keys_of(settings.tenants))]
    check_admin_keys(
        settings.gateway.admin_key, [*settings.gateway.api_key, *(key for key, _ in keys)]
    )


def _check_ports(found: _Found, running: Sequence[AnyRunning]) -> None:
    """Raise InvalidSetting where a server is to be started at an address that one of ours has."""
    taken = {
        Endpoint.of(url).label: each.name
        for each in running
        if isinstance(each, OtherModel) and each.opened.settings.launch
        for url in each.opened.settings.urls
    }
    for index, settings in enumerate(found.models):
        upstream = settings.upstream
        if index in found.kept or upstream is None or not upstream.launch:
            continue
        for label in (Endpoint.of(url).label for url in upstream.urls):
            if label in taken:
                raise _at(
                    settings.file,
                    ("models", index, "upstream", "url"),
                    f"at {label} runs a server that was started for {taken[label]}; give the one "
                    f"that is to take its place another port",
                )


async def _all_answer(lineup: Sequence[AnyRunning], fresh: Sequence[AnyRunning], file: str) -> None:
    """Wait until the new ones do; raises the first StartError, and waits for no other then."""
    waiting = [
        asyncio.ensure_future(_answers(each, place, file))
        for place, each in enumerate(lineup)
        if each in fresh
    ]
    try:
        await asyncio.gather(*waiting)
    finally:
        for task in waiting:
            task.cancel()


async def _answers(model: AnyRunning, place: int, file: str) -> None:
    """Wait until it does; raises StartError, with its place in the file."""
    try:
        await model.wait_answers()
    except StartError as error:
        field = (
            ("models", place, "upstream") if isinstance(model, OtherModel) else ("models", place)
        )
        raise _at(file, field, f"{model.name} cannot answer: {error.message}") from error


def _change(settings: Settings, lineup: Sequence[AnyRunning]) -> Change:
    """What the gateway is told; raises InvalidSetting."""
    by_flag = read_tenants(settings.gateway.tenant)
    return Change(
        api_keys=settings.gateway.api_key,
        keys=[*by_flag, *keys_of(settings.tenants)],
        tenants=[*(tenant for _, tenant in by_flag), *(each.tenant() for each in settings.tenants)],
        routes=settings.routes,
        rate_limits=settings.rate_limits,
        models=[each.needs() for each in lineup],
    )


def _at(file: str, place: tuple[str | int, ...], problem: str) -> InvalidSetting:
    return InvalidSetting(read_document(Path(file)).where(*place), problem)
