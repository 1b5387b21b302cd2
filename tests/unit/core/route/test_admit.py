"""The bounded queue: what it takes, what it refuses, and that its sums hold."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headway.core.base.errors import InvalidRequest, QueueFull, ShuttingDown
from headway.core.base.units import Seconds
from headway.core.route.admit import (
    MAX_RETRY,
    MIN_RETRY,
    UNKNOWN_RETRY,
    AdmitLimits,
    Admitter,
)
from headway.core.tenancy.tenant import SloClass

NOW = Seconds(1000.0)


def admitter(*, choices: int = 10, tokens: int = 4000) -> Admitter:
    return Admitter(AdmitLimits(max_choices=choices, max_waiting_tokens=tokens))


def test_a_request_with_n_4_counts_as_four_overload_01() -> None:
    door = admitter(choices=10)
    door.admit("a", 4, NOW)
    door.admit("b", 4, NOW)
    with pytest.raises(QueueFull, match=r"8 sequences .* limit is 10; this request adds 4"):
        door.admit("c", 4, NOW)
    door.admit("d", 2, NOW)
    assert door.num_choices == 10


def test_the_token_limit_triggers_on_the_second_long_prompt_overload_01() -> None:
    door = admitter(tokens=4000)
    for name in ("a", "b"):
        door.admit(name, 1, NOW)
    door.weigh("a", 3000, NOW)
    with pytest.raises(QueueFull, match="3000 prompt tokens are waiting and the limit is 4000"):
        door.weigh("b", 3000, NOW)
    door.started("a", 1, 3000)
    door.weigh("b", 3000, NOW)
    assert door.waiting_tokens == 3000


def test_a_single_prompt_over_the_token_limit_is_taken_when_nothing_waits() -> None:
    door = admitter(tokens=100)
    door.admit("a", 1, NOW)
    door.weigh("a", 5000, NOW)
    assert door.waiting_tokens == 5000


def test_several_prompts_that_never_fit_together_are_the_clients_error_not_a_full_queue() -> None:
    door = admitter(tokens=100)
    door.admit("a", 2, NOW)
    with pytest.raises(InvalidRequest, match="2 prompts have 101 tokens together") as caught:
        door.weigh("a", 101, NOW, num_prompts=2)
    assert caught.value.param == "prompt"
    door.weigh("a", 100, NOW, num_prompts=2)
    assert door.waiting_tokens == 100


def test_more_choices_than_fit_at_all_is_the_clients_error_not_a_full_queue() -> None:
    with pytest.raises(InvalidRequest) as caught:
        admitter(choices=3).admit("a", 4, NOW)
    assert caught.value.param == "n"


def test_retry_after_follows_the_measured_drain_rate() -> None:
    door = admitter(choices=4)
    for i in range(20):  # two choices a second leave
        door.admit(f"old-{i}", 1, NOW)
        door.started(f"old-{i}", 1, 0)
        door.finished(f"old-{i}", Seconds(NOW + i // 2))
    now = Seconds(NOW + 10)
    door.admit("full", 4, now)
    with pytest.raises(QueueFull) as caught:
        door.admit("more", 4, now)
    assert caught.value.retry_after_s == pytest.approx(2.0)


def test_retry_after_without_a_measured_rate_is_a_fixed_guess() -> None:
    door = admitter(choices=1)
    door.admit("a", 1, NOW)
    with pytest.raises(QueueFull) as caught:
        door.admit("b", 1, NOW)
    assert caught.value.retry_after_s == UNKNOWN_RETRY


def test_a_drained_door_refuses_and_says_when_it_is_over() -> None:
    door = admitter()
    door.admit("a", 1, NOW)
    door.drain(Seconds(NOW + 30))
    with pytest.raises(ShuttingDown) as caught:
        door.admit("b", 1, Seconds(NOW + 10))
    assert caught.value.retry_after_s == pytest.approx(20.0)
    assert door.num_in_flight == 1


def test_finishing_twice_or_starting_an_unknown_request_changes_nothing() -> None:
    door = admitter()
    door.admit("a", 1, NOW)
    door.finished("a", NOW)
    door.finished("a", NOW)
    door.started("a", 1, 10)
    door.check()
    assert door.num_choices == 0


def test_best_effort_never_fills_the_line_for_others() -> None:
    door = admitter(choices=4, tokens=100)
    for i in range(4):
        door.admit(f"i{i}", 1, NOW, SloClass.INTERNAL)
        door.weigh(f"i{i}", 25, NOW)
    with pytest.raises(QueueFull):
        door.admit("i", 1, NOW, SloClass.INTERNAL)
    for slo_class in (SloClass.STANDARD, SloClass.VIP):
        door.admit(f"c{slo_class}", 4, NOW, slo_class)
        door.weigh(f"c{slo_class}", 100, NOW)
        with pytest.raises(QueueFull, match="4 sequences"):
            door.admit("more", 1, NOW, slo_class)
    door.check()
    assert (door.num_choices, door.waiting_tokens) == (12, 300)


class AdmitMachine(RuleBasedStateMachine):
    """Random arrivals, starts and ends, compared with a plain dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.door = admitter(choices=12, tokens=50)
        self.model: dict[str, tuple[int, int | None, bool]] = {}  # choices, tokens, waiting
        self.now = NOW
        self.count = 0

    @rule(choices=st.integers(1, 6))
    def arrive(self, choices: int) -> None:
        self.count += 1
        fits = sum(c for c, _, _ in self.model.values()) + choices <= 12
        if fits:
            self.door.admit(str(self.count), choices, self.now)
            self.model[str(self.count)] = (choices, None, True)
            return
        with pytest.raises(QueueFull) as caught:
            self.door.admit(str(self.count), choices, self.now)
        assert MIN_RETRY <= caught.value.retry_after_s <= MAX_RETRY

    @precondition(lambda self: any(t is None for _, t, _ in self.model.values()))
    @rule(data=st.data(), tokens=st.integers(1, 80))
    def weigh(self, data: st.DataObject, tokens: int) -> None:
        open_ = sorted(i for i, (_, t, _) in self.model.items() if t is None)
        name = data.draw(st.sampled_from(open_))
        waiting = sum(t or 0 for _, t, w in self.model.values() if w)
        try:
            self.door.weigh(name, tokens, self.now)
        except QueueFull:
            assert waiting > 0
            assert waiting + tokens > 50
            self.door.finished(name, self.now)
            del self.model[name]
        else:
            assert waiting == 0 or waiting + tokens <= 50
            self.model[name] = (self.model[name][0], tokens, True)

    @precondition(lambda self: any(t is not None for _, t, _ in self.model.values()))
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        known = sorted(i for i, (_, t, _) in self.model.items() if t is not None)
        name = data.draw(st.sampled_from(known))
        choices, tokens, is_waiting = self.model[name]
        if is_waiting and choices > 1 and data.draw(st.booleans()):  # in two parts
            self.door.started(name, 1, 0)
            self.door.started(name, choices - 1, tokens or 0)
        else:
            self.door.started(name, choices, tokens or 0)
        self.model[name] = (choices, tokens, False)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), later=st.floats(0, 20))
    def finish(self, data: st.DataObject, later: float) -> None:
        self.now = Seconds(self.now + later)
        name = data.draw(st.sampled_from(sorted(self.model)))
        self.door.finished(name, self.now)
        del self.model[name]

    @invariant()
    def sums_agree_with_the_model(self) -> None:
        self.door.check()
        assert self.door.num_in_flight == len(self.model)
        assert self.door.num_choices == sum(c for c, _, _ in self.model.values())
        assert self.door.num_waiting == sum(c for c, _, w in self.model.values() if w)
        assert self.door.waiting_tokens == sum(t or 0 for _, t, w in self.model.values() if w)


TestAdmitMachine = AdmitMachine.TestCase
