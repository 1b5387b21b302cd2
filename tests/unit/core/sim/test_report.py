"""Figures of a run."""

import pytest

from headway.core.sim.report import Outcome, Record, figures, latency, percentile, summarize


def answered(name: str, arrived: float, *times: float, group: str = "all") -> Record:
    return Record(
        name,
        group,
        arrived,
        token_times=list(times),
        finished=times[-1],
        outcome=Outcome.ANSWERED,
    )


def refused(name: str, arrived: float, at: float, reason: str, retry: float) -> Record:
    return Record(
        name,
        "all",
        arrived,
        finished=at,
        outcome=Outcome.REFUSED,
        reason=reason,
        retry_after_s=retry,
    )


def test_percentiles_lie_between_the_nearest_ranks() -> None:
    assert percentile([1.0, 2.0, 4.0], 50) == 2.0
    assert percentile([1.0, 2.0, 4.0], 75) == 3.0


def test_a_latency_of_nothing_has_no_values() -> None:
    assert latency([]).p99 is None
    assert latency([2.0]).p99 == latency([2.0]).mean == 2.0


def test_answers_refusals_and_losses_add_up_to_what_was_sent() -> None:
    records = [answered("a", 0.0, 1.0, 2.0), refused("b", 0.0, 0.5, "queue_full", 3.0)]
    records.append(Record("c", "all", 0.0))
    found = figures(records, {})
    assert (found.sent, found.answered, found.refused, found.lost) == (3, 1, 1, 1)
    assert found.reasons == {"queue_full": 1}
    assert found.retry_after_s.max == 3.0
    assert found.refused_after_s.max == 0.5


def test_only_answers_within_the_target_of_their_class_are_good() -> None:
    records = [
        answered("a", 0.0, 0.4, group="vip"),
        answered("b", 0.0, 0.6, group="vip"),
        answered("c", 0.0, 99.0, group="internal"),
    ]
    assert figures(records, {"vip": 0.5}).good == 2
    summary = summarize(records, {"vip": 0.5})
    assert (summary.groups["vip"].good, summary.groups["internal"].good) == (1, 1)


def test_rates_are_over_the_time_from_the_first_arrival_to_the_last_end() -> None:
    records = [answered("a", 10.0, 11.0, 12.0), answered("b", 11.0, 13.0, 14.0)]
    summary = summarize(records, slot_seconds=6.0, num_slots=3)
    assert summary.seconds == 4.0
    assert summary.output_tokens_s == 1.0
    assert summary.requests_s == 0.5
    assert summary.utilisation == pytest.approx(0.5)
    assert summary.total.itl.mean == 1.0
    assert summary.total.ttft.p50 == 1.5
