"""Answers of the CPU executor do not depend on who shares the step: to the last bit (M1)."""

from itertools import product
from random import Random

import pytest

from headway.compute.cpu.loading import load_model
from headway.compute.cpu.settings import CpuSettings
from headway.core.sched.preempt import Way
from headway.service.loaders.model_files import ModelFile
from tests.soak.real_mixes import NUM_REQUESTS, Mix, alone, bits, crowd, random_mix, serve
from tests.soak.scale import is_whole, scaled

EVERYBODY = tuple(range(NUM_REQUESTS))
CHUNKS = (7, 16, 64, 256)  # most tokens of a step
WAYS = (None, Way.SWAP, Way.RECOMPUTE)  # None: nobody is stopped
Combination = tuple[int, bool, Way | None]


def combinations(kv: str) -> list[Combination]:
    """Chunk sizes x cache off or on x ways of being stopped, with this KV cache.

    Whole in the soak. Else so many that every two values of two switches, KV among them, meet.
    """
    found = []
    for (c, chunk), caching, (w, way) in product(enumerate(CHUNKS), (False, True), enumerate(WAYS)):
        is_chosen = caching is bool((c + w) % 2) and kv == ("bfloat16", "int8")[(c // 2 + w) % 2]
        if is_whole() or is_chosen:
            found.append((chunk, caching, way))
    return found


def mix_of(chunk: int, caching: bool, way: Way | None) -> Mix:
    """Everybody at once, in a pool that is too small where somebody is to be stopped."""
    return Mix(
        EVERYBODY,
        tuple(index % 5 for index in EVERYBODY),
        max_num_seqs=6,
        max_num_batched_tokens=chunk,
        num_blocks=60 if way is None else 14,
        caching=caching,
        depth=int(caching),
        num_host_blocks=60 if way is Way.SWAP else 0,
        preempt_every=0 if way is None else 3,
        way=way,
    )


@pytest.mark.soak
@pytest.mark.spec("M1")
@pytest.mark.parametrize("kv", ["bfloat16", "int8"])
def test_chunks_cache_and_preemption_change_no_bit_of_an_answer(
    smollm2: ModelFile, kv: str
) -> None:
    model = load_model(
        smollm2.card, CpuSettings(threads=2, kv_cache_dtype=kv), lambda _done, _all: None
    )
    requests = crowd()
    wanted = alone(model, smollm2, requests)
    for chunk, caching, way in combinations(kv):
        served = serve(model, smollm2, mix_of(chunk, caching, way), requests)
        for name, want in wanted.items():
            assert bits(served.answers[name]) == want, (name, chunk, caching, way)
        status = served.core.status()
        assert (status.preemptions > 0) == (way is not None)
        assert (status.preemptions_swapped > 0) == (way is Way.SWAP)
        assert (status.swapped_in_blocks > 0) == (way is Way.SWAP)
        assert (status.prefix_hits > 0) == caching


@pytest.mark.soak
@pytest.mark.spec("M1")
@pytest.mark.parametrize(("threads", "kv"), [(1, "bfloat16"), (2, "bfloat16"), (2, "int8")])
def test_answers_are_bit_identical_alone_and_in_any_mix(
    smollm2: ModelFile, threads: int, kv: str
) -> None:
    settings = CpuSettings(threads=threads, kv_cache_dtype=kv)
    model = load_model(smollm2.card, settings, lambda _done, _all: None)
    requests = crowd()
    wanted = alone(model, smollm2, requests)
    rng = Random(1000 + threads)
    preemptions = swapped = brought_back = 0
    crowded = Mix(EVERYBODY, (0,) * NUM_REQUESTS, 12, 256, 12, False, 1)
    first = [crowded, Mix(EVERYBODY, (0,) * NUM_REQUESTS, 4, 64, 12, True, 0, 40, 3)]
    for number in range(scaled(200) // 2):
        mix = first[number] if number < len(first) else random_mix(rng)
        served = serve(model, smollm2, mix, requests)
        status = served.core.status()
        preemptions += status.preemptions
        swapped += status.preemptions_swapped
        brought_back += status.swapped_in_blocks
        for index in mix.order:
            name = requests[index].id
            assert bits(served.answers[name]) == wanted[name], (number, mix, name)
    assert preemptions > 0
    assert swapped > 0
    assert brought_back > 0
