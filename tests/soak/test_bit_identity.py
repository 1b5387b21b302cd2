"""Answers of the CPU executor do not depend on who shares the step: to the last bit (M1)."""

from dataclasses import dataclass
from random import Random

import pytest

from headway.compute.cpu.executor import CpuExecutor
from headway.compute.cpu.host_tier import HostMemory
from headway.compute.cpu.loading import LoadedModel, load_model
from headway.compute.cpu.settings import CpuSettings
from headway.core.base.units import Seconds
from headway.core.engine.core import EngineCore
from headway.core.messages.path import EngineRequest, Sampling, Tokens
from headway.service.loaders.model_files import ModelFile
from headway.service.loaders.tokenizer_files import build_tokenizer
from tests.drive import Answer, Drive
from tests.fakes import engine_settings, request
from tests.soak.scale import scaled

NUM_REQUESTS = 12
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
    host = HostMemory(is_checked=True, segment_bytes=1 << 20)
    executor = CpuExecutor(model, settings, core.grid.view, core.grid.width, host)
    return Drive(core, executor, mix.depth)


def crowd() -> list[EngineRequest]:
    """Requests that share beginnings, sample in different ways and have every length."""
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
            num_logprobs=3,
        )
        prompt = stem[: rng.choice((0, 0, 16, 33, 48))] + own
        made.append(request(f"r{index}", prompt, sampling=sampling))
    return made


def bits(answer: Answer) -> list[tuple[object, ...]]:
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
        kv = scheduler.kv
        table = kv.open((0,), b"", use_cache=False)
        kv.grow(table, 0, min(kv.num_available, kv.grid.width) * kv.block_size)
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


@pytest.mark.soak
@pytest.mark.spec("M1")
@pytest.mark.parametrize(("threads", "kv"), [(1, "bfloat16"), (2, "bfloat16"), (2, "int8")])
def test_answers_are_bit_identical_alone_and_in_any_mix(
    smollm2: ModelFile, threads: int, kv: str
) -> None:
    settings = CpuSettings(threads=threads, kv_cache_dtype=kv)
    model = load_model(smollm2.card, settings, lambda _done, _all: None)
    requests = crowd()
    alone = {}
    for index, each in enumerate(requests):
        served = serve(model, smollm2, Mix((index,), (0,), 1, 512, 60, False, 0), requests)
        alone[each.id] = bits(served.answers[each.id])
    rng = Random(1000 + threads)
    preemptions = swapped = brought_back = 0
    everybody = tuple(range(NUM_REQUESTS))
    crowded = Mix(everybody, (0,) * NUM_REQUESTS, 12, 256, 12, False, 1)
    first = [crowded, Mix(everybody, (0,) * NUM_REQUESTS, 4, 64, 12, True, 0, 40, 3)]
    for number in range(scaled(200) // 2):
        mix = first[number] if number < len(first) else random_mix(rng)
        served = serve(model, smollm2, mix, requests)
        status = served.core.status()
        preemptions += status.preemptions
        swapped += status.preemptions_swapped
        brought_back += status.swapped_in_blocks
        for index in mix.order:
            name = requests[index].id
            assert bits(served.answers[name]) == alone[name], (number, mix, name)
    assert preemptions > 0
    assert swapped > 0
    assert brought_back > 0
