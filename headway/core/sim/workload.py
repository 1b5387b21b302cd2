"""What is sent, and when: seeded workloads, and the benchmark's own W1 to W5."""

import math
from collections.abc import Sequence
from itertools import accumulate
from random import Random
from typing import NamedTuple

import msgspec

from headway.core.base.units import Seconds
from headway.core.messages.path import EngineRequest, Sampling
from headway.core.sim.executor import FIRST_PROMPT_ID
from headway.core.tenancy.tenant import SloClass

LAST_PROMPT_ID = 30_000


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """One request to send; lengths in tokens.

    `output_tokens` is how long the answer gets, `max_tokens` what the client allows.
    """

    id: str
    prompt: tuple[int, ...]
    output_tokens: int
    max_tokens: int
    group: str = "all"  # whose figures it counts among: a class, or a part of a workload
    tenant: str = ""
    slo_class: SloClass = SloClass.STANDARD
    first_token_budget_s: float | None = None  # what its class is promised

    def request(self, seed: int) -> EngineRequest:
        """As the engine takes it; the seed tells the simulated executor when to end it."""
        return EngineRequest(
            id=self.id,
            prompt=self.prompt,
            sampling=Sampling(
                max_tokens=self.max_tokens,
                seed=seed,
                temperature=0.0,
                ignore_eos=self.output_tokens == self.max_tokens,
            ),
            slo_class=self.slo_class,
            tenant=self.tenant,
            first_token_budget_s=self.first_token_budget_s,
        )


class Workload(NamedTuple):
    """Requests in two ways of being sent, together or alone.

    arrivals     open loop: each at its time, whether or not anybody keeps up
    queue        closed loop: `num_clients` clients take the next one when theirs was answered
    think        from an answer's end to the same client's next request
    stop_with_queue   no arrival is sent any more once the queue has been answered
    """

    arrivals: tuple[tuple[Seconds, Planned], ...] = ()
    queue: tuple[Planned, ...] = ()
    num_clients: int = 0
    think: Seconds = Seconds(0.0)
    stop_with_queue: bool = False

    @property
    def requests(self) -> list[Planned]:
        """All that may be sent."""
        return [*self.queue, *(planned for _, planned in self.arrivals)]


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """Log-normal lengths in tokens between bounds; equal bounds give one length."""

    low: int
    high: int
    median: float | None = None  # None: the geometric middle of the bounds
    sigma: float = 0.8  # of the logarithm

    def draw(self, rng: Random) -> int:
        """One length; what falls outside is drawn again, so no length piles up at a bound."""
        if self.low >= self.high:
            return self.low
        middle = self.median or math.sqrt(self.low * self.high)
        while True:
            length = round(middle * math.exp(rng.gauss(0.0, self.sigma)))
            if self.low <= length <= self.high:
                return length


