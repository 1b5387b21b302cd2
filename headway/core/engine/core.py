"""EngineCore: requests in, plans out, results in, events out.

Single-threaded and without I/O: whoever drives it owns the clock, the executor and the
sockets. One step may be in flight: `plan` may be called again before `commit`.
"""

from collections import deque
from typing import NamedTuple

from headway.core.base.errors import InvalidRequest, PromptTooLong
from headway.core.base.units import Seconds
from headway.core.cost.work import StepWork
from headway.core.engine.door import Door
from headway.core.engine.finish import Ledger, finished_event
from headway.core.engine.parts import make_scheduler
from headway.core.engine.planning import build_plan
from headway.core.engine.resume import streamers_of
from headway.core.engine.settings import ResolvedEngine
from headway.core.engine.stop import end_ids, take_token
from headway.core.kv.table import BlockTable
from headway.core.messages.health import ReplicaStatus
from headway.core.messages.path import EngineRequest, Event, FinishReason, Started, Tokens
from headway.core.messages.step import StepPlan, StepResult
from headway.core.sched.deadline import StepFacts
from headway.core.sched.pressure import Rung
from headway.core.sched.scheduler import Row
from headway.core.sched.sequence import RequestGroup, Sequence, State
from headway.core.tenancy.tenant import NUM_CLASSES, SloClass
from headway.core.text.streamer import TokenStreamer
from headway.core.text.tokenizer import Decodes


class _InFlight(NamedTuple):
    """A plan that was handed out, and the tables its rows had then.

    A row counts at commit only if its sequence still has that very table: one that has
    ended or was preempted meanwhile does not.
    """

    plan: StepPlan
    rows: list[Row]
    tables: list[BlockTable | None]
    work: StepWork
    planned: Seconds


