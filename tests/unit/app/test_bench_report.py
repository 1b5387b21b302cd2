"""Figures and table of a benchmark."""

import math

import pytest

from headway.app.bench_client import Record
from headway.app.bench_dataset import Prompt
from headway.app.bench_report import (
    LoadShape,
    answer_of,
    as_json,
    peak_concurrency,
    peak_tokens_per_second,
    series_of,
    summarize,
    table,
)

PROMPT = Prompt(content="x", num_tokens=11, max_tokens=4)


def record(
    sent: float = 0.0,
    times: tuple[float, ...] = (0.5, 0.7, 1.0),
    output_tokens: int | None = 3,
    error: str | None = None,
) -> Record:
    return Record(
        sent=sent,
        text_times=[sent + t for t in times],
        finished=sent + (times[-1] if times else 0.0),
        finish_reason="length",
        prompt_tokens=10,
        output_tokens=output_tokens,
        error=error,
    )


def test_an_answers_figures_come_from_its_times() -> None:
    answer = answer_of(record(sent=100.0), PROMPT)
    assert answer is not None
    assert answer.ttft == pytest.approx(0.5)
    assert answer.e2el == pytest.approx(1.0)
    assert answer.tpot == pytest.approx(0.25)
    assert answer.itl == pytest.approx((0.2, 0.3))
    assert (answer.prompt_tokens, answer.output_tokens) == (10, 3)


def test_a_server_without_usage_is_counted_by_pieces_and_by_the_prompts_length() -> None:
    bare = record(output_tokens=None)
    bare.prompt_tokens = None
    answer = answer_of(bare, PROMPT)
    assert answer is not None
    assert (answer.prompt_tokens, answer.output_tokens) == (11, 3)


def test_an_answer_of_one_token_has_no_time_per_output_token() -> None:
    answer = answer_of(record(times=(0.5,), output_tokens=1), PROMPT)
    assert answer is not None
    assert answer.tpot is None


def test_failed_requests_give_no_answer() -> None:
    assert answer_of(record(error="HTTP 503: full"), PROMPT) is None
    assert answer_of(record(times=()), PROMPT) is None


def test_a_series_is_in_milliseconds() -> None:
    series = series_of([0.003, 0.001, 0.002], (99,))
    assert (series.mean, series.median) == pytest.approx((2.0, 2.0))
    assert series.std == pytest.approx(math.sqrt(2 / 3))
    assert dict(series.percentiles) == pytest.approx({99: 2.98})


def test_a_series_without_values_is_zero() -> None:
    assert series_of([], (50, 99)).percentiles == ((50, 0.0), (99, 0.0))


def test_concurrency_counts_a_place_freed_and_taken_at_once_as_one() -> None:
    assert peak_concurrency([record(0.0), record(1.0), record(0.9)]) == 2
    assert peak_concurrency([record(0.0), record(1.0)]) == 1
    assert peak_concurrency([]) == 0


def test_the_best_second_shares_tokens_out_over_the_pieces_they_came_in() -> None:
    records = [record(times=(0.5, 0.7, 1.2), output_tokens=6)]
    answers = [answer_of(r, PROMPT) for r in records]
    assert peak_tokens_per_second(records, answers) == pytest.approx(4.0)


def test_the_summary_counts_failures_by_message_and_leaves_them_out_of_figures() -> None:
    records = [
        record(),
        record(error="b"),
        record(error="a"),
        record(sent=3.0, times=(0.5, 1.0), output_tokens=2),
        record(error="a"),
    ]
    summary = summarize(records, [PROMPT] * 5, (99,), {})
    assert (summary.completed, summary.failed) == (2, 3)
    assert list(summary.errors.items()) == [("a", 2), ("b", 1)]
    assert (summary.total_input_tokens, summary.total_output_tokens) == (20, 5)
    assert summary.duration == pytest.approx(4.0)
    assert summary.good is None


def test_goodput_counts_answers_that_keep_every_limit() -> None:
    records = [record(), record(times=(0.1, 2.0)), record(times=(0.9, 1.0))]
    summary = summarize(records, [PROMPT] * 3, (99,), {"ttft": 600.0, "e2el": 1500.0})
    assert summary.good == 1


def test_the_table_has_the_names_that_people_know() -> None:
    summary = summarize([record(), record()], [PROMPT] * 2, (90, 99.9), {"ttft": 500.0})
    load = LoadShape(request_rate=2.5, max_concurrency=8)
    lines = table(summary, load, ("ttft", "tpot", "itl", "e2el")).splitlines()
    figures = dict(line.rsplit(maxsplit=1) for line in lines if ":" in line)
    assert figures == {
        "Successful requests:": "2",
        "Failed requests:": "0",
        "Maximum request concurrency:": "8",
        "Request rate configured (RPS):": "2.50",
        "Benchmark duration (s):": "1.00",
        "Total input tokens:": "20",
        "Total generated tokens:": "6",
        "Request throughput (req/s):": "2.00",
        "Request goodput (req/s):": "2.00",
        "Output token throughput (tok/s):": "6.00",
        "Peak output token throughput (tok/s):": "4.00",
        "Peak concurrent requests:": "2",
        "Total token throughput (tok/s):": "26.00",
        **{
            f"{kind} {name} (ms):": value
            for name, value in (("TTFT", "500.00"), ("TPOT", "250.00"), ("E2EL", "1000.00"))
            for kind in ("Mean", "Median", "P90", "P99.9")
        },
        "Mean ITL (ms):": "250.00",
        "Median ITL (ms):": "250.00",
        "P90 ITL (ms):": "300.00",
        "P99.9 ITL (ms):": "300.00",
    }
    assert {len(line) for line in lines if line.startswith(("=", "-"))} == {50}


def test_the_table_leaves_out_what_was_not_asked_for_and_names_errors() -> None:
    summary = summarize([record(error="HTTP 503: full")], [PROMPT], (99,), {})
    text = table(summary, LoadShape(request_rate=math.inf, max_concurrency=None), ("ttft",))
    assert "1 x HTTP 503: full" in text
    for absent in ("RPS", "concurrency:", "goodput", "TPOT", "ITL"):
        assert absent not in text


def test_the_result_file_has_vllms_keys() -> None:
    result = as_json(summarize([record()], [PROMPT], (99,), {}), ("ttft",))
    assert result["mean_ttft_ms"] == result["p99_ttft_ms"] == pytest.approx(500.0)
    assert result["output_throughput"] == pytest.approx(3.0)
    assert (result["completed"], result["request_goodput"]) == (1, None)
    assert "mean_itl_ms" not in result
