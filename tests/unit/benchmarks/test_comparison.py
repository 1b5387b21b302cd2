from typing import Any

import pytest

from benchmarks.comparison import (
    BY_KEY,
    DISTURBED,
    FAILED,
    MAX_ATTEMPTS,
    OK,
    OURS,
    TOO_SLOW,
    Step,
    best_peer,
    compare,
    estimate_s,
    is_done,
    left_of,
    limit_s,
    never_counted,
    own_figures,
    reached,
    round_steps,
    scout_steps,
    values,
    verdict,
)

ALL = ("w1", "w2", "w3", "w4", "prefill")


def run(
    number: int,
    system: str,
    workload: str,
    figures: dict[str, Any],
    *,
    said: str = OK,
    wall_s: float = 10.0,
) -> dict[str, Any]:
    return {
        "round": number,
        "system": system,
        "workload": workload,
        "verdict": said,
        "wall_s": wall_s,
        "figures": figures,
    }


def speed(number: int, system: str, tokens: float, workload: str = "w1", **more: Any) -> Any:
    return run(number, system, workload, {"output_tok_s": tokens}, **more)


def test_a_run_beside_busy_others_is_disturbed_and_one_with_errors_failed() -> None:
    assert verdict({"errors": 0, "other_cores_used": 0.2}) == OK
    assert verdict({"errors": 0, "other_cores_used": 0.21}) == DISTURBED
    assert verdict({"errors": 0, "other_cores_used": 0.21}, 0.5) == OK
    assert verdict({"errors": 1, "other_cores_used": 0.0}) == FAILED
    assert verdict({"errors": 0}) == OK


def test_disturbed_and_failed_runs_have_no_value() -> None:
    runs = [
        speed(1, "a", 10.0, said=DISTURBED),
        speed(1, "a", 20.0),
        speed(2, "a", 30.0, said=FAILED),
    ]
    assert values(runs, "a", BY_KEY["w1"], scout=True) == {1: 20.0}


def test_the_best_peer_is_the_best_of_the_scout_round_and_never_ours() -> None:
    runs = [
        speed(0, "a", 10.0),
        speed(0, "b", 20.0),
        speed(0, "c", 90.0, said=DISTURBED),
        speed(0, OURS, 99.0),
        speed(1, "a", 80.0),
    ]
    assert best_peer(runs, BY_KEY["w1"]) == "b"
    assert best_peer([], BY_KEY["w1"]) is None


def test_less_is_better_where_the_figure_says_so_and_its_partner_follows() -> None:
    def w4(gap: float, long: float) -> dict[str, Any]:
        return {"groups": {"stream": {"itl_p99_ms": gap}, "long": {"ttft_p50_ms": long}}}

    runs = [run(0, "a", "w4", w4(900.0, 1.0)), run(0, "b", "w4", w4(400.0, 50.0))]
    assert best_peer(runs, BY_KEY["w4_itl"]) == "b"
    assert best_peer(runs, BY_KEY["w4_long"]) == "b"


def test_a_workload_is_done_when_it_counted_or_was_tried_often_enough() -> None:
    bad = speed(1, "a", 1.0, said=DISTURBED)
    assert not is_done([bad] * (MAX_ATTEMPTS - 1), 1, "a", "w1")
    assert is_done([bad] * MAX_ATTEMPTS, 1, "a", "w1")
    assert is_done([bad, speed(1, "a", 1.0)], 1, "a", "w1")
    assert is_done([run(1, "a", "w1", {}, said=TOO_SLOW)], 1, "a", "w1")
    assert not is_done([speed(0, "a", 1.0), speed(1, "b", 1.0)], 1, "a", "w1")


def test_what_never_counted_is_named() -> None:
    runs = [
        speed(0, "a", 1.0, said=DISTURBED),
        speed(0, "a", 1.0, said=FAILED),
        speed(0, "b", 1.0, said=DISTURBED),
        speed(1, "b", 1.0),
        speed(0, "c", 1.0, said=TOO_SLOW),
    ]
    assert never_counted(runs) == ["a w1"]


def test_a_system_is_given_up_after_three_times_the_quickest_of_the_scout_round() -> None:
    runs = [
        speed(0, "a", 1.0, wall_s=50.0),
        speed(0, "b", 1.0, wall_s=40.0),
        speed(0, "c", 1.0, wall_s=1.0, said=DISTURBED),
        speed(1, OURS, 1.0, wall_s=2.0),
        run(0, "a", "w4", {}, wall_s=30.0),
        speed(0, "a", 1.0, "w2", wall_s=5.0),
    ]
    assert limit_s(runs, "w1", 300.0) == 120.0
    assert limit_s(runs, "w1", 90.0) == 90.0
    assert limit_s(runs, "w2", 300.0) == 60.0, "never less than a minute"
    assert limit_s(runs, "w4", 300.0) == 300.0
    assert limit_s([], "w1", 300.0) == 300.0


def test_a_restarted_command_does_only_what_is_left() -> None:
    steps = scout_steps(["a", "b"], ("w1", "w2"))
    runs = [speed(0, "a", 1.0), speed(0, "a", 1.0, "w2"), speed(0, "b", 1.0)]
    assert left_of(steps, runs) == [Step(0, "b", ("w2",))]
    assert left_of(steps, runs, missing=["b"]) == []


