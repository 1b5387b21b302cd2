"""The servers behind one model: probed, chosen from, and never sent more than they may have."""

import asyncio
import logging
import ssl
from collections.abc import Collection, Coroutine, Iterator, Sequence
from typing import Any, NamedTuple

from headway.core.base.clock import Clock
from headway.core.base.errors import QueueFull, ReplicaNotReady, StartError, UpstreamBusy
from headway.core.base.units import Seconds
from headway.core.route.index import PrefixIndex
from headway.core.route.retry import RetryBudget
from headway.core.route.upstream_choice import choose
from headway.core.route.upstream_line import Newcomer, Place, UpstreamLine
from headway.core.route.upstream_metrics import (
    UPSTREAM_IN_FLIGHT,
    UPSTREAM_STARTS,
    UPSTREAM_TOLD_KV,
    UPSTREAM_TOLD_RUNNING,
    UPSTREAM_TOLD_WAITING,
    UPSTREAM_UP,
    UPSTREAM_WAITING,
)
from headway.service.observe.prometheus import Sample
from headway.service.upstream.http1 import HttpClient
from headway.service.upstream.launch import LaunchedServer
from headway.service.upstream.probes import ABORTS, Prober
from headway.service.upstream.replica import Lease, UpstreamReplica
from headway.service.upstream.settings import Endpoint, UpstreamSettings
from headway.service.wire.transport import ReplicaState, ReplicaView

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.1  # at a process that is starting
MOST_BLOCKS = 65_536  # of texts that one replica is taken to hold, 512 bytes each


class Wish(NamedTuple):
    """What matters of a request for where it goes, and when."""

    names: Sequence[bytes] = ()  # of its text's beginning
    who: Newcomer = Newcomer()


