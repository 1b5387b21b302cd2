"""Figures of a benchmark and the table that shows them, under the names that vLLM's has."""

import math
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from headway.app.bench_client import Record
from headway.app.bench_dataset import Prompt
from headway.core.sim.report import percentile

WIDTH = 50
TITLES = {
    "ttft": ("Time to First Token", "TTFT"),
    "tpot": ("Time per Output Token (excl. 1st token)", "TPOT"),
    "itl": ("Inter-token Latency", "ITL"),
    "e2el": ("End-to-end Latency", "E2EL"),
}


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One answered request; times in seconds."""

    prompt_tokens: int
    output_tokens: int
    ttft: float
    e2el: float
    itl: tuple[float, ...]  # gaps between pieces of text

    @property
    def tpot(self) -> float | None:
        """Seconds a token after the first; None for answers of one token."""
        if self.output_tokens < 2:
            return None
        return (self.e2el - self.ttft) / (self.output_tokens - 1)


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One latency over all answers, in milliseconds."""

    mean: float
    median: float
    std: float
    percentiles: tuple[tuple[float, float], ...]  # (percent, value)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the table shows."""

    completed: int
    failed: int
    duration: float  # seconds from the first request sent to the last answer's end
    total_input_tokens: int
    total_output_tokens: int
    good: int | None  # answers within every goodput limit; None without limits
    max_output_tokens_per_s: float
    max_concurrent_requests: int
    series: dict[str, Series]
    errors: dict[str, int]  # message -> how often, most frequent first

    def per_second(self, amount: float) -> float:
        """An amount over the run's duration."""
        return amount / self.duration if self.duration > 0 else 0.0


def answer_of(record: Record, prompt: Prompt) -> Answer | None:
    """What a record says, or None for a request that failed.

    Tokens are those of the server's usage; a server that reports none is taken to send one
    token in each piece of text.
    """
    if record.error is not None or not record.text_times:
        return None
    return Answer(
        prompt_tokens=_first(record.prompt_tokens, prompt.num_tokens, 0),
        output_tokens=_first(record.output_tokens, len(record.text_times)),
        ttft=record.text_times[0] - record.sent,
        e2el=record.finished - record.sent,
        itl=tuple(later - earlier for earlier, later in pairwise(record.text_times)),
    )


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)


def series_of(seconds: Sequence[float], percents: Sequence[float]) -> Series:
    """Mean, median, spread and percentiles in milliseconds; all 0 when there are no values."""
    ordered = sorted(second * 1000 for second in seconds) or [0.0]
    mean = sum(ordered) / len(ordered)
    return Series(
        mean=mean,
        median=percentile(ordered, 50),
        std=math.sqrt(sum((value - mean) ** 2 for value in ordered) / len(ordered)),
        percentiles=tuple((p, percentile(ordered, p)) for p in percents),
    )


def is_good(answer: Answer, limits_ms: dict[str, float]) -> bool:
    """True when the answer keeps every limit; ITL is no limit of one request."""
    figures = {"ttft": answer.ttft, "tpot": answer.tpot or 0.0, "e2el": answer.e2el}
    return all(figures[name] * 1000 <= limit for name, limit in limits_ms.items())


def peak_concurrency(records: Sequence[Record]) -> int:
    """Most requests that were under way at one moment."""
    # An end sorts before a start at the same time: the place was free again.
    changes = sorted([(r.sent, 1) for r in records] + [(r.finished, -1) for r in records])
    running = peak = 0
    for _, change in changes:
        running += change
        peak = max(peak, running)
    return peak


def peak_tokens_per_second(records: Sequence[Record], answers: Sequence[Answer | None]) -> float:
    """Most output tokens in one whole second of the run, counted from its start."""
    start = min((record.sent for record in records), default=0.0)
    seconds: dict[int, float] = {}
    for record, answer in zip(records, answers, strict=True):
        if answer is None:
            continue
        tokens_a_piece = answer.output_tokens / len(record.text_times)
        for at in record.text_times:
            second = math.floor(at - start)
            seconds[second] = seconds.get(second, 0.0) + tokens_a_piece
    return max(seconds.values(), default=0.0)


