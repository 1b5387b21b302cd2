"""Fill the catalogue of metrics with prometheus_client and render it for a scrape."""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from headway.core.base.metrics import Kind, Metric

NONE: Mapping[str, str] = MappingProxyType({})  # of further labels
Series = tuple[Hashable, ...]  # a metric's name, then its further labels


class Sample(NamedTuple):
    """A value computed at scrape time; `labels` are those beside the constant ones."""

    metric: Metric
    value: float
    labels: Mapping[str, str] = {}


class Count:
    """One labelled counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0


class Buckets:
    """One labelled histogram: counts per bucket, and the sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def put(self, value: float, times: int) -> None:
        """Count it in its bucket."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


class Exporter(Collector):
    """The in-memory values of one process and their rendering; owned by one thread.

    `constant` holds the labels that have the same value on every series of this process,
    such as the model's name; a metric takes those of them that it declares.
    """

    def __init__(self, catalogue: Sequence[Metric], constant: Mapping[str, str]) -> None:
        self._catalogue = catalogue
        self._constant = constant
        self._counters: dict[tuple[str, tuple[str, ...]], Count] = {}
        self._histograms: dict[tuple[str, tuple[str, ...]], Buckets] = {}
        self._sources: list[Callable[[], Iterable[Sample]]] = []
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def add(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        """Count `amount` (>= 0) more of a counter."""
        self.counter(metric, labels).value += amount

    def observe(
        self,
        metric: Metric,
        value: float,
        times: int = 1,
        labels: Mapping[str, str] = NONE,
    ) -> None:
        """Put `value` into a histogram, `times` times."""
        self.histogram(metric, labels).put(value, times)

    def counter(self, metric: Metric, labels: Mapping[str, str]) -> Count:
        """The one counter of these labels; shown from now on."""
        assert metric.kind is Kind.COUNTER, metric.name
        return self._counters.setdefault((metric.name, self._values(metric, labels)), Count())

    def histogram(self, metric: Metric, labels: Mapping[str, str]) -> Buckets:
        """The one histogram of these labels; shown from now on."""
        assert metric.kind is Kind.HISTOGRAM, metric.name
        key = (metric.name, self._values(metric, labels))
        return self._histograms.setdefault(key, Buckets(metric.buckets))

    def add_source(self, source: Callable[[], Iterable[Sample]]) -> None:
        """Ask `source` at every scrape for values that are not kept here."""
        self._sources.append(source)

    def render(self, accept: str | None) -> tuple[bytes, str]:
        """The whole exposition and its content type, in the format the scraper accepts."""
        encode, content_type = choose_encoder(accept or "")
        return encode(self._registry), content_type

    def describe(self) -> Iterable[Family]:
        """Nothing: names are known from the catalogue and never collide."""
        return ()

    def collect(self) -> Iterator[Family]:
        """Every entry of the catalogue that has a value."""
        sampled: dict[tuple[str, tuple[str, ...]], float] = {}
        for source in self._sources:
            for metric, value, labels in source():
                sampled[metric.name, self._values(metric, labels)] = value
        for metric in self._catalogue:
            yield self._family(metric, sampled)

    def _family(
        self, metric: Metric, sampled: Mapping[tuple[str, tuple[str, ...]], float]
    ) -> Family:
        if metric.kind is Kind.HISTOGRAM:
            return self._histogram(metric)
        family = Family(*_name_and_type(metric))
        counted = [(key, count.value) for key, count in self._counters.items()]
        for (name, values), value in [*counted, *sampled.items()]:
            if name == metric.name:
                labels = dict(zip(metric.labels, values, strict=True))
                family.add_sample(metric.name, labels, value)
        return family

    def _histogram(self, metric: Metric) -> Family:
        family = HistogramMetricFamily(metric.name, _help(metric), labels=metric.labels)
        bounds = [*(str(le) for le in metric.buckets), "+Inf"]
        for (name, values), buckets in self._histograms.items():
            if name == metric.name:
                counts = _running_sums(buckets.counts)
                family.add_metric(
                    values, list(zip(bounds, counts, strict=True)), sum_value=buckets.total
                )
        return family

    def _values(self, metric: Metric, labels: Mapping[str, str]) -> tuple[str, ...]:
        merged = {**self._constant, **labels}
        return tuple(merged[label] for label in metric.labels)


class Labelled:
    """An exporter as one model sees it: every series has that model's labels."""

    def __init__(self, exporter: Exporter, labels: Mapping[str, str]) -> None:
        self._exporter = exporter
        self._labels = labels
        self._counts: dict[Series, Count] = {}
        self._buckets: dict[Series, Buckets] = {}

    def add(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        """Count `amount` (>= 0) more of a counter."""
        self.counter(metric, labels).value += amount

    def observe(
        self,
        metric: Metric,
        value: float,
        times: int = 1,
        labels: Mapping[str, str] = NONE,
    ) -> None:
        """Put `value` into a histogram, `times` times."""
        self.histogram(metric, labels).put(value, times)

    def counter(self, metric: Metric, labels: Mapping[str, str] = NONE) -> Count:
        """The one counter of these labels beside the model's."""
        key = (metric.name, *labels.items())
        count = self._counts.get(key)
        if count is None:
            all_ = {**self._labels, **labels}
            count = self._counts[key] = self._exporter.counter(metric, all_)
        return count

    def histogram(self, metric: Metric, labels: Mapping[str, str] = NONE) -> Buckets:
        """The same for a histogram."""
        key = (metric.name, *labels.items())
        buckets = self._buckets.get(key)
        if buckets is None:
            all_ = {**self._labels, **labels}
            buckets = self._buckets[key] = self._exporter.histogram(metric, all_)
        return buckets

    def named(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """These values as this model's."""
        for metric, value, labels in samples:
            yield Sample(metric, value, {**self._labels, **labels})


def _name_and_type(metric: Metric) -> tuple[str, str, str]:
    """Family name, help and type.

    A counter whose name lacks `_total` is exposed as untyped: the library would add the
    suffix, and our names are exact as scraped.
    """
    if metric.kind is not Kind.COUNTER:
        return metric.name, _help(metric), metric.kind.value
    if metric.name.endswith("_total"):
        return metric.name.removesuffix("_total"), _help(metric), "counter"
    return metric.name, _help(metric), "unknown"


def _help(metric: Metric) -> str:
    return f"{metric.help} ({metric.unit})" if metric.unit else metric.help


def _running_sums(counts: Iterable[int]) -> list[float]:
    sums: list[float] = []
    total = 0
    for count in counts:
        total += count
        sums.append(float(total))
    return sums
