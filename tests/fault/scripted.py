"""An engine and an executor that follow a script, for tests of everything around them.

A request gets `max_tokens` tokens, one a step. The first id of its prompt is an order to the
executor: COUNT computes, HANG never comes back, CRASH raises.
"""

import threading
from array import array
from collections import deque

from headway.core.base.errors import InvalidRequest, QueueFull
from headway.core.base.model_card import ModelCard
from headway.core.base.units import Seconds
from headway.core.engine.settings import EngineSettings
from headway.core.messages.health import ReplicaHello, ReplicaStatus
from headway.core.messages.path import (
    EngineRequest,
    Event,
    Finished,
    FinishReason,
    Sampling,
    Started,
    Tokens,
    Usage,
)
from headway.core.messages.step import StepPlan, StepResult
from headway.service.wire.spec import ReplicaSpec

COUNT, HANG, CRASH = 1, 2, 3
MAX_OPEN = 8
SECRET = "what the client wrote"

CARD = ModelCard(
    path="/nowhere/scripted.gguf",
    name="scripted",
    architecture="llama",
    num_layers=1,
    hidden_size=8,
    intermediate_size=16,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    rope_dim=8,
    rope_theta=10000.0,
    vocab_size=16,
    context_length=64,
    norm_eps=1e-5,
)
SPEC = ReplicaSpec(model_path=CARD.path, card=CARD, engine=EngineSettings(), log_level="warning")


def request(
    request_id: str = "r1", *, order: int = COUNT, max_tokens: int = 3, prompt_tokens: int = 1
) -> EngineRequest:
    """A request whose first prompt id orders the executor what to do."""
    return EngineRequest(
        id=request_id,
        prompt=(order,) + (0,) * (prompt_tokens - 1),
        sampling=Sampling(max_tokens=max_tokens, seed=0),
    )


class ScriptedEngine:
    """One token a step for every open request; no memory, no cache."""

    def __init__(self) -> None:
        self._open: dict[str, EngineRequest] = {}
        self._emitted: dict[str, int] = {}
        self._begun: set[str] = set()
        self._planned: dict[int, tuple[str, ...]] = {}
        self._early: list[Event] = []
        self._num_steps = 0
        self.num_checks = 0

    def add(self, request: EngineRequest, now: Seconds) -> None:
        """Take it, unless MAX_OPEN are open or the prompt is longer than a context."""
        if len(request.prompt) > CARD.context_length:
            raise InvalidRequest("the prompt is too long", param="prompt")
        if len(self._open) >= MAX_OPEN:
            raise QueueFull("the queue is full", Seconds(1.0))
        self._open[request.id] = request
        self._emitted[request.id] = sum(len(each.token_ids) for each in request.emitted)

    def cancel(self, request_id: str, now: Seconds) -> list[Event]:
        """Forget it."""
        if request_id not in self._open:
            return []
        return [self._end(request_id, FinishReason.CANCELLED)]

    def plan(self, now: Seconds) -> StepPlan | None:
        """A row for every open request that has tokens left to plan."""
        if self._planned or not self._open:
            return None
        ids = tuple(self._open)
        for request_id in ids:
            if request_id not in self._begun:
                self._begun.add(request_id)
                self._early.append(Started(request_id=request_id, at=now, cached_tokens=0))
        self._num_steps += 1
        self._planned[self._num_steps] = ids
        rows = range(len(ids))
        return StepPlan(
            step=self._num_steps,
            tables=array("i", rows),
            starts=array("i", (self._emitted[i] for i in ids)),
            num_tokens=array("i", (1 for _ in ids)),
            token_ids=array("i", (self._open[i].prompt[0] for i in ids)),
            sequence_ids=tuple(rows),
            sample_rows=array("i", rows),
        )

    def commit(self, plan: StepPlan, result: StepResult, now: Seconds) -> list[Event]:
        """One token for every row whose request is still open."""
        events: list[Event] = []
        for request_id, token in zip(self._planned.pop(plan.step), result.token_ids, strict=True):
            if request_id not in self._open:
                continue
            self._emitted[request_id] += 1
            done = self._emitted[request_id] >= self._open[request_id].sampling.max_tokens
            events.append(
                Tokens(
                    request_id=request_id,
                    choice=0,
                    token_ids=(token,),
                    text=f"{self._emitted[request_id]} ",
                    at=now,
                    finish_reason=FinishReason.LENGTH if done else None,
                )
            )
            if done:
                events.append(self._end(request_id, FinishReason.LENGTH))
        return events

    def take_events(self) -> list[Event]:
        """The Started events of the last plan."""
        early, self._early = self._early, []
        return early

    def status(self) -> ReplicaStatus:
        """Counts of open requests and of steps; there are no blocks."""
        return ReplicaStatus(
            num_running=len(self._open),
            num_waiting=0,
            waiting_tokens=0,
            total_blocks=0,
            free_blocks=0,
            cached_blocks=0,
            num_steps=self._num_steps,
        )

    def check(self) -> None:
        """Count the call."""
        self.num_checks += 1

    def has_work(self) -> bool:
        """True while a request is open."""
        return bool(self._open)

    def _end(self, request_id: str, reason: FinishReason) -> Finished:
        request = self._open.pop(request_id)
        self._begun.discard(request_id)
        usage = Usage(
            prompt_tokens=len(request.prompt), completion_tokens=self._emitted.pop(request_id)
        )
        return Finished(request_id=request_id, reason=reason, usage=usage)


class ScriptedExecutor:
    """Draws token 7 for every row after `step_s`, or does as the row's order says."""

    def __init__(self, step_s: float = 0.0) -> None:
        self._plans: deque[StepPlan] = deque()
        self._pause = threading.Event()
        self._step_s = step_s
        self.max_in_flight = 0
        self.closed = False

    def submit(self, plan: StepPlan) -> None:
        """Queue the plan."""
        self._plans.append(plan)
        self.max_in_flight = max(self.max_in_flight, len(self._plans))

    def collect(self) -> StepResult:
        """Do the oldest plan, which takes `step_s` as a stand-in for computing."""
        plan = self._plans.popleft()
        if CRASH in plan.token_ids:
            raise RuntimeError(SECRET)
        self._pause.wait(None if HANG in plan.token_ids else self._step_s)
        rows = len(plan.sample_rows)
        return StepResult(step=plan.step, token_ids=array("i", [7] * rows), logprobs=(None,) * rows)

    def release(self) -> None:
        """Let a hanging step go on."""
        self._pause.set()

    def close(self) -> None:
        """Note that it was closed."""
        self.closed = True


def hello(pid: int) -> ReplicaHello:
    """How a scripted replica introduces itself."""
    return ReplicaHello(
        pid=pid,
        max_model_len=CARD.context_length,
        block_size=16,
        num_blocks=0,
        max_num_seqs=MAX_OPEN,
        dtype="float32",
        executor="scripted",
        weight_bytes=0,
        load_s=0.0,
        status=ScriptedEngine().status(),
    )
