"""One metric as a row of a table: its name, type and text, and how its value is read.

Owns the rows, and the way from tables and the parts that they read to the families of Prometheus.
Must not know any metric.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, Final, Generic, NamedTuple, TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from node.broker.append.sizes import AppendedSizes
from store.stats import LatencyStats

PREFIX: Final = "quorumlog_"
_Part = TypeVar("_Part")

Value = float | Mapping[Any, float] | LatencyStats | AppendedSizes | None
"""A number; numbers by the value of the label, or by a tuple of those of all labels; a histogram;
None: no value."""


class Spec(NamedTuple, Generic[_Part]):
    """One metric. A counter is shown with `_total` behind its name, as Prometheus demands."""

    kind: str
    text: str
    read: Callable[[_Part], Value]
    """Returns the value, from the part of the node that the table is about."""
    labels: tuple[str, ...] = ()


Table = Mapping[str, Spec[_Part]]
"""Metrics by name, of one part of the node."""


def gauge(text: str, read: Callable[[_Part], Value], *labels: str) -> Spec[_Part]:
    """Return a metric that goes up and down."""
    return Spec("gauge", text, read, labels)


def counter(text: str, read: Callable[[_Part], Value], *labels: str) -> Spec[_Part]:
    """Return a metric that only grows."""
    return Spec("counter", text, read, labels)


def histogram(text: str, read: Callable[[_Part], Value]) -> Spec[_Part]:
    """Return a metric of sizes or times."""
    return Spec("histogram", text, read)


class Source(NamedTuple, Generic[_Part]):
    """A table, and the part that it reads."""

    table: Table[_Part]
    part: Callable[[], _Part | None]
    """Returns the part, or what it says of itself now; None: no metric of it is shown."""


def values(source: Source[Any]) -> dict[str, Value]:
    """Return the value of each metric of a table now."""
    part = source.part()
    return {} if part is None else {name: spec.read(part) for name, spec in source.table.items()}


class NodeCollector(Collector):
    """Collects the values of all sources into families."""

    def __init__(
        self, metrics: Mapping[str, Spec[Any]], sources: Callable[[], Iterable[Source[Any]]]
    ) -> None:
        """Show `metrics`; each of the sources must be among them."""
        self._metrics, self._sources = metrics, sources

    def collect(self) -> Iterator[Metric]:
        """Yield every metric, also one without a value."""
        families = {name: _family(name, spec) for name, spec in self._metrics.items()}
        for source in self._sources():
            for name, value in values(source).items():
                _add(families[name], value)
        yield from families.values()

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without values, so that registration reads none."""
        for name, spec in self._metrics.items():
            yield _family(name, spec)


_FAMILIES: Final[Mapping[str, Any]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


def _family(name: str, spec: Spec[Any]) -> Any:
    return _FAMILIES[spec.kind](PREFIX + name, spec.text, labels=spec.labels)


def _add(family: Any, value: Value) -> None:
    match value:
        case None:
            return
        case LatencyStats():
            family.add_metric((), *_buckets(value))
        case AppendedSizes():
            family.add_metric((), *_sizes(value))
        case Mapping():
            for labels, number in value.items():
                family.add_metric((labels,) if isinstance(labels, str) else labels, float(number))
        case _:
            family.add_metric((), float(value))


def _buckets(latencies: LatencyStats) -> tuple[list[tuple[str, float]], float]:
    """Return cumulative buckets and the sum, in s. Our bucket k counts times below 2**k us; those
    below 8 us are of no use."""
    sums = enumerate(accumulate(latencies.counts[:-1]))
    buckets = [(f"{(1 << k) / 1e6:g}", float(count)) for k, count in sums if k >= 3]
    return [*buckets, ("+Inf", float(latencies.count))], latencies.total_us / 1e6


def _sizes(sizes: AppendedSizes) -> tuple[list[tuple[str, float]], float]:
    """Return cumulative buckets and the sum, in bytes. Our bucket k counts sizes below 2**k; the
    smallest record has 91."""
    sums = enumerate(accumulate(sizes.buckets[:-1]))
    buckets = [(f"{(1 << k) - 1}", float(count)) for k, count in sums if k >= 7]
    return [*buckets, ("+Inf", float(sizes.record_count))], float(sizes.size_bytes)
