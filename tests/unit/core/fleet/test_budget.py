"""The sum of what several models take, and what is told when it is too much."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.base.errors import InvalidSetting, NotEnoughMemory
from headway.core.base.units import blocks_for
from headway.core.fleet.budget import (
    DEVICE_PROCESS_BYTES,
    GIB,
    MIB,
    PROCESS_BYTES,
    Need,
    divide,
    share_device,
)

KIB = 1024
BLOCK = 16 * 64 * KIB  # bytes of a block of 16 tokens


def need(
    name: str = "a",
    *,
    weights: int = 100 * MIB,
    asked: int | None = None,
    context: int = 1024,
    most: int = 64 * GIB,
    host: int = 0,
    replicas: int = 1,
) -> Need:
    return Need(
        where=name,
        weights=weights,
        kv_asked=asked,
        kv_most=most,
        kv_block=BLOCK,
        block_size=16,
        context=context,
        kv_host=host,
        replicas=replicas,
    )


def test_what_was_asked_for_is_granted_and_the_rest_shared_evenly() -> None:
    asked = 512 * MIB
    granted = divide([need("a", asked=asked), need("b"), need("c")], 4 * GIB, 0.5)
    left = 4 * GIB - 3 * (100 * MIB + PROCESS_BYTES) - asked
    assert granted[0] == asked
    assert granted[1] == pytest.approx(left * 0.25, abs=1)
    assert granted[1] == granted[2]


def test_every_replica_has_weights_and_a_part_of_its_own() -> None:
    granted = divide([need("a", replicas=3), need("b")], 4 * GIB, 0.5)
    left = 4 * GIB - 4 * (100 * MIB + PROCESS_BYTES)
    assert granted[0] == pytest.approx(left * 0.5 / 4, abs=4)
    assert granted[1] == pytest.approx(granted[0], abs=4)


def test_replicas_that_do_not_fit_say_so_and_what_would() -> None:
    with pytest.raises(NotEnoughMemory, match="the 4 engines take") as caught:
        divide([need("--replicas 4", weights=GIB, replicas=4)], 3 * GIB, 0.5)
    assert caught.value.message.startswith("--replicas 4: model: its weights take 1.00 GiB")
    largest = (3 * GIB - 4 * PROCESS_BYTES) // 4
    divide([need(weights=largest - 100 * MIB, replicas=4)], 3 * GIB, 1.0)
    asked = need("x", asked=GIB, replicas=2)
    with pytest.raises(InvalidSetting, match="kv_cache_memory_bytes") as refused:
        divide([asked], 2 * GIB, 0.5)
    most = re.search(r"use (\d+) or less", refused.value.message)
    assert most is not None
    assert divide([need("x", asked=int(most[1]), replicas=2)], 2 * GIB, 0.5) == (int(most[1]),)


def test_what_one_model_has_no_use_for_goes_to_the_others() -> None:
    small, big = divide([need("a", most=128 * MIB), need("b")], 4 * GIB, 0.5)
    assert small == 128 * MIB
    assert big > 1 * GIB


def test_weights_over_the_memory_name_the_heaviest_and_what_would_fit() -> None:
    needs = [need("models[0] (a)"), need("models[1] (b)", weights=3 * GIB)]
    with pytest.raises(NotEnoughMemory) as caught:
        divide(needs, 2 * GIB, 0.5)
    said = caught.value.message
    assert said.startswith("models[1] (b): model: its weights take 3.00 GiB")
    match = re.search(r"at most (\d+\.\d+) GiB fit", said)
    assert match is not None
    fits = need("b", weights=int(float(match[1]) * GIB) - 8 * MIB, asked=0, context=0)
    assert divide([need("a", asked=0, context=0), fits], 2 * GIB, 0.5) == (0, 0)


def test_a_cache_over_the_memory_names_setting_value_and_the_largest() -> None:
    asked = 8 * GIB
    with pytest.raises(InvalidSetting) as caught:
        divide([need("models[0] (a)", asked=asked), need("b", asked=GIB)], 4 * GIB, 0.5)
    said = caught.value.message
    assert said.startswith(f"models[0] (a): kv_cache_memory_bytes: {asked} is too much")
    match = re.search(r"use (\d+) or less", said)
    assert match is not None
    largest = int(match[1])
    divide([need("a", asked=largest), need("b", asked=GIB)], 4 * GIB, 0.5)
    with pytest.raises(InvalidSetting):
        divide([need("a", asked=largest + 1), need("b", asked=GIB)], 4 * GIB, 0.5)


def test_a_host_tier_counts_and_is_named_when_it_is_the_largest_wish() -> None:
    with pytest.raises(InvalidSetting, match="a: kv_host_memory_bytes: "):
        divide([need("a", asked=GIB, host=8 * GIB), need("b", asked=GIB)], 4 * GIB, 0.5)


def test_a_context_over_the_model_s_part_names_the_longest_that_fits() -> None:
    needs = [need("models[0] (a)", context=10**6), need("b")]
    with pytest.raises(InvalidSetting) as caught:
        divide(needs, 4 * GIB, 0.5)
    said = caught.value.message
    assert said.startswith("models[0] (a): max_model_len: 1000000 tokens take")
    match = re.search(r"use at most (\d+), or auto", said)
    assert match is not None
    divide([need("a", context=int(match[1])), need("b")], 4 * GIB, 0.5)
    with pytest.raises(InvalidSetting):
        divide([need("a", context=int(match[1]) + 1), need("b")], 4 * GIB, 0.5)


sizes = st.integers(0, 6 * GIB)
needs_of = st.builds(
    need,
    weights=sizes,
    asked=st.none() | sizes,
    context=st.integers(1, 10**5),
    most=sizes,
    host=sizes,
)


@given(st.lists(needs_of, min_size=1, max_size=5), st.integers(0, 32 * GIB), st.floats(0.1, 1.0))
def test_what_is_granted_always_fits_and_what_is_refused_never_does(
    needs: list[Need], free: int, share: float
) -> None:
    fixed = sum(n.weights + PROCESS_BYTES + (n.kv_asked or 0) + n.kv_host for n in needs)
    is_too_much = False
    try:
        granted = divide(needs, free, share)
    except NotEnoughMemory:
        assert sum(n.weights + PROCESS_BYTES for n in needs) > free
        return
    except InvalidSetting as error:
        is_too_much = "is too much" in error.message
        granted = ()
    if not granted:
        assert (fixed > free) == is_too_much
        return
    taken = sum(n.weights + PROCESS_BYTES + n.kv_host for n in needs) + sum(granted)
    assert taken <= free
    for each, part in zip(needs, granted, strict=True):
        assert part >= blocks_for(each.context, each.block_size) * each.kv_block
        assert part == each.kv_asked if each.kv_asked is not None else part <= each.kv_most


def loaded(shares: Sequence[tuple[int, int, int | None]], total: int, order: Sequence[int]) -> int:
    """Bytes that are free once all engines have loaded, one after the other in some order.

    shares  replicas, weights, KV bytes as set, of each model; the others take what they may
    """
    told, free = share_device(shares), total
    for index in order:
        _, weights, asked = shares[index]
        free -= weights + DEVICE_PROCESS_BYTES
        room = told[index].room(total, free, weights)
        assert asked is None or asked <= room
        free -= room if asked is None else asked
    return free


@pytest.mark.parametrize("replicas", [2, 3, 8])
def test_replicas_on_one_gpu_leave_room_for_each_other_whoever_loads_first(replicas: int) -> None:
    one = (replicas, 2 * GIB, None)
    assert 0 <= loaded([one], 80 * GIB, [0] * replicas) < replicas
    (share,) = share_device([one])
    rooms = {share.room(80 * GIB, free, 2 * GIB) for free in (70 * GIB, 40 * GIB)}
    assert len(rooms) == 1  # also while the others have not loaded yet


def test_models_on_one_gpu_share_what_those_with_a_size_of_their_own_leave() -> None:
    shares = [(1, 10 * GIB, 20 * GIB), (2, 4 * GIB, None)]
    for order in ([0, 1, 1], [1, 0, 1], [1, 1, 0]):
        assert 0 <= loaded(shares, 80 * GIB, order) < 2
    first, _ = share_device(shares)
    most = first.room(80 * GIB, 80 * GIB, 10 * GIB)
    assert most == 80 * GIB - 18 * GIB - 3 * DEVICE_PROCESS_BYTES


def test_what_does_not_fit_beside_the_others_gets_nothing_and_one_alone_all_that_is_free() -> None:
    (share,) = share_device([(4, 30 * GIB, None)])
    assert share.room(80 * GIB, 50 * GIB, 30 * GIB) == 0
    (alone,) = share_device([(1, 30 * GIB, None)])
    assert alone.room(80 * GIB, 50 * GIB, 30 * GIB) == 50 * GIB
    assert share_device([]) == ()
