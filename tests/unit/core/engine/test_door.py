"""Who is refused at the engine's door, and what they are told."""

import contextlib
from typing import Any

import pytest

from headway.core.base.errors import CapacityError, DeadlineUnmeetable, QueueFull
from headway.core.base.units import Seconds
from headway.core.messages.health import ReplicaStatus
from headway.core.sched.pressure import Rung
from tests.drive import Drive
from tests.fakes import greedy
from tests.mixed import INTERNAL, STANDARD, VIP, asked, timed


def busy(**settings: Any) -> Drive:
    """An engine that computes 16 prompt tokens in a second, and has done so for a while."""
    values = {"max_model_len": 512, "num_blocks": 2000, "max_num_seqs": 8, **settings}
    run = timed(enable_prefix_caching=False, **values)
    for i in range(12):
        run.add(asked(f"before{i}", range(i, i + 40), sampling=greedy(2)))
    run.run()
    assert 10 < run.core.status().prefill_rate < 17
    return run


def refusal(run: Drive, request_id: str, slo_class: int, budget: float | None) -> CapacityError:
    with pytest.raises(CapacityError) as caught:
        run.add(asked(request_id, range(40), slo_class, budget=budget))
    assert request_id not in run.answers
    run.core.check()
    return caught.value


def test_who_would_wait_longer_than_promised_is_refused_with_a_time() -> None:
    run = busy()
    run.add(*(asked(f"w{i}", range(i, i + 100)) for i in range(4)))
    error = refusal(run, "late", STANDARD, 3.0)
    assert isinstance(error, DeadlineUnmeetable)
    assert 10.0 < error.retry_after_s < 40.0
    run.add(asked("patient", range(40), STANDARD, budget=90.0))
    run.run()
    assert run.answers["patient"].finished is not None


def test_by_the_time_that_it_was_told_it_is_taken() -> None:
    run = busy()
    run.add(*(asked(f"w{i}", range(i, i + 100)) for i in range(4)))
    wait = refusal(run, "late", STANDARD, 3.0).retry_after_s
    until = run.now + wait
    while run.now < until:
        run.step()
    run.add(asked("again", range(40), STANDARD, budget=3.0))
    before = run.now
    while not run.answers["again"].tokens:
        run.step()
    assert run.now - before <= 3.0 + 40 / 16 + 2


def test_without_a_promise_nobody_is_refused_for_time() -> None:
    run = busy()
    run.add(*(asked(f"w{i}", range(i, i + 100)) for i in range(20)))
    assert run.core.status().num_waiting == 20


def test_nobody_is_refused_late_one_that_was_taken_is_served() -> None:
    run = busy()
    run.add(asked("standard", range(30), STANDARD, budget=3.0))
    run.add(*(asked(f"vip{i}", range(i, i + 100), VIP) for i in range(6)))
    run.run()
    answer = run.answers["standard"]
    assert answer.finished is not None
    assert answer.finished.error is None
    assert answer.finished.usage.queue_s > 3.0


def test_a_vip_is_taken_however_much_of_the_others_waits() -> None:
    run = busy(max_waiting_requests=12, max_waiting_tokens=600, ageing=1000.0)
    run.add(*(asked(f"i{i}", range(i, i + 100), INTERNAL) for i in range(6)))
    assert isinstance(refusal(run, "too-much", INTERNAL, None), QueueFull)
    run.add(asked("vip", range(40), VIP, budget=0.5))
    for _ in range(4):
        run.step()
    assert run.answers["vip"].tokens


def test_vips_are_refused_once_they_alone_are_too_many() -> None:
    run = busy()
    taken = 0
    for i in range(40):
        with contextlib.suppress(DeadlineUnmeetable):
            run.add(asked(f"vip{i}", range(i, i + 40), VIP, budget=0.5))
            taken += 1
    assert 1 <= taken < 20


def test_best_effort_is_refused_while_it_would_wait_too_long_and_taken_again_after() -> None:
    run = busy(ageing=20.0)
    run.add(*(asked(f"w{i}", range(i, i + 100)) for i in range(6)))
    for _ in range(2):
        run.step()
    status: ReplicaStatus = run.core.status()
    assert status.rung == Rung.REFUSE
    assert status.best_effort_wait_s > 20.0
    error = refusal(run, "batch", INTERNAL, None)
    assert isinstance(error, QueueFull)
    assert error.retry_after_s >= 10.0
    run.add(asked("standard", range(40)))
    run.run()
    assert run.core.status().rung == Rung.NORMAL
    run.core.add(asked("batch", range(40), INTERNAL), Seconds(run.now))


def test_a_light_tenant_is_not_refused_for_a_heavy_ones_line() -> None:
    run = busy()
    run.add(*(asked(f"h{i}", range(i, i + 20), tenant="heavy") for i in range(40)))
    with pytest.raises(DeadlineUnmeetable):
        run.add(asked("more", range(20), tenant="heavy", budget=6.0))
    run.add(asked("light", range(20), tenant="light", budget=6.0))
    began = run.now
    while not run.answers["light"].tokens:
        run.step()
    assert run.now - began <= 7.0
