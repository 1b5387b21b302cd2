"""Replicas in this thread: the real engine on scripted logits, moved and killed by a test."""

import asyncio
from collections.abc import Callable

from headway.core.base.clock import ManualClock
from headway.core.base.errors import HeadwayError, ReplicaNotReady, StartError
from headway.core.base.units import Seconds
from headway.core.engine.core import EngineCore
from headway.core.messages.health import ReplicaHello, StepReport
from headway.core.messages.path import EngineRequest, Event, Finished, Tokens
from headway.service.control.failover import LastingMailbox
from headway.service.control.replica_set import ReplicaSet, ReplicaSetSettings, by_prefix
from headway.service.control.supervise import Observers
from headway.service.replica.driver import refusal
from headway.service.wire.mailbox import Mailboxes, RequestMailbox
from headway.service.wire.transport import Mailbox, ReplicaState, ReplicaView
from tests.fakes import ByteTokenizer, ScriptedExecutor, engine_settings

RETRY_AFTER = Seconds(3.0)


class EngineMember:
    """A Member whose process is an EngineCore of its own."""

    def __init__(
        self, observers: Observers, clock: ManualClock, settings: dict[str, int] | None = None
    ) -> None:
        self._observers = observers
        self._clock = clock
        self._settings = settings or {}
        self._boxes = Mailboxes()
        self._loaded: asyncio.Future[StartError | None] = asyncio.Future()
        self.state, self.reason = ReplicaState.STARTING, "not started"
        self.restarts = 0
        self.loads_by_itself = True  # as soon as it is started
        self.received: list[EngineRequest] = []
        self._new_process()

    def start(self) -> None:
        """Loaded at once, unless the test does that."""
        self.reason = "loading"
        if self.loads_by_itself:
            self.load()

    def load(self, error: StartError | None = None) -> None:
        """The first load ends, well or badly."""
        if not self._loaded.done():
            self._loaded.set_result(error)
        if error is None:
            self.move(ReplicaState.READY, "ready")
        else:
            self.move(ReplicaState.FAILED, error.message)

    async def wait_ready(self) -> ReplicaHello:
        """Wait for the first load; raises its StartError."""
        error = await asyncio.shield(self._loaded)
        if error is not None:
            raise error
        return self._hello()

    async def stop(self) -> None:
        """End, and fail what is open."""
        if not self._loaded.done():
            self._loaded.set_result(StartError("stopped before the engine had started"))
        self._boxes.fail_all("the engine was stopped", RETRY_AFTER)
        self.move(ReplicaState.STOPPED, "stopped")

    def view(self) -> ReplicaView:
        """As a Supervisor shows it."""
        is_up = self.state in (ReplicaState.READY, ReplicaState.STALLED)
        return ReplicaView(
            state=self.state,
            reason=self.reason,
            since_s=0.0,
            restarts=self.restarts,
            retry_after_s=RETRY_AFTER,
            hello=self._hello() if is_up else None,
            status=self.core.status() if is_up else None,
        )

    def call(self, request: EngineRequest) -> RequestMailbox:
        """Into the engine at once."""
        if self.state is not ReplicaState.READY:
            raise ReplicaNotReady(self.reason, RETRY_AFTER)
        self.received.append(request)
        box = self._boxes.open(request.id)
        try:
            self.core.add(request, self._clock.now())
        except HeadwayError as error:
            self._report([refusal(request, error)])
        return box

    def cancel(self, request_id: str) -> None:
        """Out of the engine at once, unless it is stalled."""
        if self.state is ReplicaState.READY:
            self._report(self.core.cancel(request_id, self._clock.now()))

    def abandon(self, request_id: str, cause: str) -> None:
        """As a Supervisor does."""
        self._boxes.fail(request_id, cause, RETRY_AFTER)
        self.cancel(request_id)

    def step(self) -> bool:
        """One step of the engine; False when it had nothing to do."""
        if self.state is not ReplicaState.READY:
            return False
        plan = self.core.plan(self._clock.now())
        events = self.core.take_events()
        if plan is not None:
            self.executor.submit(plan)
            events += self.core.commit(plan, self.executor.collect(), self._clock.now())
        if events:
            self._report(events)
        return plan is not None

    def kill(self) -> None:
        """Its process has gone."""
        self._new_process()
        self.move(ReplicaState.STARTING, "the engine process was killed")
        self._boxes.fail_all("the engine process was killed", RETRY_AFTER)

    def come_back(self) -> None:
        """It has been started again."""
        self.restarts += 1
        self.move(ReplicaState.READY, "ready")

    def move(self, state: ReplicaState, reason: str) -> None:
        """It is in another state."""
        self.state, self.reason = state, reason
        self._observers.on_state(self.view())

    def _new_process(self) -> None:
        settings = {"max_model_len": 256, "num_blocks": 256, "max_num_seqs": 8} | self._settings
        self.core = EngineCore(engine_settings(**settings), ByteTokenizer())  # type: ignore[arg-type]
        self.executor = ScriptedExecutor(self.core)

    def _report(self, events: list[Event]) -> None:
        self._boxes.deliver(events)
        self._observers.on_report(StepReport(events=tuple(events), status=self.core.status()))

    def _hello(self) -> ReplicaHello:
        settings = self.core.settings
        return ReplicaHello(
            pid=1,
            max_model_len=settings.max_model_len,
            block_size=settings.block_size,
            num_blocks=settings.num_blocks,
            max_num_seqs=settings.max_num_seqs,
            dtype="float32",
            executor="scripted",
            weight_bytes=5,
            load_s=1.0,
            status=self.core.status(),
        )


