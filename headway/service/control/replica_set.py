"""Several replicas of one model behind the interface of one: no stream ends with a replica."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from headway.core.base.clock import Clock
from headway.core.base.errors import ReplicaLost, ReplicaNotReady, StartError
from headway.core.messages.health import LoadProgress, ReplicaHello, StepReport
from headway.core.messages.path import EngineRequest
from headway.core.route.index import CHUNK
from headway.core.route.policy import LeastWork, PrefixAffinity, RoutePolicy
from headway.core.route.retry import Tries
from headway.core.route.router import Router, RouterSettings
from headway.service.control.failover import Attempt, LastingMailbox
from headway.service.control.joint import joint_view
from headway.service.control.supervise import Observers
from headway.service.control.waiting import until_set
from headway.service.wire.transport import (
    Mailbox,
    MemberView,
    ReplicaState,
    ReplicaView,
    Transport,
)

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 1.0  # an ejection ends without anybody saying so
MOST_CHUNKS = 16384  # of prompts that one replica is taken to hold, about 3 MB
BETWEEN = "~"  # between a request's id and the number of its attempt


class ReplicaSetSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many engines serve one model, and what holds them together."""

    replicas: int = 1
    failover_wait_s: float = 30.0  # longest that a stream waits for a replica to go on at
    route: RouterSettings = RouterSettings()


class Member(Transport, Protocol):
    """One replica of a set; the Supervisor is one."""

    def start(self) -> None:
        """Begin to start it; returns at once."""
        ...

    async def wait_ready(self) -> ReplicaHello:
        """Wait for the first start; raises StartError."""
        ...

    async def stop(self) -> None:
        """End it; returns when no child is left."""
        ...

    def abandon(self, request_id: str, cause: str) -> None:
        """Have the request's mailbox fail with ReplicaLost, and the replica free what it holds."""
        ...


MakeMember = Callable[[str, Observers], Member]
MakePolicy = Callable[[ReplicaHello], RoutePolicy]


