"""What is counted: a request's usage at its end, an engine's totals since its start."""

from dataclasses import dataclass

from headway.core.base.units import Seconds
from headway.core.messages.path import Finished, FinishReason, Usage
from headway.core.sched.sequence import RequestGroup


@dataclass(slots=True)
class Ledger:
    """Totals of one engine; they only rise."""

    num_planned: int = 0
    num_steps: int = 0  # committed
    last_step_rows: int = 0
    prompt_tokens: int = 0
    computed_prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_queries: int = 0  # prompt tokens looked up when a request first started
    prefix_hits: int = 0
    prefix_host_hits: int = 0  # those of them that came from the host tier
    wasted_rows: int = 0
    last_commit: float = 0.0  # on the engine's clock

    def next_step(self) -> int:
        """Number of the step that is planned now."""
        self.num_planned += 1
        return self.num_planned

    def took_step(self, num_rows: int, num_wasted: int, now: Seconds) -> None:
        """A step was committed; `num_wasted` of its rows had ended in between."""
        self.last_commit = now
        self.num_steps += 1
        self.last_step_rows = num_rows
        self.wasted_rows += num_wasted


def finished_event(group: RequestGroup, reason: FinishReason, now: Seconds) -> Finished:
    """The request's one end, with its usage."""
    started = now if group.first_planned is None else group.first_planned
    first = now if group.first_token is None else group.first_token
    account = group.account
    usage = Usage(
        prompt_tokens=len(group.request.prompt),
        completion_tokens=sum(s.num_outputs for s in group.sequences),
        cached_tokens=group.cached_tokens,
        queue_s=started - group.arrived,
        prefill_s=first - started,
        decode_s=now - first,
        cached_host_tokens=account.cached_host_tokens,
        device_s=account.device_s,
        num_chunks=account.num_chunks,
        preemptions=account.preemptions,
        preemptions_swapped=account.preemptions_swapped,
        recomputed_tokens=account.recomputed_tokens,
    )
    return Finished(request_id=group.request.id, reason=reason, usage=usage)