class Reader:
    """Takes every event of a mailbox as it comes."""

    def __init__(self, box: Mailbox) -> None:
        assert isinstance(box, LastingMailbox)
        self.box = box
        self.events: list[Event] = []
        self.error: HeadwayError | None = None
        self.task = asyncio.ensure_future(self._read(box))

    @property
    def num_tokens(self) -> int:
        """Tokens so far, of all choices."""
        return sum(len(each.token_ids) for each in self.events if isinstance(each, Tokens))

    @property
    def end(self) -> Finished:
        """Its Finished."""
        assert self.error is None, self.error
        assert isinstance(self.events[-1], Finished), self.events[-1:]
        return self.events[-1]

    async def _read(self, box: Mailbox) -> None:
        try:
            while not self.events or not isinstance(self.events[-1], Finished):
                self.events.append(await box.get())
        except HeadwayError as error:
            self.error = error


class Site:
    """A set of such members, and the hands that move them."""

    def __init__(
        self,
        count: int = 2,
        settings: ReplicaSetSettings | None = None,
        engine: dict[str, int] | None = None,
        observers: Observers | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.members: list[EngineMember] = []

        def make(name: str, watching: Observers) -> EngineMember:
            assert name == str(len(self.members))
            self.members.append(EngineMember(watching, self.clock, engine))
            return self.members[-1]

        settings = settings or ReplicaSetSettings(replicas=count)
        self.set = ReplicaSet(settings, make, by_prefix("m", 1.5), self.clock, observers)

    async def ready(self) -> "Site":
        """All have loaded."""
        self.set.start()
        await self.set.wait_ready()
        return self

    def read(self, request: EngineRequest) -> Reader:
        """Send a request and read all of its answer."""
        return Reader(self.set.call(request))

    def working_on(self, reader: Reader) -> EngineMember:
        """The member that has its request."""
        return self.members[int(reader.box.replica)]

    async def tokens(self, reader: Reader, count: int) -> None:
        """Turn until so many tokens were read."""
        await self.until(lambda: reader.num_tokens >= count)

    async def turn(self) -> None:
        """One step of every member, and its events read."""
        self.clock.advance(0.01)
        for member in self.members:
            member.step()
        await settle()

    async def until(self, fact: Callable[[], bool], limit: int = 2000) -> None:
        """Turn until it is so."""
        for _ in range(limit):
            if fact():
                return
            await self.turn()
        raise AssertionError(f"not so after {limit} turns")


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(4):
        await asyncio.sleep(0)