class EngineCore:
    """The engine's decisions for one replica, the same under real and simulated time."""

    def __init__(self, settings: ResolvedEngine, tokenizer: Decodes, *, model: str = "") -> None:
        self.settings = settings
        self.scheduler = make_scheduler(settings, model)
        self.grid = self.scheduler.kv.grid
        self._door = Door(self.scheduler, settings.ageing)
        self._tokenizer = tokenizer
        self._groups: dict[str, RequestGroup] = {}
        self._streamers: dict[int, TokenStreamer] = {}
        self._in_flight: deque[_InFlight] = deque()
        self._events: list[Event] = []
        self._next_sequence = 0
        self._ledger = Ledger()

    def add(self, request: EngineRequest, now: Seconds) -> None:
        """Put a request into the line.

        Raises, and takes nothing: PromptTooLong or InvalidRequest when it can never run
        here, QueueFull when too much waits already, DeadlineUnmeetable when its class is
        promised a first token sooner than it could come. One that goes on from another
        replica is computed anew as far as that had come, and then goes on as if undisturbed.
        """
        self._check_request(request)
        ends = end_ids(request.sampling, self._tokenizer.eos_ids)
        streamers = streamers_of(request, ends, self._tokenizer)
        if not request.emitted:  # what goes on was let in before
            self._door.ask(request, now)
        group = RequestGroup(request, now)
        for choice, streamer in enumerate(streamers):
            sequence = Sequence(self._next_sequence, group, choice, ends)
            self._next_sequence += 1
            group.sequences.append(sequence)
            if request.emitted and sequence.go_on(request.emitted[choice]) is State.FINISHED:
                continue
            self._streamers[sequence.id] = streamer
            self.scheduler.join(sequence, now)
        self._groups[request.id] = group
        self._ledger.prompt_tokens += len(request.prompt)
        if all(s.state is State.FINISHED for s in group.sequences):  # only its end was lost
            reason = request.emitted[-1].finish_reason or FinishReason.STOP
            self._events.append(self._close_group(group, reason, now))

    def cancel(self, request_id: str, now: Seconds) -> list[Event]:
        """Nobody waits for the request any more; its blocks are free on return.

        Returns its `Finished`, or nothing if it has ended already or was never here.
        """
        group = self._groups.get(request_id)
        if group is None:
            return []
        for sequence in group.sequences:
            if sequence.state is not State.FINISHED:
                self._end(sequence)
        # Nothing may follow its end, so what has not been told of it yet never is.
        self._events = [event for event in self._events if event.request_id != request_id]
        return [self._close_group(group, FinishReason.CANCELLED, now)]

    def plan(self, now: Seconds) -> StepPlan | None:
        """The next step, or None when there is nothing to compute now. Never raises."""
        assert len(self._in_flight) < 2, "two plans are in flight already"
        previous = self._in_flight[-1].plan if self._in_flight else None
        self._door.watch(now)
        self.scheduler.kv.tick(now)
        rows = self.scheduler.plan(now)
        if not rows:
            return None
        for row in rows:
            self._mark_started(row.sequence.group, row.sequence, now)
        kv = self.scheduler.kv
        moves = kv.take_moves()
        plan = build_plan(self._ledger.next_step(), rows, previous, moves, kv.num_shared)
        tables = [row.sequence.table for row in rows]
        self._in_flight.append(_InFlight(plan, rows, tables, self.scheduler.budget.work, now))
        return plan

    def commit(self, plan: StepPlan, result: StepResult, now: Seconds) -> list[Event]:
        """Take a step's result: tokens, text and ends, one `Tokens` a sequence. Never raises."""
        in_flight = self._in_flight.popleft()
        assert plan is in_flight.plan, f"step {plan.step} is committed out of order"
        assert result.step == plan.step, f"result of step {result.step} for step {plan.step}"
        events = self.take_events()
        alive = [
            row.sequence.table is table and table is not None
            for row, table in zip(in_flight.rows, in_flight.tables, strict=True)
        ]
        began = max(in_flight.planned, self._ledger.last_commit)
        self._moved(plan, result)
        took = Seconds(max(0.0, now - began - result.moves_s))
        self.scheduler.budget.cost.observe(in_flight.work, took)
        was_full = self.scheduler.num_free_slots < 1
        prompt_tokens = _prompt_tokens(in_flight.rows, alive)
        self._ledger.took_step(len(alive), alive.count(False), now)
        a_token = took / sum(plan.num_tokens)
        for row, is_alive in zip(in_flight.rows, alive, strict=True):
            if is_alive:
                self._computed(row, row.num_tokens * a_token)
        for score, found in zip(plan.scores, result.scores, strict=True):
            row = in_flight.rows[score.row]
            known = row.sequence.group.scores
            if alive[score.row]:  # after a preemption the first of them are known already
                known.extend(found[len(known) - row.start - 1 :])
        for draw, index in enumerate(plan.sample_rows):
            if alive[index]:
                sequence = in_flight.rows[index].sequence
                events += self._drew(sequence, result, draw, now)
        ended = sum(row.sequence.state is State.FINISHED for row in in_flight.rows)
        facts = StepFacts(prompt_tokens, ended, was_full, max(0.0, now - began))
        self._door.took_step(facts, now)
        return events

    def take_events(self) -> list[Event]:
        """Events that arose outside `commit` (`Started`), and forget them."""
        events, self._events = self._events, []
        return events

    def has_work(self) -> bool:
        """True while any request has not ended."""
        return bool(self._groups)

    def status(self) -> ReplicaStatus:
        """Gauges and totals of this moment."""
        scheduler, kv, ledger = self.scheduler, self.scheduler.kv, self._ledger
        queue = scheduler.queue
        return ReplicaStatus(
            num_running=len(scheduler.running),
            num_waiting=len(queue),
            waiting_tokens=queue.num_tokens,
            total_blocks=kv.num_blocks,
            free_blocks=kv.num_free,
            cached_blocks=kv.num_cached,
            num_steps=ledger.num_steps,
            last_step_rows=ledger.last_step_rows,
            prompt_tokens=ledger.prompt_tokens,
            computed_prompt_tokens=ledger.computed_prompt_tokens,
            generated_tokens=ledger.generated_tokens,
            prefix_queries=ledger.prefix_queries,
            prefix_hits=ledger.prefix_hits,
            preemptions=scheduler.preemptions.total,
            preemptions_for_class=scheduler.preemptions.for_class,
            wasted_rows=ledger.wasted_rows,
            prefix_host_hits=ledger.prefix_host_hits,
            preemptions_swapped=sum(scheduler.preemptions.swapped),
            swapped_by_class=tuple(scheduler.preemptions.swapped),
            recomputed_by_class=tuple(scheduler.preemptions.recomputed),
            swapped_out_blocks=kv.host.num_saved,
            swapped_in_blocks=kv.host.num_loaded,
            host_blocks_used=kv.host.used,
            host_blocks_total=kv.host.total,
            rung=scheduler.ladder.rung if self._groups else Rung.NORMAL,
            waiting_by_class=tuple(queue.waiting_of(each).sequences for each in SloClass),
            prefill_rate=self._door.forecast.prefill_rate or 0.0,
            best_effort_wait_s=self._door.best_effort_wait if self._groups else 0.0,
        )

    def check(self) -> None:
        """Every invariant that can be tested at rest; for tests and an idle driver."""
        self.scheduler.running.check()
        running = list(self.scheduler.running.values())
        tables = [s.table for s in running if s.table is not None]
        assert len(tables) == len(running), "a running sequence has no table"
        kept = self.scheduler.swap.kept
        self.scheduler.kv.check(tables, list(kept.values()))
        waiting = {sequence.id for sequence in self.scheduler.queue}
        assert set(kept) <= waiting, "blocks are kept for a sequence that does not wait"
        for sequence in self.scheduler.queue:
            assert sequence.table is None, f"waiting sequence {sequence.id} holds blocks"
        known = {s.id for g in self._groups.values() for s in g.sequences}
        live = {s.id for s in running} | {s.id for s in self.scheduler.queue}
        assert live <= known, "a sequence outlived its request"
        assert set(self._streamers) == live, "text state and live sequences differ"

    def _check_request(self, request: EngineRequest) -> None:
        prompt, sampling = len(request.prompt), request.sampling
        if request.id in self._groups:
            raise InvalidRequest(f"request id {request.id!r} is in use", param="request_id")
        if prompt < 1:
            raise InvalidRequest("the prompt has no tokens", param="prompt")
        if sampling.max_tokens < 1 or request.num_choices < 1:
            raise InvalidRequest("max_tokens and n must be at least 1", param="max_tokens")
        if not 0 <= request.slo_class < NUM_CLASSES or not request.tenant_weight > 0.0:
            raise InvalidRequest(
                f"class {request.slo_class} or weight {request.tenant_weight:g} is impossible"
            )
        if prompt + sampling.max_tokens > self.settings.max_model_len:
            raise PromptTooLong(
                f"the context is {self.settings.max_model_len} tokens, but the prompt has "
                f"{prompt} and max_tokens is {sampling.max_tokens}",
                param="max_tokens",
            )

    def _mark_started(self, group: RequestGroup, sequence: Sequence, now: Seconds) -> None:
        if group.first_planned is None:
            group.first_planned = now
            group.cached_tokens = min(sequence.num_computed, sequence.num_prompt)
            self._ledger.prefix_queries += sequence.num_prompt
            self._ledger.prefix_hits += group.cached_tokens
            table = sequence.table
            assert table is not None, f"sequence {sequence.id} starts without a table"
            group.account.cached_host_tokens = table.num_cached_host
            self._ledger.prefix_host_hits += table.num_cached_host
            self._events.append(
                Started(
                    request_id=group.request.id,
                    at=now,
                    cached_tokens=group.cached_tokens,
                    cached_host_tokens=table.num_cached_host,
                    miss_reason=table.miss,
                )
            )

    def _moved(self, plan: StepPlan, result: StepResult) -> None:
        """The step's moves between the tiers are done."""
        self.scheduler.kv.host_ready(result.num_host_blocks)
        self.scheduler.swap.moved(len(plan.saves) + len(plan.loads), result.moves_s)

    def _computed(self, row: Row, seconds: float) -> None:
        """Positions of the row are computed now; its part of the step took so long."""
        sequence = row.sequence
        end = row.start + row.num_tokens
        sequence.group.account.computed(sequence, row.start, end, seconds)
        new_prompt = min(end, sequence.num_prompt) - sequence.num_computed
        self._ledger.computed_prompt_tokens += max(0, new_prompt)
        sequence.num_computed = end
        assert sequence.table is not None, f"sequence {sequence.id} runs without a table"
        # A token still being sampled is not known yet; its block is named one step later.
        known = min(end, len(sequence.tokens))
        self.scheduler.kv.fill(sequence.table, sequence.tokens, known)

    def _drew(self, sequence: Sequence, result: StepResult, draw: int, now: Seconds) -> list[Event]:
        """One token was drawn for a sequence that is still alive."""
        group, position = sequence.group, sequence.num_outputs
        token_id, logprob = result.token_ids[draw], result.logprobs[draw]
        sequence.tokens.append(token_id)
        sequence.num_pending -= 1
        self._ledger.generated_tokens += 1
        if group.first_token is None:
            group.first_token = now
        gain = take_token(
            token_id,
            position,
            group.request.sampling,
            sequence.sampling_state.end_ids,
            self._streamers[sequence.id],
        )
        # Once a request: the other choices start after the first one's first token, and with
        # each of them the scores of long prompts would outgrow a frame.
        is_first = sequence is sequence.leader and position == 0
        with_scores = group.request.sampling.prompt_logprobs and is_first
        events: list[Event] = [
            Tokens(
                request_id=group.request.id,
                choice=sequence.choice,
                token_ids=(token_id,),
                text=gain.text,
                at=now,
                logprobs=() if logprob is None else (logprob,),
                prompt_logprobs=tuple(group.scores) if with_scores else (),
                finish_reason=gain.finish_reason,
                stop_reason=gain.stop_reason,
            )
        ]
        if gain.finish_reason is not None:
            self._end(sequence)
            if all(s.state is State.FINISHED for s in group.sequences):
                events.append(self._close_group(group, gain.finish_reason, now))
        return events

    def _end(self, sequence: Sequence) -> None:
        self.scheduler.end(sequence)
        del self._streamers[sequence.id]

    def _close_group(self, group: RequestGroup, reason: FinishReason, now: Seconds) -> Event:
        del self._groups[group.request.id]
        return finished_event(group, reason, now)


def _prompt_tokens(rows: list[Row], alive: list[bool]) -> tuple[int, ...]:
    """Prompt tokens that a step computed, a class."""
    tokens = [0] * NUM_CLASSES
    for row, is_alive in zip(rows, alive, strict=True):
        if is_alive and row.start < row.sequence.num_prompt:
            tokens[row.sequence.group.request.slo_class] += row.num_tokens
    return tuple(tokens)