def summarize(
    records: Sequence[Record],
    prompts: Sequence[Prompt],
    percents: Sequence[float],
    limits_ms: dict[str, float],
) -> Summary:
    """All figures of a run."""
    answers = [answer_of(r, p) for r, p in zip(records, prompts, strict=True)]
    good = [answer for answer in answers if answer is not None]
    failed = [record for record, answer in zip(records, answers, strict=True) if answer is None]
    messages = [record.error or "no answer" for record in failed]
    counts = {message: messages.count(message) for message in dict.fromkeys(messages)}
    seconds = {
        "ttft": [answer.ttft for answer in good],
        "tpot": [answer.tpot for answer in good if answer.tpot is not None],
        "itl": [gap for answer in good for gap in answer.itl],
        "e2el": [answer.e2el for answer in good],
    }
    return Summary(
        completed=len(good),
        failed=len(failed),
        duration=max((r.finished for r in records), default=0.0)
        - min((r.sent for r in records), default=0.0),
        total_input_tokens=sum(answer.prompt_tokens for answer in good),
        total_output_tokens=sum(answer.output_tokens for answer in good),
        good=sum(is_good(answer, limits_ms) for answer in good) if limits_ms else None,
        max_output_tokens_per_s=peak_tokens_per_second(records, answers),
        max_concurrent_requests=peak_concurrency(records),
        series={name: series_of(values, percents) for name, values in seconds.items()},
        errors=dict(sorted(counts.items(), key=lambda item: -item[1])),
    )


class LoadShape(msgspec.Struct, frozen=True, kw_only=True):
    """How the load was sent, for the table's head."""

    request_rate: float
    max_concurrency: int | None


def table(summary: Summary, load: LoadShape, metrics: Sequence[str]) -> str:
    """The result as people know it; `metrics` names the latencies to show."""
    lines = [" Serving Benchmark Result ".center(WIDTH, "=")]
    lines += [line("Successful requests:", summary.completed)]
    lines += [line("Failed requests:", summary.failed)]
    if load.max_concurrency is not None:
        lines += [line("Maximum request concurrency:", load.max_concurrency)]
    if not math.isinf(load.request_rate):
        lines += [line("Request rate configured (RPS):", load.request_rate)]
    total = summary.total_input_tokens + summary.total_output_tokens
    lines += [
        line("Benchmark duration (s):", summary.duration),
        line("Total input tokens:", summary.total_input_tokens),
        line("Total generated tokens:", summary.total_output_tokens),
        line("Request throughput (req/s):", summary.per_second(summary.completed)),
    ]
    if summary.good is not None:
        lines += [line("Request goodput (req/s):", summary.per_second(summary.good))]
    lines += [
        line("Output token throughput (tok/s):", summary.per_second(summary.total_output_tokens)),
        line("Peak output token throughput (tok/s):", summary.max_output_tokens_per_s),
        line("Peak concurrent requests:", summary.max_concurrent_requests),
        line("Total token throughput (tok/s):", summary.per_second(total)),
    ]
    for name in metrics:
        lines += _series_lines(name, summary.series[name])
    lines += ["=" * WIDTH]
    lines += [f"{count} x {message}" for message, count in list(summary.errors.items())[:5]]
    return "\n".join(lines)


def _series_lines(name: str, series: Series) -> list[str]:
    title, short = TITLES[name]
    return [
        title.center(WIDTH, "-"),
        line(f"Mean {short} (ms):", series.mean),
        line(f"Median {short} (ms):", series.median),
        *(line(f"P{percent:g} {short} (ms):", value) for percent, value in series.percentiles),
    ]


def rule(title: str) -> str:
    """A line of `=` with a title in its middle."""
    return (f" {title} " if title else "").center(WIDTH, "=")


def line(name: str, value: object) -> str:
    """One row of a table; floats with two decimals."""
    text = f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{name:<40} {text:<10}".rstrip()


def as_json(summary: Summary, metrics: Sequence[str]) -> dict[str, object]:
    """The figures under the keys of vLLM's result files."""
    total = summary.total_input_tokens + summary.total_output_tokens
    result: dict[str, object] = {
        "duration": summary.duration,
        "completed": summary.completed,
        "failed": summary.failed,
        "total_input_tokens": summary.total_input_tokens,
        "total_output_tokens": summary.total_output_tokens,
        "request_throughput": summary.per_second(summary.completed),
        "request_goodput": None if summary.good is None else summary.per_second(summary.good),
        "output_throughput": summary.per_second(summary.total_output_tokens),
        "total_token_throughput": summary.per_second(total),
        "max_output_tokens_per_s": summary.max_output_tokens_per_s,
        "max_concurrent_requests": summary.max_concurrent_requests,
        "errors": summary.errors,
    }
    for name in metrics:
        series = summary.series[name]
        result[f"mean_{name}_ms"] = series.mean
        result[f"median_{name}_ms"] = series.median
        result[f"std_{name}_ms"] = series.std
        result |= {f"p{percent:g}_{name}_ms": value for percent, value in series.percentiles}
    return result