def by_prefix(model: str, factor: float) -> MakePolicy:
    """Affinity to what replicas hold, as much as their KV caches take."""

    def make(hello: ReplicaHello) -> RoutePolicy:
        held = max(1, hello.num_blocks * hello.block_size // CHUNK)
        return PrefixAffinity(model, min(held, MOST_CHUNKS), factor)

    return make


def by_load(_: ReplicaHello) -> RoutePolicy:
    """Where replicas share no prefixes there is nothing else to go by."""
    return LeastWork()


class ReplicaSet:
    """Replicas that are started and ended together, and stand in for each other between.

    The first one loads alone: what it finds wrong is wrong for all, and what it compiles they
    need not. The set is ready once all have loaded; from then on while any is. All methods
    belong to the event loop.
    """

    def __init__(
        self,
        settings: ReplicaSetSettings,
        make: MakeMember,
        make_policy: MakePolicy,
        clock: Clock,
        observers: Observers | None = None,
    ) -> None:
        ids = [str(number) for number in range(settings.replicas)]
        self._settings = settings
        self._make_policy = make_policy
        self._clock = clock
        self._observers = observers or Observers()
        self._router = Router(ids, LeastWork(), settings.route)
        self._members = {each: make(each, self._watching(each)) for each in ids}
        self._up: set[str] = set()  # those with a process that has loaded
        self._boxes: dict[str, LastingMailbox] = {}  # of requests whose end was not read
        self._moved = asyncio.Event()  # set, and replaced, at every change
        self._first: asyncio.Future[StartError | None] | None = None
        self._starting: asyncio.Task[None] | None = None
        self._is_stopping = False

    def start(self) -> None:
        """Begin to start them; returns at once."""
        assert self._starting is None, "a set starts once"
        loop = asyncio.get_running_loop()
        self._first = loop.create_future()
        self._starting = loop.create_task(self._start_all(), name="replica-set")

    async def wait_ready(self) -> ReplicaHello:
        """Wait until all have loaded; raises the StartError of the first that could not."""
        assert self._first is not None, "not started"
        error = await asyncio.shield(self._first)
        if error is not None:
            raise error
        hello = self.view().hello
        if hello is None:  # all have died since
            raise StartError("no replica is left of those that had loaded")
        return hello

    async def stop(self) -> None:
        """End all of them; returns when no child is left."""
        self._is_stopping = True
        self._tell()
        await asyncio.gather(*(each.stop() for each in self._members.values()))
        if self._starting is not None:
            await self._starting

    def view(self) -> ReplicaView:
        """What is known of them together, and of each; never blocks."""
        now, router = self._clock.now(), self._router
        members = [
            MemberView(
                id=name,
                view=each.view(),
                in_flight=router.book.in_flight(name),
                work_s=router.book.work(name),
                is_ejected=router.is_ejected(name, now),
            )
            for name, each in self._members.items()
        ]
        seen = joint_view(members, has_loaded=self._has_loaded)
        return msgspec.structs.replace(seen, routed=router.counts)

    def call(self, request: EngineRequest) -> Mailbox:
        """Send a request to the replica that its router chooses; raises ReplicaNotReady."""
        self._router.budget.came(self._clock.now())
        attempt = self._send(request)
        tries = Tries(self._router.budget)
        box = LastingMailbox(request, attempt, tries, self, self._clock.now)
        self._boxes[request.id] = box
        return box

    def cancel(self, request_id: str) -> None:
        """Have its replica free what it holds; it goes on nowhere."""
        box = self._boxes.pop(request_id, None)
        if box is not None:
            box.is_cancelled = True
            self._members[box.replica].cancel(box.attempt.id)

    async def go_on(self, lost: LastingMailbox, error: ReplicaLost) -> Attempt:
        """Send what is left of a request to another replica, once there is one."""
        now = self._clock.now()
        until = now + self._settings.failover_wait_s
        if self._is_stopping or not lost.tries.may_go_on(now):
            raise self._broken(lost, error)
        while not (self._is_stopping or lost.is_cancelled):
            moved = self._moved
            try:
                return self._send_rest(lost)
            except ReplicaNotReady as refusal:
                error = ReplicaLost(error.message, refusal.retry_after_s)
            left = until - self._clock.now()
            if left <= 0:
                break
            await until_set(moved, min(left, LOOK_AGAIN_S))
        raise self._broken(lost, error)

    def go_elsewhere(self, refused: LastingMailbox) -> Attempt | None:
        """Send a request that was refused to a replica that has not refused it yet."""
        now = self._clock.now()
        if self._is_stopping or not self._others(refused.refused_by):
            return None
        if not refused.tries.may_go_on(now):
            return None
        try:
            return self._send_rest(refused)
        except ReplicaNotReady:
            return None

    def closed(self, request_id: str) -> None:
        """The end of a request was read."""
        self._boxes.pop(request_id, None)

    @property
    def _has_loaded(self) -> bool:
        return self._first is not None and self._first.done() and self._first.result() is None

    def _others(self, without: set[str]) -> list[str]:
        return [
            name
            for name, each in self._members.items()
            if name in self._up and name not in without
            if each.view().state is ReplicaState.READY
        ]

    def _send_rest(self, box: LastingMailbox) -> Attempt:
        request = box.rest(f"{box.request.id}{BETWEEN}{box.tries.count}")
        before = box.replica
        attempt = self._send(request, box.refused_by)
        counts, about = self._router.counts, {"replica": attempt.replica, "before": before}
        if box.has_begun:
            counts.continued += 1
            tokens = sum(len(each.token_ids) for each in request.emitted)
            log.info(
                "request_continued",
                extra={"engine_request": box.request.id, "tokens": tokens} | about,
            )
        else:
            counts.retried += 1
            log.info("request_retried", extra={"engine_request": box.request.id} | about)
        return attempt

    def _send(self, request: EngineRequest, without: set[str] | None = None) -> Attempt:
        """To the best replica that takes it; raises ReplicaNotReady."""
        now, up = self._clock.now(), self._others(without or set())
        if not self._has_loaded:
            raise self.view().refusal()
        while (choice := self._router.choose(up, request, now)) is not None:
            self._router.sent(choice, request.id, request)  # its end may come within the call
            try:
                box = self._members[choice.id].call(request)
            except ReplicaNotReady:  # it has died, and that is not known yet
                self._router.not_taken(choice, request.id)
                up.remove(choice.id)
                continue
            return Attempt(choice.id, request.id, box, choice.reason)
        raise self.view().refusal()

    def _broken(self, lost: LastingMailbox, error: ReplicaLost) -> ReplicaLost:
        self._boxes.pop(lost.request.id, None)
        if not self._is_stopping and not lost.is_cancelled:
            self._router.counts.broken += 1
        return error

    async def _start_all(self) -> None:
        first, *others = self._members
        try:
            await self._load([first])
            if not self._is_stopping:
                await self._load(others)
        except StartError as error:
            self._settle(error)
            return
        hello = self._members[first].view().hello
        if hello is not None:
            self._router.policy = self._make_policy(hello)
        self._settle(StartError("stopped") if self._is_stopping else None)

    async def _load(self, names: Sequence[str]) -> None:
        for name in names:
            self._members[name].start()
        for name in names:
            try:
                await self._members[name].wait_ready()
            except StartError as error:
                raise StartError(f"replica {name}: {error.message}") from error

    def _settle(self, outcome: StartError | None) -> None:
        assert self._first is not None, "not started"
        self._first.set_result(outcome)
        self._tell()
        self._observers.on_state(self.view())

    def _watching(self, name: str) -> Observers:
        """What one replica tells goes to the router, and on to who watches the set."""
        outer = self._observers

        def on_report(report: StepReport) -> None:
            self._router.told(name, report, self._clock.now())
            outer.on_report(report)

        def on_load(progress: LoadProgress) -> None:
            if name == "0":  # the others do the same
                outer.on_load(progress)

        def on_state(view: ReplicaView) -> None:
            self._note(name, view)
            self._tell()
            outer.on_state(self.view())

        return Observers(on_report=on_report, on_load=on_load, on_state=on_state)

    def _note(self, name: str, view: ReplicaView) -> None:
        now, was_up = self._clock.now(), name in self._up
        log.info("replica_state", extra={"replica": name, "state": view.state.value})
        if view.state is ReplicaState.READY:
            if was_up or view.restarts:
                self._router.back(name, now)
            self._up.add(name)
        elif view.state is not ReplicaState.STALLED:
            self._up.discard(name)
            self._router.lost(name)
        self._rescue()

    def _rescue(self) -> None:
        """Move what a stalled replica has, as soon as another one can go on with it."""
        if not self._others(set()):
            return
        for name in tuple(self._up):
            member = self._members[name]
            if member.view().state is not ReplicaState.STALLED:
                continue
            for box in tuple(self._boxes.values()):
                if box.replica == name:
                    member.abandon(box.attempt.id, "its replica makes no progress")

    def _tell(self) -> None:
        """Wake whoever waits for a change."""
        self._moved.set()
        self._moved = asyncio.Event()
