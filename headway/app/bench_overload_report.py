"""Tables, checks and charts of an overload."""

from collections.abc import Mapping, Sequence

import msgspec

from headway.app.bench_overload_sites import Phase, by_kind
from headway.app.bench_plot import Bars
from headway.app.bench_show import milliseconds, percent, table
from headway.core.sim.report import Figures, Outcome, Summary

ALONE, ONE, TWO = "vip alone", "1 x", "2 x"
SETTLED_S = 120  # from here on memory should not grow


class Checks(msgspec.Struct, frozen=True, kw_only=True):
    """What an overload must not do; ratios within one run, None where there is nothing to say."""

    lost: int  # over all phases
    vip_p99_over_alone: float | None  # at twice the capacity
    vip_refused: int
    refusals: int
    without_retry_after: int
    after_target: int  # refusals that came later than the class's own target
    goodput_2x_over_1x: float | None
    resident_end_over_settled: float | None

    def text(self) -> str:
        """One line each."""
        lines = [
            f"lost: {self.lost} (sent - answered - refused, counted by the client)",
            f"vip TTFT P99 at 2 x over alone: {_ratio(self.vip_p99_over_alone)}",
            f"vips refused: {self.vip_refused}",
            f"refusals: {self.refusals}; without Retry-After {self.without_retry_after}, "
            f"later than the class's target {self.after_target}",
            f"goodput at 2 x over 1 x: {_ratio(self.goodput_2x_over_1x)}",
        ]
        if self.resident_end_over_settled is not None:
            lines.append(
                f"memory at the end over that at 2 min: {_ratio(self.resident_end_over_settled)}"
            )
        return "\n".join(lines)


def checks(phases: Sequence[Phase], targets: Mapping[str, float]) -> Checks:
    """Judge all phases; conservation is counted over them all."""
    summaries = {phase.name: phase.summary(targets) for phase in phases}
    refused = [r for p in phases for r in p.records if r.outcome is Outcome.REFUSED]
    vips = {name: s.groups["vip"] for name, s in summaries.items() if "vip" in s.groups}
    return Checks(
        lost=sum(summary.total.lost for summary in summaries.values()),
        vip_p99_over_alone=_over(_p99(vips.get(TWO)), _p99(vips.get(ALONE))),
        vip_refused=sum(figures.refused for figures in vips.values()),
        refusals=len(refused),
        without_retry_after=sum(record.retry_after_s is None for record in refused),
        after_target=sum(record.e2e > targets.get(record.group, record.e2e) for record in refused),
        goodput_2x_over_1x=_over(_good(summaries, TWO), _good(summaries, ONE)),
        resident_end_over_settled=_growth(phases[-1].resident),
    )


def show(phases: Sequence[Phase], capacity: float, what: str, targets: Mapping[str, float]) -> str:
    """A row for each class at each load, and the reasons of refusals below."""
    head = ["", "sent", "answered", "refused", "lost", "TTFT P50", "P99", "within target"]
    head += ["goodput/s", "retry P50"]
    rows, notes = [], []
    for phase in phases:
        summary = phase.summary(targets)
        rows.append([phase.name, *_cells(summary.total, summary.seconds)])
        if len(summary.groups) > 1:
            rows += [
                [f"  {name}", *_cells(figures, summary.seconds)]
                for name, figures in summary.groups.items()
            ]
        for name, figures in summary.groups.items():
            notes += [f"{phase.name}, {name}: {n} refused, {r}" for r, n in figures.reasons.items()]
        notes.append(f"{phase.name}: {_preempted(phase.counters)}")
    return (
        f"{what}\ncapacity {capacity:.2f} requests a second\n\n"
        + table(head, rows)
        + "\n(milliseconds; retry in seconds; goodput: answers within the class's target)\n\n"
        + "\n".join(notes)
    )


def panels(phases: Sequence[Phase], targets: Mapping[str, float]) -> list[Bars]:
    """P99 of the first token by class, goodput, and what became of the requests."""
    names = [phase.name for phase in phases]
    summaries = [phase.summary(targets) for phase in phases]
    groups = sorted({name for summary in summaries for name in summary.groups})
    p99 = {group: [_p99(summary.groups.get(group)) for summary in summaries] for group in groups}
    return [
        Bars("time to first token, P99", "s", names, p99),
        Bars(
            "goodput",
            "answers a second",
            names,
            {"within target": [summary.goodput_s for summary in summaries]},
        ),
        Bars(
            "requests",
            "",
            names,
            {
                "answered": [float(summary.total.answered) for summary in summaries],
                "refused": [float(summary.total.refused) for summary in summaries],
                "lost": [float(summary.total.lost) for summary in summaries],
            },
        ),
    ]


def _cells(figures: Figures, seconds: float) -> list[str]:
    retry = figures.retry_after_s.p50
    return [
        f"{figures.sent}",
        f"{figures.answered}",
        f"{figures.refused}",
        f"{figures.lost}",
        milliseconds(figures.ttft.p50),
        milliseconds(figures.ttft.p99),
        percent(figures.good / figures.sent if figures.sent else None),
        f"{figures.good / seconds:.2f}" if seconds else "-",
        "-" if retry is None else f"{retry:.1f}",
    ]


def _preempted(counters: Mapping[str, float]) -> str:
    """Preemptions by class and kind; a server that is not ours may count them in other ways."""
    kinds = by_kind(counters)
    if kinds:
        told = [f"{n} {kind} of {name}" for name, of in kinds.items() for kind, n in of.items()]
        return "preempted: " + ", ".join(told)
    counted = [f"{name} {value:g}" for name, value in counters.items() if value]
    return ", ".join(counted) or "nobody was preempted"


def _p99(figures: Figures | None) -> float | None:
    return None if figures is None else figures.ttft.p99


def _good(summaries: Mapping[str, Summary], name: str) -> float | None:
    summary = summaries.get(name)
    return None if summary is None else summary.goodput_s


def _over(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _growth(resident: Sequence[int]) -> float | None:
    """The last sample over the one at SETTLED_S; samples are a second apart."""
    if len(resident) <= SETTLED_S or not resident[SETTLED_S]:
        return None
    return resident[-1] / resident[SETTLED_S]


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