class UpstreamPool:
    """All replicas of one model; all methods belong to the event loop.

    pool = UpstreamPool(settings, key, None, clock)
    pool.start()
    with await pool.lease(Wish(), ()) as lease:
        ...
    await pool.stop()
    """

    def __init__(
        self, settings: UpstreamSettings, key: str | None, tls: ssl.SSLContext | None, clock: Clock
    ) -> None:
        self.settings = settings
        self.key = key
        self.budget = RetryBudget(settings.retries)
        self.prober = Prober(settings, key)
        self._clock = clock
        self.replicas = tuple(_replica(url, settings, tls) for url in settings.urls)
        self._launched = tuple(
            LaunchedServer(settings, each.endpoint) for each in self.replicas if settings.launch
        )
        self._index = PrefixIndex(MOST_BLOCKS)
        self.line = UpstreamLine(settings.max_waiting, Seconds(settings.ageing))
        self._turns: dict[int, asyncio.Event] = {}  # of those in the line, by their ids
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to probe, and to start what is launched; returns at once."""
        for replica in self.replicas:
            self._spawn(self._watch(replica))
        for replica, server in zip(self.replicas, self._launched, strict=False):
            replica.gone("its process is starting")
            self._spawn(server.keep(replica))

    async def stop(self) -> None:
        """End what was launched, and everything else."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(server.stop() for server in self._launched))
        for replica in self.replicas:
            replica.client.close()

    async def wait_probed(self) -> None:
        """Wait until each replica was asked once how it is, whatever it said."""
        await asyncio.gather(*(each.was_probed.wait() for each in self.replicas))

    async def wait_answers(self) -> None:
        """Wait until it can answer; raises StartError, which names a server that does not.

        Of servers that run anyway one is enough, and each is asked once. Those that are started
        here have all to come, in the time that they have.
        """
        await self.wait_probed()
        if not self._launched and not any(each.is_healthy for each in self.replicas):
            first = self.replicas[0]
            raise StartError(f"none of its servers answers; {first.label}: {first.reason}")
        until = self._clock.now() + self.settings.launch_timeout
        for replica, server in zip(self.replicas, self._launched, strict=False):
            while not replica.is_healthy:
                if server.num_starts > 1:
                    raise StartError(f"{replica.label}: its process ended; the log says how")
                if self._clock.now() > until:
                    raise StartError(f"{replica.label}: {replica.reason}")
                await asyncio.sleep(LOOK_AGAIN_S)

    def told(self) -> str:
        """How its servers are, for people."""
        up = sum(1 for each in self.replicas if each.is_healthy)
        return f"{up} of {len(self.replicas)} servers answer, {self.settings.kind}"

    def view(self) -> ReplicaView:
        """The pool as one replica: ready while any of its servers is."""
        now = self._clock.now()
        well = [each for each in self.replicas if each.is_healthy and each.is_routable(now)]
        speaker = (well or list(self.replicas))[0]
        return ReplicaView(
            state=ReplicaState.READY if well else ReplicaState.STARTING,
            reason=speaker.reason if len(well) == len(self.replicas) else self._reason(now),
            since_s=0.0,
            restarts=0,
            retry_after_s=self._retry_after(now),
            hello=None,
            status=None,
            loads=1,  # what is not there yet keeps nobody from becoming ready
        )

    def context_length(self) -> int | None:
        """As set, else as a server told."""
        told = (each.context_length for each in self.replicas if each.context_length)
        return self.settings.context_length or next(told, None)

    async def lease(self, wish: Wish, tried: Collection[str]) -> Lease:
        """A place at a replica that was not tried yet.

        A first try waits for room, in the line's order and no longer than its class allows; a
        further one does not. Raises ReplicaNotReady when no replica can be sent anything,
        UpstreamBusy while all have said that they take nothing for a while, QueueFull when too many
        wait, DeadlineUnmeetable when it would come too late.
        """
        now = self._clock.now()
        place = self.line.enter(wish.who, now, is_again=bool(tried))
        found = None if len(self.line) and not tried else self._take(wish, tried, place)
        if found is not None:
            return found
        self._raise_if_down(tried)
        if tried:
            raise QueueFull("no other server behind this model has room", self._retry_after(now))
        self.line.join(place, now)
        turn = self._turns[place.id] = asyncio.Event()
        self._call_next()
        try:
            async with asyncio.timeout(self.line.patience(place, now)):
                while found is None:
                    await turn.wait()
                    turn.clear()
                    self._raise_if_down(tried)
                    found = self._take(wish, tried, place)
        except TimeoutError:
            raise self.line.too_late(place) from None
        finally:
            self.line.leave(place)
            del self._turns[place.id]
            self._call_next()
        return found

    def any_replica(self) -> UpstreamReplica | None:
        """One that answers now, the idlest."""
        now = self._clock.now()
        routable = [each for each in self.replicas if each.is_routable(now)]
        return min(routable, key=lambda each: each.in_flight, default=None)

    def abort(self, replica: UpstreamReplica, request_id: str) -> None:
        """Tell a server that has a call for it that nobody waits for this request any more."""
        if self.settings.kind in ABORTS:
            self._spawn(self.prober.abort(replica, request_id))

    def samples(self) -> Iterator[Sample]:
        """For a scrape."""
        now = self._clock.now()
        yield Sample(UPSTREAM_WAITING, len(self.line))
        for each in self.replicas:
            labels = {"replica": each.label}
            is_up = bool(each.is_healthy) and each.is_routable(now)
            yield Sample(UPSTREAM_UP, float(is_up), labels)
            yield Sample(UPSTREAM_IN_FLIGHT, each.in_flight, labels)
            if each.told is not None:
                yield Sample(UPSTREAM_TOLD_RUNNING, each.told.running, labels)
                yield Sample(UPSTREAM_TOLD_WAITING, each.told.waiting, labels)
                yield Sample(UPSTREAM_TOLD_KV, each.told.kv_usage, labels)
        for server in self._launched:
            yield Sample(UPSTREAM_STARTS, server.num_starts, {"replica": server.label})

    def _take(self, wish: Wish, tried: Collection[str], place: Place) -> Lease | None:
        now, most = self._clock.now(), self.settings.max_concurrent
        with_room = [
            each
            for each in self.replicas
            if each.label not in tried and each.is_routable(now) and each.in_flight < most
            if not each.cold_s(now)
        ]
        if not with_room:
            return None
        chosen = self._choose(wish, with_room, place, now) if len(with_room) > 1 else with_room[0]
        self._index.add(chosen.label, wish.names)
        is_full = chosen.in_flight + 1 >= most and self._room(now) <= 1
        self.line.took(place, now, is_full=is_full)

        def left(lease: Lease) -> None:
            self.line.ended(place, self._clock.now(), lease.num_tokens)
            self._call_next()

        return Lease(chosen, left)

    def _choose(
        self, wish: Wish, with_room: Sequence[UpstreamReplica], place: Place, now: Seconds
    ) -> UpstreamReplica:
        # One that is returning gets a few requests at a time, unless there is no other.
        trusted = [each for each in with_room if each.breaker.may_take(each.in_flight, now)]
        chosen_from = {each.label: each for each in trusted or with_room}
        matches = {name: self._index.match(name, wish.names) for name in chosen_from}
        candidates = [each.candidate() for each in chosen_from.values()]
        name = choose(candidates, matches, wish.names, self.settings.max_skew, place.id)
        return chosen_from[name]

    def _room(self, now: Seconds) -> int:
        """Requests that could be sent now."""
        most = self.settings.max_concurrent
        return sum(max(0, most - each.in_flight) for each in self.replicas if each.is_routable(now))

    def _raise_if_down(self, tried: Collection[str]) -> None:
        now = self._clock.now()
        left = [
            each.cold_s(now)
            for each in self.replicas
            if each.is_routable(now) and each.label not in tried
        ]
        if left and min(left) > 0.0:
            raise UpstreamBusy("the servers behind this model are full", Seconds(min(left)))
        if not left:
            raise ReplicaNotReady(
                f"the servers behind this model do not answer: {self._reason(now)}",
                self._retry_after(now),
            )

    def _call_next(self) -> None:
        first = self.line.first(self._clock.now())
        if first is not None:
            self._turns[first.id].set()

    def _reason(self, now: Seconds) -> str:
        """For operators and clients alike: how many are away, without their addresses."""
        num_away = sum(1 for each in self.replicas if not each.is_routable(now))
        return f"{num_away} of {len(self.replicas)} are away"

    def _retry_after(self, now: Seconds) -> Seconds:
        backs = [float(each.breaker.back_at(now)) for each in self.replicas]
        return Seconds(max(1.0, min(backs), self.settings.probe_interval))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(
                "upstream_task_failed", extra={"model": self.settings.names[0]}, exc_info=error
            )

    async def _watch(self, replica: UpstreamReplica) -> None:
        """Probe one replica for ever."""
        while True:
            problem = await self.prober.problem_of(replica)
            was = replica.is_healthy
            if replica.probed(problem, self._clock.now()):
                self._health_changed(replica, was)
            if not problem:
                replica.heard(await self.prober.told(replica))
                if replica.context_length is None:
                    replica.context_length = await self.prober.context_length(replica) or 0
            for turn in self._turns.values() if problem else ():
                turn.set()  # to find out whether anybody is left
            await asyncio.sleep(self.settings.probe_interval)

    def _health_changed(self, replica: UpstreamReplica, was: bool | None) -> None:
        self._index.forget(replica.label)
        level = logging.INFO if replica.is_healthy else logging.WARNING
        about = {"model": self.settings.names[0], "replica": replica.label}
        event = "upstream_up" if replica.is_healthy else "upstream_down"
        log.log(level, event, extra={**about, "reason": replica.reason, "was": was})
        self._call_next()


def _replica(url: str, settings: UpstreamSettings, tls: ssl.SSLContext | None) -> UpstreamReplica:
    endpoint = Endpoint.of(url)
    client = HttpClient(endpoint, tls if endpoint.is_tls else None)
    return UpstreamReplica(endpoint, client, settings.breaker)