def test_rounds_alternate_ours_with_the_peers_on_what_each_is_best_at() -> None:
    runs = [
        speed(0, "a", 50.0),
        speed(0, "b", 40.0),
        speed(0, "a", 50.0, "w2"),
        speed(0, "b", 60.0, "w2"),
        run(0, "b", "prefill", {"prefill_512_tok_s": 9.0, "prefill_4096_tok_s": 1.0}),
        run(0, "a", "prefill", {"prefill_512_tok_s": 5.0, "prefill_4096_tok_s": 2.0}),
    ]
    steps = round_steps(runs, ("w1", "w2", "prefill"), ("w3hit",), 2)
    assert steps[:3] == [
        Step(1, OURS, ("w1", "w2", "prefill", "w3hit")),
        Step(1, "a", ("w1", "prefill")),
        Step(1, "b", ("w2", "prefill")),
    ]
    assert [step.round for step in steps] == [1, 1, 1, 2, 2, 2]


def test_a_ratio_is_taken_within_each_round_and_given_as_median_and_range() -> None:
    runs = [speed(0, "a", 100.0), speed(0, "b", 90.0)]
    for number, (ours, theirs) in enumerate([(150.0, 100.0), (80.0, 40.0), (160.0, 100.0)], 1):
        runs += [speed(number, OURS, ours), speed(number, "a", theirs)]
    (row,) = compare(runs)
    assert row["best_peer"] == "a"
    assert row["ratio"] == {"median": 1.6, "min": 1.5, "max": 2.0, "rounds": 3}
    assert row["systems"]["a"]["rounds"] == 3, "the scout run counts only where there is no other"
    assert row["systems"]["b"] == {"median": 90.0, "min": 90.0, "max": 90.0, "rounds": 1}
    assert row["reached"] == "must"


def test_a_round_that_one_side_lost_has_no_ratio() -> None:
    runs = [
        speed(0, "a", 100.0),
        speed(1, OURS, 150.0),
        speed(1, "a", 100.0),
        speed(2, OURS, 900.0),
        speed(2, "a", 100.0, said=DISTURBED),
    ]
    (row,) = compare(runs)
    assert row["ratio"]["rounds"] == 1


def test_memory_is_compared_with_the_scout_run_of_the_leanest_peer() -> None:
    runs = [
        run(0, "a", "w2", {"pss_mib": 500.0}),
        run(0, "b", "w2", {"pss_mib": 400.0}),
        run(1, OURS, "w2", {"pss_mib": 300.0}),
        run(2, OURS, "w2", {"pss_mib": 320.0}),
    ]
    row = next(row for row in compare(runs) if row["figure"] == "memory")
    assert row["best_peer"] == "b"
    assert row["ratio"]["median"] == pytest.approx(0.775)
    assert row["reached"] == "must"


@pytest.mark.parametrize(
    ("key", "ratio", "said"),
    [
        ("w1", 1.39, "no"),
        ("w1", 1.4, "must"),
        ("w1", 2.0, "aim"),
        ("w4_itl", 0.2, "must"),
        ("w4_itl", 0.3, "no"),
        ("ready", 9.0, None),
    ],
)
def test_targets_are_met_from_their_value_on(key: str, ratio: float, said: str | None) -> None:
    assert reached(BY_KEY[key], ratio) == said


def test_measured_times_replace_the_guesses_of_the_estimate() -> None:
    steps = [Step(1, "a", ("w1",)), Step(2, "a", ("w1",))]
    guessed = estimate_s(steps)
    measured = estimate_s(
        steps, [speed(0, "a", 1.0, wall_s=100.0), run(0, "a", "start", {}, wall_s=7.0)]
    )
    assert guessed > 0
    assert measured == pytest.approx(2 * 107.0)


def test_own_figures_are_taken_in_each_round_beside_its_roofline() -> None:
    w2 = {"output_tok_s": 100.0, "total_tok_s": 300.0}
    w4 = {"groups": {"stream": {"itl_p99_ms": 60.0}}, "tokens": 50, "events": 50}
    runs = [
        speed(1, OURS, 100.0),
        run(1, OURS, "w2", w2),
        run(1, OURS, "w3", {"ttft_p50_ms": 10.0}),
        run(1, OURS, "w3cold", {"ttft_p50_ms": 100.0}),
        run(1, OURS, "w3hit", {"hit_ttft_p50_ms": 3.0, "miss_ttft_p50_ms": 20.0}),
        run(1, OURS, "w4", w4),
        run(1, OURS, "w4quiet", {"itl_p50_ms": 20.0}),
        speed(2, OURS, 1.0, said=DISTURBED),
        speed(0, OURS, 1.0),
    ]
    peaks = [{"round": 1, "read_gb_s": 20.0, "int8_gop_s": 350.0}]
    model = {"weight_bytes": 1e8, "layer_ops": 2e8, "head_ops": 1e8}
    found = {key: each["median"] for key, each in own_figures(runs, peaks, model).items()}
    assert found == {
        "w1_share_of_floor": pytest.approx(0.5),
        "w2_gop_s": pytest.approx(70.0),
        "w2_share_of_peak": pytest.approx(0.2),
        "w3_ttft_over_cold": pytest.approx(0.1),
        "hit_over_miss": pytest.approx(0.15),
        "w4_itl_p99_over_quiet_median": pytest.approx(3.0),
        "w4_events_per_token": 1.0,
    }


def test_without_a_roofline_there_are_no_shares() -> None:
    model = {"weight_bytes": 1e8, "layer_ops": 2e8, "head_ops": 1e8}
    assert own_figures([speed(1, OURS, 100.0)], [], model) == {}
