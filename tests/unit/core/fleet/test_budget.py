"""The sum of what several models take, and what is told when it is too much."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.base.errors import InvalidSetting, NotEnoughMemory
from headway.core.base.units import blocks_for
from headway.core.fleet.budget import GIB, MIB, PROCESS_BYTES, Need, divide

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