class Party(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of sender in a mix."""

    group: str
    share: float
    tenants: tuple[str, ...] = ()
    slo_class: SloClass = SloClass.STANDARD
    first_token_budget_s: float | None = None


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    """What one request is like: whose it is, and how long its prompt and answer are.

    With `shared_prefix` tokens, every prompt starts with one of `num_prefixes` beginnings of
    that length, in front of its own tokens.
    """

    prompt: Lengths
    output: Lengths
    parties: tuple[Party, ...] = (Party(group="all", share=1.0),)
    shared_prefix: int = 0
    num_prefixes: int = 1


def poisson(rate: float, seconds: float, rng: Random) -> list[Seconds]:
    """Times of a Poisson process of `rate` a second, up to `seconds`."""
    times = []
    at = rng.expovariate(rate)
    while at < seconds:
        times.append(Seconds(at))
        at += rng.expovariate(rate)
    return times


def draw(mix: Mix, count: int, rng: Random, *, label: str = "r") -> list[Planned]:
    """`count` requests of a mix; ids are `label` and a number."""
    prefixes = [ids(mix.shared_prefix, rng) for _ in range(mix.num_prefixes)]
    weights = list(accumulate(party.share for party in mix.parties))
    drawn = []
    for number in range(count):
        party = rng.choices(mix.parties, cum_weights=weights)[0]
        output = mix.output.draw(rng)
        drawn.append(
            Planned(
                id=f"{label}{number}",
                prompt=rng.choice(prefixes) + ids(mix.prompt.draw(rng), rng),
                output_tokens=output,
                max_tokens=output,
                group=party.group,
                tenant=rng.choice(party.tenants) if party.tenants else "",
                slo_class=party.slo_class,
                first_token_budget_s=party.first_token_budget_s,
            )
        )
    return drawn


def open_loop(mix: Mix, rate: float, seconds: float, rng: Random) -> Workload:
    """Poisson arrivals of a mix."""
    times = poisson(rate, seconds, rng)
    return Workload(arrivals=tuple(zip(times, draw(mix, len(times), rng), strict=True)))


def closed_loop(mix: Mix, count: int, num_clients: int, rng: Random) -> Workload:
    """`count` requests of a mix, `num_clients` at a time."""
    return Workload(queue=tuple(draw(mix, count, rng)), num_clients=num_clients)


def with_new_prompts(workload: Workload, rng: Random) -> Workload:
    """The same arrivals and lengths with other tokens, so that no prefix cache knows them."""

    def renew(planned: Planned) -> Planned:
        return msgspec.structs.replace(planned, prompt=ids(len(planned.prompt), rng))

    return workload._replace(
        arrivals=tuple((when, renew(planned)) for when, planned in workload.arrivals),
        queue=tuple(map(renew, workload.queue)),
    )


def ids(count: int, rng: Random) -> tuple[int, ...]:
    """Random token ids for a prompt."""
    return tuple(rng.choices(range(FIRST_PROMPT_ID, LAST_PROMPT_ID), k=count))


def fixed(length: int) -> Lengths:
    """Always the same length."""
    return Lengths(low=length, high=length)


def benchmark(
    name: str,
    rng: Random,
    *,
    capacity: float | None = None,
    seconds: float = 60.0,
    think: float = 0.0,
) -> Workload:
    """One of the workloads of benchmarks/load.py: "w1" .. "w5".

    `capacity` (requests a second) and `seconds` are for w5. Raises ValueError for another
    name, or for w5 without a capacity.
    """
    if name == "w4":
        return _interference(rng, Seconds(think))
    if name == "w5":
        if capacity is None:
            raise ValueError("w5 needs the capacity in requests a second")
        parties = (
            Party(group="vip", share=0.2, slo_class=SloClass.VIP),
            Party(group="free", share=0.8),
        )
        mix = Mix(prompt=fixed(256), output=fixed(128), parties=parties)
        return open_loop(mix, 2 * capacity, seconds, rng)
    closed = {
        "w1": (Mix(prompt=fixed(128), output=fixed(128)), 5, 1),
        "w2": (Mix(prompt=fixed(256), output=fixed(128)), 48, 16),
        "w3": (Mix(prompt=fixed(64), output=fixed(64), shared_prefix=1000), 64, 16),
    }
    if name not in closed:
        raise ValueError(f"there is no workload {name!r}; there are w1, w2, w3, w4, w5")
    return closed_loop(*closed[name], rng)._replace(think=Seconds(think))


def _interference(rng: Random, think: Seconds) -> Workload:
    """Eight streams, and a long prompt every 3 s until they are done."""
    streams = draw(_group("stream", 64, 256), 8, rng, label="stream")
    long = draw(_group("long", 4000, 16), 10, rng, label="long")
    times = [Seconds(1.0 + 3.0 * number) for number in range(len(long))]
    return Workload(
        arrivals=tuple(zip(times, long, strict=True)),
        queue=tuple(streams),
        num_clients=8,
        think=think,
        stop_with_queue=True,
    )


def _group(name: str, prompt: int, output: int) -> Mix:
    parties = (Party(group=name, share=1.0),)
    return Mix(prompt=fixed(prompt), output=fixed(output), parties=parties)


def answer_ends(requests: Sequence[Planned]) -> dict[int, int]:
    """For SimExecutor: after how many tokens an answer ends by itself, by the request's seed."""
    return {
        seed: planned.output_tokens
        for seed, planned in enumerate(requests)
        if planned.output_tokens < planned.max_tokens
    }
