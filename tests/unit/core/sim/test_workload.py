"""Workloads: seeded, within their bounds, of the shares asked for."""

from collections import Counter
from random import Random

import msgspec

from headway.core.sim.workload import Lengths, Mix, Party, benchmark, draw, open_loop, poisson
from headway.core.tenancy.tenant import SloClass

MIX = Mix(
    prompt=Lengths(low=64, high=1500),
    output=Lengths(low=16, high=256),
    parties=(
        Party(group="vip", share=0.2, tenants=("acme",)),
        Party(group="standard", share=0.5),
        Party(group="internal", share=0.3),
    ),
)


def test_lengths_stay_within_their_bounds_and_spread_over_them() -> None:
    drawn = draw(MIX, 2000, Random(1))
    lengths = sorted(len(planned.prompt) for planned in drawn)
    assert lengths[0] >= 64
    assert lengths[-1] <= 1500
    assert 250 < lengths[1000] < 370, "the median is near the bounds' geometric middle, 310"
    assert all(16 <= planned.output_tokens <= 256 for planned in drawn)


def test_classes_come_in_the_shares_asked_for() -> None:
    count = Counter(planned.group for planned in draw(MIX, 5000, Random(2)))
    assert abs(count["vip"] / 5000 - 0.2) < 0.02
    assert abs(count["internal"] / 5000 - 0.3) < 0.02


def test_tenants_belong_to_their_class() -> None:
    assert {p.tenant for p in draw(MIX, 200, Random(3)) if p.group == "vip"} == {"acme"}


def test_a_request_carries_its_class_its_tenant_and_what_it_is_promised() -> None:
    party = Party(
        group="gold", share=1.0, tenants=("acme",), slo_class=SloClass.VIP, first_token_budget_s=0.5
    )
    mix = msgspec.structs.replace(MIX, parties=(party,))
    request = draw(mix, 1, Random(9))[0].request(3)
    assert (request.slo_class, request.tenant) == (SloClass.VIP, "acme")
    assert request.first_token_budget_s == 0.5
    assert request.sampling.seed == 3


def test_poisson_arrivals_come_at_the_rate_asked_for() -> None:
    times = poisson(20.0, 500.0, Random(4))
    assert abs(len(times) / 10_000 - 1.0) < 0.03
    assert times == sorted(times)


def test_the_same_seed_gives_the_same_workload() -> None:
    assert open_loop(MIX, 3.0, 30.0, Random(5)) == open_loop(MIX, 3.0, 30.0, Random(5))
    assert open_loop(MIX, 3.0, 30.0, Random(5)) != open_loop(MIX, 3.0, 30.0, Random(6))


def test_prefixes_are_shared_and_the_rest_is_not() -> None:
    mix = Mix(prompt=Lengths(low=8, high=8), output=Lengths(low=1, high=1), shared_prefix=20)
    drawn = draw(mix, 10, Random(7))
    assert len({planned.prompt[:20] for planned in drawn}) == 1
    assert len({planned.prompt[20:] for planned in drawn}) == 10


def test_w4_has_eight_streams_and_a_long_prompt_every_three_seconds() -> None:
    work = benchmark("w4", Random(8))
    assert (len(work.queue), work.num_clients) == (8, 8)
    assert [when for when, _ in work.arrivals[:3]] == [1.0, 4.0, 7.0]
    assert {len(planned.prompt) for _, planned in work.arrivals} == {4000}
