"""What no choice of a replica may ever do."""

from hypothesis import given
from hypothesis import strategies as st

from headway.core.base.units import Seconds
from headway.core.messages.health import ReplicaStatus, StepReport
from headway.core.messages.path import EngineRequest, Finished, FinishReason, Sampling, Usage
from headway.core.route.index import CHUNK
from headway.core.route.policy import Candidate, PrefixAffinity
from headway.core.route.router import Router

PREFIXES = [tuple(range(number, number + 4 * CHUNK)) for number in range(3)]
works = st.floats(0.0, 1e4)
rates = st.floats(1.0, 1e5)
STATUS = ReplicaStatus(
    num_running=0, num_waiting=0, waiting_tokens=0, total_blocks=1, free_blocks=1, cached_blocks=0
)
NO_USAGE = Usage(prompt_tokens=1, completion_tokens=1)


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(works, rates, works), min_size=1, max_size=5),
            st.sampled_from(PREFIXES),
            st.sampled_from([b"a", b"b"]),
        ),
        max_size=20,
    ),
    st.floats(1.0, 10.0),
)
def test_the_skew_is_bounded_and_salts_never_meet(
    requests: list[tuple[list[tuple[float, float, float]], tuple[int, ...], bytes]], factor: float
) -> None:
    policy = PrefixAffinity("m", 1000, factor)
    seen: set[tuple[str, tuple[int, ...], bytes]] = set()
    for loads, prompt, salt in requests:
        candidates = [
            Candidate(str(number), Seconds(work), rate, Seconds(answer))
            for number, (work, rate, answer) in enumerate(loads)
        ]
        choice = policy.choose(candidates, prompt, salt)
        assert choice is not None
        least = min(candidates, key=lambda each: (each.work, each.id))
        [got] = [each for each in candidates if each.id == choice.id]
        own = len(prompt) / least.prefill_rate + least.answer_s
        assert got.work + own <= factor * (least.work + own) * (1 + 1e-9)
        if choice.matched:
            mine = {p for name, p, s in seen if name == choice.id and s == salt}
            assert any(p[:CHUNK] == prompt[:CHUNK] for p in mine), "only its own salt's prompts"
        policy.sent(choice)
        seen.add((choice.id, prompt, salt))


NAMES = tuple(str(number) for number in range(4))
REASONS = {"ok": FinishReason.STOP, "fail": FinishReason.ERROR, "cancel": FinishReason.CANCELLED}


class Pool:
    """A router, and what is true of its replicas."""

    def __init__(self) -> None:
        self.router = Router(NAMES, PrefixAffinity("m", 100))
        self.now = Seconds(0.0)
        self.up = set(NAMES)
        self.running: dict[str, list[str]] = {name: [] for name in NAMES}

    def act(self, action: str, number: int, request_id: str) -> None:
        """Something happens to the replica of that number, or a request comes."""
        name = NAMES[number]
        if action == "send":
            self.send(PREFIXES[number % 3], request_id)
        elif action == "wait":
            self.now = Seconds(self.now + 10.0 * number)
        elif action == "lost":
            self.up.discard(name)
            self.running[name].clear()
            self.router.lost(name)
        elif action == "back" and name not in self.up:
            self.router.back(name, self.now)
            self.up.add(name)
        elif action in REASONS:
            self.end(name, REASONS[action])

    def send(self, prompt: tuple[int, ...], request_id: str) -> None:
        """Only to one that is up and not ejected, whenever there is one."""
        sampling = Sampling(max_tokens=1, seed=0)
        request = EngineRequest(id=request_id, prompt=prompt, sampling=sampling)
        choice = self.router.choose(self.up, request, self.now)
        free = [each for each in self.up if not self.router.is_ejected(each, self.now)]
        assert (choice is None) == (not free)
        if choice is not None:
            assert choice.id in free
            self.router.sent(choice, request_id, request)
            self.running[choice.id].append(request_id)

    def end(self, name: str, reason: FinishReason) -> None:
        """Its oldest request ends so."""
        if self.running[name]:
            event = Finished(request_id=self.running[name].pop(0), reason=reason, usage=NO_USAGE)
            self.router.told(name, StepReport(events=(event,), status=STATUS), self.now)

    def check(self) -> None:
        """The counters are what is true."""
        assert [self.router.book.in_flight(each) for each in NAMES] == [
            len(self.running[each]) for each in NAMES
        ]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["send", "ok", "fail", "lost", "back", "wait", "cancel"]),
            st.integers(0, 3),
        ),
        max_size=200,
    )
)
def test_an_ejected_replica_gets_nothing_and_counters_come_down_to_zero(
    actions: list[tuple[str, int]],
) -> None:
    pool = Pool()
    for count, (action, number) in enumerate(actions):
        pool.act(action, number, f"r{count}")
        pool.check()
    for name in NAMES:
        while pool.running[name]:
            pool.end(name, FinishReason.STOP)
        assert pool.router.book.in_flight(name) == 0
        assert pool.router.book.work(name) == 0.0
