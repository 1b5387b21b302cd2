"""The catalogue rendered for a scrape."""

import math
import re
from collections.abc import Callable, Iterable

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain

from headway.core.base import metrics
from headway.core.base.metrics import CATALOGUE, Kind, Metric
from headway.service.observe.prometheus import Exporter, Sample

CONSTANT = {"model": "m", "model_name": "m", "engine": "0"}
COUNTER = Metric(name="things_total", kind=Kind.COUNTER, help="Things", labels=("model", "kind"))
TIMES = Metric(name="times_ms", kind=Kind.HISTOGRAM, help="Times", buckets=(1.0, 2.0, 5.0))
GAUGE = Metric(name="level", kind=Kind.GAUGE, help="Level")


def values(text: str) -> dict[str, float]:
    """Every sample as `name{labels}`, sorted labels."""
    found = {}
    for family in plain(text):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def scrape(exporter: Exporter) -> dict[str, float]:
    return values(exporter.render(None)[0].decode())


def test_counters_grow_by_label() -> None:
    exporter = Exporter([COUNTER], CONSTANT)
    exporter.add(COUNTER, kind="a")
    exporter.add(COUNTER, 2, kind="b")
    exporter.add(COUNTER, kind="b")
    assert scrape(exporter) == {
        "things_total{kind=a,model=m}": 1.0,
        "things_total{kind=b,model=m}": 3.0,
    }


def test_a_counter_without_total_keeps_its_name_exactly() -> None:
    exporter = Exporter([metrics.PREEMPTIONS], CONSTANT)
    exporter.add(metrics.PREEMPTIONS, 4)
    for accept in (None, "application/openmetrics-text; version=1.0.0"):
        text = exporter.render(accept)[0].decode()
        assert re.search(r"^request_preemption_count\{model=\"m\"\} 4\.0$", text, re.MULTILINE)


@given(st.lists(st.floats(0, 10), max_size=30))
def test_a_histogram_counts_each_value_once_and_sums_them(seen: list[float]) -> None:
    exporter = Exporter([TIMES], CONSTANT)
    for value in seen:
        exporter.observe(TIMES, value)
    got = scrape(exporter)
    if not seen:
        assert not got
        return
    for bound in (1.0, 2.0, 5.0, math.inf):
        le = "+Inf" if bound == math.inf else str(bound)
        count = sum(value <= bound for value in seen)
        assert got[f"times_ms_bucket{{le={le},model=m}}"] == count
    assert got["times_ms_count{model=m}"] == len(seen)
    assert math.isclose(got["times_ms_sum{model=m}"], sum(seen), abs_tol=1e-9)


def test_a_source_is_asked_at_every_scrape() -> None:
    exporter = Exporter([GAUGE], CONSTANT)
    level = [1.0]
    exporter.add_source(lambda: [Sample(GAUGE, level[0])])
    assert scrape(exporter) == {"level{model=m}": 1.0}
    level[0] = 2.0
    assert scrape(exporter) == {"level{model=m}": 2.0}


def test_both_formats_parse_and_the_scraper_chooses() -> None:
    exporter = Exporter(CATALOGUE, CONSTANT)
    exporter.observe(metrics.FIRST_TOKEN_MS, 3.0)
    exporter.add(metrics.REQUESTS, endpoint="chat", outcome="ok")
    text, kind = exporter.render(None)
    assert kind.startswith("text/plain")
    assert list(plain(text.decode()))
    newer, kind = exporter.render("application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert kind.startswith("application/openmetrics-text")
    parse: Callable[[str], Iterable[object]] = open_metrics  # untyped in the library
    assert list(parse(newer.decode()))


def test_names_in_the_catalogue_are_unique_and_say_what_they_are() -> None:
    names = [metric.name for metric in CATALOGUE]
    assert len(set(names)) == len(names)
    for metric in CATALOGUE:
        assert metric.help
        assert not metric.help.endswith(".")
        assert (metric.kind is Kind.HISTOGRAM) == bool(metric.buckets)
        assert list(metric.buckets) == sorted(metric.buckets)
