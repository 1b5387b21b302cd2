"""A crowd of requests on the real model, served in many ways, and its answers to the last bit."""

from dataclasses import dataclass
from random import Random

from headway.compute.cpu.executor import CpuExecutor
from headway.compute.cpu.host_tier import HostMemory
from headway.compute.cpu.loading import LoadedModel
from headway.core.base.units import Seconds
from headway.core.engine.core import EngineCore
from headway.core.messages.path import EngineRequest, Sampling, Tokens
from headway.core.sched.preempt import Way
from headway.core.sched.sequence import Sequence
from headway.service.loaders.model_files import ModelFile
from headway.service.loaders.tokenizer_files import build_tokenizer
from tests.drive import Answer, Drive
from tests.fakes import engine_settings, request

NUM_REQUESTS = 12
Bits = list[tuple[object, ...]]
LAST_DISTURBED = 60  # who is stopped for ever before it has computed anything new never ends


@dataclass(frozen=True)
class Mix:
    """How a crowd of requests is served."""

    order: tuple[int, ...]
    arrivals: tuple[int, ...]  # step at which each of `order` arrives
    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    caching: bool
    depth: int
    num_host_blocks: int = 0
    preempt_every: int = 0  # steps after which somebody is stopped without need; 0: never
    way: Way | None = None  # in which sequences are stopped; None: the cheaper one


def random_mix(rng: Random) -> Mix:
    order = tuple(rng.sample(range(NUM_REQUESTS), rng.randint(2, NUM_REQUESTS)))
    return Mix(
        order=order,
        arrivals=tuple(rng.randrange(12) for _ in order),
        max_num_seqs=rng.randint(1, 8),
        max_num_batched_tokens=rng.choice((7, 16, 33, 64, 256)),
        num_blocks=rng.choice((9, 14, 60)),  # few enough that sequences are preempted
        caching=rng.random() < 0.5,
        depth=rng.randint(0, 1),
        num_host_blocks=rng.choice((0, 3, 40)),
        preempt_every=rng.choice((0, 2, 7)),
    )


def drive(model: LoadedModel, file: ModelFile, mix: Mix) -> Drive:
    settings = engine_settings(
        max_model_len=144,
        max_num_seqs=mix.max_num_seqs,
        max_num_batched_tokens=mix.max_num_batched_tokens,
        block_size=16,
        num_blocks=mix.num_blocks,
        enable_prefix_caching=mix.caching,
        num_host_blocks=mix.num_host_blocks,
    )
    core = EngineCore(settings, build_tokenizer(file))
    if mix.way is not None:
        force(core, mix.way)
    host = HostMemory(is_checked=True, segment_bytes=1 << 20)
    executor = CpuExecutor(model, settings, core.grid.view, core.grid.width, host)
    return Drive(core, executor, mix.depth)


def force(core: EngineCore, way: Way) -> None:
    """Stop sequences this way, whatever it costs; where it is not possible, the other."""

    def forced(sequence: Sequence, *, is_short: bool, in_part: bool = False) -> tuple[Way, float]:
        return way, float(sequence.num_computed)

    core.scheduler.swap._way = forced  # type: ignore[method-assign]


def crowd() -> list[EngineRequest]:
    """Requests that share beginnings, sample and stop in different ways, of every length."""
    rng = Random(42)
    stem = [rng.randrange(1000, 40_000) for _ in range(48)]
    made = []
    for index in range(NUM_REQUESTS):
        own = [rng.randrange(1000, 40_000) for _ in range(rng.choice((1, 5, 9, 14, 33, 60)))]
        sampling = Sampling(
            max_tokens=rng.randint(1, 36),
            seed=index,
            temperature=rng.choice((0.0, 0.8, 1.3)),
            top_k=rng.choice((0, 20)),
            top_p=rng.choice((1.0, 0.9)),
            repetition_penalty=rng.choice((1.0, 1.2)),
            stop=rng.choice(((), ("e th", "ing"))),
            num_logprobs=3,
        )
        prompt = stem[: rng.choice((0, 0, 16, 33, 48))] + own
        made.append(request(f"r{index}", prompt, sampling=sampling))
    return made


def bits(answer: Answer) -> Bits:
    """Tokens, text and log-probabilities, exactly."""
    return [
        (event.token_ids, event.text, event.logprobs, event.finish_reason)
        for event in answer.events
        if isinstance(event, Tokens)
    ]


def preempt_one(served: Drive, step: int) -> None:
    """Stop one of the running sequences, whoever's turn it is, and take what is left of it.

    Counted as one that was stopped for its blocks, which it was.
    """
    scheduler = served.core.scheduler
    if scheduler.running:
        running = list(scheduler.running.values())
        scheduler._preempt(running[step % len(running)], Seconds(served.now))
        scheduler.preemptions.for_blocks += 1
        kv, tables = scheduler.kv, []
        while kv.num_available and kv.grid.num_free_rows:
            tables.append(kv.open((0,), b"", use_cache=False))
            kv.grow(tables[-1], 0, min(kv.num_available, kv.grid.width) * kv.block_size)
        for table in tables:
            kv.close(table)


def serve(model: LoadedModel, file: ModelFile, mix: Mix, requests: list[EngineRequest]) -> Drive:
    served = drive(model, file, mix)
    for step in range(5000):
        for index, arrival in zip(mix.order, mix.arrivals, strict=True):
            if arrival == step:
                served.add(requests[index])
        if step < LAST_DISTURBED and mix.preempt_every and step % mix.preempt_every == 1:
            preempt_one(served, step)
        if not served.step() and step >= max(mix.arrivals):
            served.executor.close()
            return served
    raise AssertionError("no end after 5000 steps")


def alone_mix(index: int) -> Mix:
    """One request, with the engine for itself and its prompt in one step."""
    return Mix((index,), (0,), 1, 512, 60, False, 0)


def alone(model: LoadedModel, file: ModelFile, requests: list[EngineRequest]) -> dict[str, Bits]:
    """What each request is answered when nobody else is there, by its id."""
    found = {}
    for index, each in enumerate(requests):
        found[each.id] = bits(serve(model, file, alone_mix(index), requests).answers[each.id])
    return found
