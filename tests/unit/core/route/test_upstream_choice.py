"""Which of another's servers gets a request."""

from heapq import heappop, heappush
from random import Random

from headway.core.route.index import PrefixIndex
from headway.core.route.text_prefix import text_names
from headway.core.route.upstream_choice import Candidate, choose

NAMES = (b"first", b"second")
WORKERS = tuple("abcd")
SLOTS = 2  # requests at a time
SERVICE_S = 1.0


def test_the_idlest_gets_what_nobody_has_seen() -> None:
    found = choose([Candidate("a", 3), Candidate("b", 1)], {}, NAMES, 2)
    assert found == "b"


def test_what_others_run_there_and_a_full_cache_count_as_load() -> None:
    busy = [Candidate("a", 0, told=5), Candidate("b", 1)]
    assert choose(busy, {}, NAMES, 2) == "b"
    full = [Candidate("a", 1, kv_usage=0.99), Candidate("b", 1)]
    assert choose(full, {}, NAMES, 2) == "b"


def test_a_warm_one_is_preferred_within_the_skew_and_not_beyond() -> None:
    matches = {"a": 2, "b": 0}
    near = choose([Candidate("a", 2), Candidate("b", 0)], matches, NAMES, 2)
    assert near == "a"
    assert choose([Candidate("a", 3), Candidate("b", 0)], matches, NAMES, 2) == "b"


def test_the_warmest_wins_and_among_those_the_idlest() -> None:
    three = [Candidate("a", 1), Candidate("b", 0), Candidate("c", 0)]
    assert choose(three, {"a": 2, "b": 1}, NAMES, 2) == "a"
    assert choose(three, {"a": 2, "b": 2}, NAMES, 2) == "b"


def test_two_gateways_that_know_nothing_agree_on_a_text() -> None:
    some = [Candidate(name, 0) for name in WORKERS]
    names = text_names([b"x" * 512])
    assert len({choose(some, {}, names, 2, turn) for turn in range(20)}) == 1


def test_short_texts_are_spread_over_equals() -> None:
    some = [Candidate(name, 0) for name in WORKERS]
    assert {choose(some, {}, (), 2, turn) for turn in range(40)} == set(WORKERS)


class Simulated:
    """Four equal workers with two slots each, one second a request; a queue behind each."""

    def __init__(self, *, with_affinity: bool) -> None:
        self.with_affinity = with_affinity
        self.index = PrefixIndex(10_000)
        self.open = dict.fromkeys(WORKERS, 0)
        self.free_at = {name: [0.0] * SLOTS for name in WORKERS}
        self.ends: list[tuple[float, str]] = []
        self.latencies: list[float] = []
        self.worst_skew = 0.0
        self.num_warm = 0

    def arrive(self, now: float, names: tuple[bytes, ...], *, is_shared: bool, turn: int) -> None:
        while self.ends and self.ends[0][0] <= now:
            self.open[heappop(self.ends)[1]] -= 1
        matches = {name: self.index.match(name, names) for name in WORKERS}
        known = matches if self.with_affinity else {}
        found = choose([Candidate(n, k) for n, k in self.open.items()], known, names, 2, turn)
        if is_shared and matches[found] > 0:
            self.num_warm += 1
        self.index.add(found, names)
        self.open[found] += 1
        mean = sum(self.open.values()) / len(WORKERS)
        if mean >= 1.0:  # a queue of one beside empty ones is no skew
            self.worst_skew = max(self.worst_skew, max(self.open.values()) / mean)
        slots = self.free_at[found]
        first = min(range(SLOTS), key=slots.__getitem__)
        slots[first] = max(now, slots[first]) + SERVICE_S
        heappush(self.ends, (slots[first], found))
        self.latencies.append(slots[first] - now)

    def p95(self) -> float:
        return sorted(self.latencies)[int(0.95 * len(self.latencies))]


def test_gateway_health_04_a_shared_prefix_does_not_fill_one_worker_while_others_idle() -> None:
    rates = {}
    for with_affinity in (True, False):
        rng, run = Random(4), Simulated(with_affinity=with_affinity)
        shared, now, num_shared = b"s" * 32_000, 0.0, 0
        for turn in range(400):
            now += rng.expovariate(0.7 * len(WORKERS) * SLOTS / SERVICE_S)
            is_shared = rng.random() < 0.8
            num_shared += is_shared
            own = rng.randbytes(2_000)
            names = text_names([shared, own] if is_shared else [own])
            run.arrive(now, names, is_shared=is_shared, turn=turn)
        rates[with_affinity] = run
        if with_affinity:
            assert run.worst_skew <= 3.0
            assert run.num_warm >= 0.6 * num_shared
    assert rates[True].p95() <= 1.5 * rates[False].p95()
