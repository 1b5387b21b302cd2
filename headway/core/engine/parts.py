"""What an engine's scheduler is made of, from the settings."""

from headway.core.base.units import blocks_for
from headway.core.engine.settings import ResolvedEngine
from headway.core.kv.manager import KvManager
from headway.core.kv.table import BlockGrid
from headway.core.sched.chunks import StepBudget
from headway.core.sched.lanes import Lanes, LaneSettings
from headway.core.sched.pressure import Ladder, LadderLimits
from headway.core.sched.queue import QueueLimits, WaitingQueue
from headway.core.sched.scheduler import Parts, Scheduler


def make_scheduler(settings: ResolvedEngine, model: str) -> Scheduler:
    """The scheduler with its parts, all empty."""
    width = blocks_for(settings.max_model_len, settings.block_size)
    kv = KvManager(
        settings.num_blocks,
        settings.block_size,
        # One row more than can run: a newcomer's needs are known before anybody gives way.
        BlockGrid(settings.max_num_seqs + 1, width),
        model=model,
        enable_prefix_caching=settings.enable_prefix_caching,
    )
    limits = QueueLimits(settings.max_waiting_requests, settings.max_waiting_tokens)
    lanes = LaneSettings(
        settings.long_prompt,
        settings.long_output,
        settings.slow_lane_share,
        settings.max_model_len,
    )
    budget = StepBudget(settings.max_num_batched_tokens, settings.itl_target)
    return Scheduler(
        Parts(
            kv,
            WaitingQueue(limits, settings.ageing),
            Lanes(lanes, budget, settings.max_num_seqs),
            Ladder(LadderLimits(refuse_delay=settings.ageing)),
        ),
        max_num_seqs=settings.max_num_seqs,
    )
