"""What a replica tells about itself."""

import msgspec

from headway.core.base.units import Seconds
from headway.core.messages.path import Event


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Gauges and totals of one engine at one moment; totals never fall within a process."""

    num_running: int
    num_waiting: int
    waiting_tokens: int  # prompt tokens of waiting sequences
    total_blocks: int
    free_blocks: int
    cached_blocks: int  # unreferenced, but kept for the prefix cache: evictable
    num_steps: int = 0  # committed; health is progress, and this is the progress
    last_step_rows: int = 0
    prompt_tokens: int = 0  # totals from here on
    computed_prompt_tokens: int = 0  # prompt tokens that were really computed
    generated_tokens: int = 0
    prefix_queries: int = 0  # prompt tokens looked up
    prefix_hits: int = 0  # prompt tokens found
    prefix_host_hits: int = 0  # those of them that came from the host tier
    preemptions: int = 0
    preemptions_swapped: int = 0  # of them: kept in the host tier, not to be computed again
    swapped_out_blocks: int = 0  # copied to the host tier
    swapped_in_blocks: int = 0  # copied back
    wasted_rows: int = 0  # planned in flight, dropped because their sequence had ended
    preemptions_for_class: int = 0  # of them: for a more important class
    rung: int = 0  # of the pressure ladder: 0 normal, 1 swap, 2 hold, 3 refuse
    waiting_by_class: tuple[int, ...] = ()  # sequences: vip, standard, internal
    prefill_rate: float = 0.0  # prompt tokens a second, lately; 0: not measured
    best_effort_wait_s: float = 0.0  # for the first token of a best-effort request that came now
    host_blocks_used: int = 0  # blocks of the host tier that hold something
    host_blocks_total: int = 0  # its limit; memory for them is taken as it is needed
    swapped_by_class: tuple[int, ...] = ()  # preemptions: vip, standard, internal
    recomputed_by_class: tuple[int, ...] = ()  # those whose blocks were not kept
    memory_used: int = 0  # bytes of weights and of KV blocks in use
    memory_budget: int = 0  # bytes of weights and of the whole KV pool


class ReplicaHello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """First message of a replica: loaded, warmed, and this is what it can do."""

    pid: int
    max_model_len: int
    block_size: int
    num_blocks: int
    max_num_seqs: int
    dtype: str
    executor: str  # e.g. "torch cpu, sdpa attention, 2 threads"
    weight_bytes: int
    load_s: float
    status: ReplicaStatus


class ReplicaFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The replica could not start, or its loop ended; `message` is one line for people."""

    message: str


class StepReport(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """One message a step: all events of the step, and the state after it."""

    events: tuple[Event, ...]
    status: ReplicaStatus
    step_s: float = 0.0  # seconds of the step's execution


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag="heartbeat"):
    """Once a second, from a thread of its own, also while a step runs.

    `since_progress_s` is how long work has been pending without a step completing;
    0 while idle, so that an idle engine is never called stalled.
    """

    at: Seconds
    num_steps: int
    since_progress_s: float


class LoadProgress(msgspec.Struct, frozen=True, kw_only=True, tag="loading"):
    """While loading: how far it is."""

    stage: str  # "weights", "warm-up"
    done: int
    total: int


Report = ReplicaHello | ReplicaFailed | StepReport | Heartbeat | LoadProgress
