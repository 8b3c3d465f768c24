"""What a node knows of single topics and consumer groups, for Prometheus.

Owns the choice of topics and groups (`busiest_names`), and what lag is. Everything that is of the
cluster, and not of this process, the leader alone tells, so sums over nodes are right. Nothing is
counted for it on the way of a message but sizes by topic; the rest is read when a page is made.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from node.broker.series.busiest_names import REST, BusiestNames
from store.errors import StoreError
from store.record.topic_names import dead_letter_topic, is_reserved, retry_topic

if TYPE_CHECKING:
    from node.broker.broker import Broker

_QUEUE_COUNT_MAX: Final = 16
"""Queues of a topic that have series of their own; those behind are one."""
_LOOK_COUNT_MAX: Final = 2_000
"""Limit of the records that one page reads for their times: about 30 ms."""
_ROW_COUNT_MAX: Final = 2_000
"""Queues of groups that one page looks at, about, in 40 ms: the next page goes on with the groups
that were looked at the longest ago."""

ByGroup = dict[str, int]
ByRow = dict[tuple[str, str], float]
"""Values by group and topic, or by topic and queue."""


@dataclass(slots=True)
class TopicSeries:
    """Of the busiest topics, and of the others together."""

    counters: dict[str, tuple[int, ...]]
    """Topic: records and bytes in, records and bytes out, since the process started."""
    first_offsets: ByRow = field(default_factory=dict)
    end_offsets: ByRow = field(default_factory=dict)

    def column(self, number: int) -> dict[str, float]:
        """Return one of the counters."""
        return {topic: row[number] for topic, row in self.counters.items()}


@dataclass(slots=True)
class GroupSeries:
    """Of the groups with the most to do, and of the others together."""

    lag_counts: ByRow = field(default_factory=dict)
    lag_s: ByRow = field(default_factory=dict)
    """Age of the oldest message that the group has not consumed; 0 where it has all."""
    member_counts: ByGroup = field(default_factory=dict)
    retry_counts: ByGroup = field(default_factory=dict)
    dead_letter_counts: ByGroup = field(default_factory=dict)
    in_flight_counts: ByGroup = field(default_factory=dict)
    transaction_counts: ByGroup = field(default_factory=dict)
    """By producer group."""


@dataclass(slots=True)
class _Lag:
    """What a group has not consumed of one topic."""

    count: int = 0
    unread: list[tuple[int, int]] = field(default_factory=list)
    """Each queue that has some, and the first of them."""


@dataclass(slots=True)
class _Walked:
    """What a look at a group found: how far it is behind by topic, and its offsets, added up."""

    lags: dict[str, _Lag] = field(default_factory=dict)
    offset_sum: int = 0


class Series:
    """Makes the series of topics and groups of a page. One per broker."""

    def __init__(self, broker: "Broker", topic_count_max: int) -> None:
        """`topic_count_max` limits topics, and groups as well."""
        self._broker = broker
        self._topics = BusiestNames(topic_count_max)
        self._groups = BusiestNames(topic_count_max)
        self._producer_groups = BusiestNames(topic_count_max)
        self._count_max = topic_count_max
        self._walked: dict[str, _Walked] = {}
        """By group, the one that was looked at the longest ago first."""

    # --- Topics ---

    def topics(self) -> TopicSeries | None:
        """Return the series of topics; None: there are to be none."""
        if not self._count_max:
            return None
        broker, state = self._broker, self._broker.context.state
        sizes, outgoing = broker.produce.sizes, broker.outgoing.topics
        rows = {}
        for topic in state.topics:
            if not is_reserved(topic):
                incoming = sizes.of(topic)
                given = outgoing.get(topic, (0, 0))
                rows[topic] = (incoming.record_count, incoming.size_bytes, *given)
        series = TopicSeries(self._topics.counters(rows))
        if broker.context.driver.is_ready:
            self._add_offsets(series)
        return series

    def _add_offsets(self, series: TopicSeries) -> None:
        context = self._broker.context
        for topic in series.counters.keys() - {REST}:
            rest = [0, 0]
            for queue_id in range(context.state.topics[topic].queue_count):
                lo, hi = context.store.queue_range(topic, queue_id)
                if queue_id < _QUEUE_COUNT_MAX:
                    key = (topic, str(queue_id))
                    series.first_offsets[key], series.end_offsets[key] = lo, hi
                else:
                    rest = [rest[0] + lo, rest[1] + hi]
            if rest[1]:
                series.first_offsets[topic, REST], series.end_offsets[topic, REST] = rest

    # --- Groups ---

    def groups(self) -> GroupSeries | None:
        """Return the series of groups; None: there are to be none, or another node leads."""
        context = self._broker.context
        if not self._count_max or not context.driver.is_ready:
            self._walked.clear()
            return None
        series = GroupSeries()
        lags, work = self._lags()
        shown = set(self._groups.choose(work))
        self._add_lags(series, shown, lags)
        members = self._broker.group_members
        now_ms = context.clock_ms()
        for group in work:
            label = group if group in shown else REST
            self._add(series.member_counts, label, len(members.clients_of(group, now_ms)))
            retries = lags.get((group, retry_topic(group)))
            self._add(series.retry_counts, label, retries.count if retries else 0)
            lo, hi = context.store.queue_range(dead_letter_topic(group), 0)
            self._add(series.dead_letter_counts, label, hi - lo)
            self._add(series.in_flight_counts, label, 0)
        for (group, _, _), window in self._broker.pop.shared.table.windows.items():
            label = group if group in shown else REST
            self._add(series.in_flight_counts, label, len(window.items))
        table = self._broker.transactions.ends.table
        opened = Counter(one.producer_group for one in table.open.values())
        shown = set(self._producer_groups.choose(opened))
        for group, count in opened.items():
            self._add(series.transaction_counts, group if group in shown else REST, count)
        return series

    def lags(self) -> dict[str, tuple[int, float]]:
        """Return messages and age in s of the lag of each group that has series, over all topics;
        empty where another node leads."""
        series, lags = self.groups(), dict[str, tuple[int, float]]()
        for (group, topic), count in (series.lag_counts if series else {}).items():
            if group != REST and series is not None:
                before, age_s = lags.get(group, (0, 0.0))
                lags[group] = before + int(count), max(age_s, series.lag_s[group, topic])
        return lags

    @staticmethod
    def _add(counts: ByGroup, label: str, count: int) -> None:
        counts[label] = counts.get(label, 0) + count

    def _lags(self) -> tuple[dict[tuple[str, str], _Lag], dict[str, float]]:
        """Return how far each group is behind by topic, as `qlog group describe` counts it, and the
        work of each group: what it has to do, and did since the last page."""
        broker, now_ms = self._broker, self._broker.context.clock_ms()
        work = dict.fromkeys(broker.group_members.groups(now_ms), 0.0)
        work |= dict.fromkeys(broker.context.state.groups, 0.0)
        old = {group: one for group, one in self._walked.items() if group in work}
        self._walked, row_count = dict(old), 0
        for group in [*(group for group in work if group not in old), *old]:
            if row_count >= _ROW_COUNT_MAX:
                break
            self._walked.pop(group, None)
            self._walked[group], count = self._walk(group, now_ms)
            row_count += count
        lags = {
            (group, topic): lag
            for group, one in self._walked.items()
            for topic, lag in one.lags.items()
        }
        for group, one in self._walked.items():
            before = old.get(group, one).offset_sum
            work[group] = abs(one.offset_sum - before) + sum(lag.count for lag in one.lags.values())
        return lags, work

    def _walk(self, group: str, now_ms: int) -> tuple[_Walked, int]:
        """Return what a look at a group finds, and the count of its queues."""
        walked, count = _Walked(), 0
        for topic, queue_id, offset in self._broker.groups.read_rows(group, now_ms):
            lo, hi = self._broker.context.store.queue_range(topic, queue_id)
            first = lo if offset is None else max(offset, lo)
            lag = walked.lags.setdefault(topic, _Lag())
            if first < hi:
                lag.count += hi - first
                lag.unread.append((queue_id, first))
            walked.offset_sum += offset or 0
            count += 1
        return walked, count

    def _add_lags(
        self, series: GroupSeries, shown: set[str], lags: dict[tuple[str, str], _Lag]
    ) -> None:
        """Add lag by group and topic. The groups that are the furthest behind are looked at first,
        so the limit of looks leaves out the ages of those with little lag."""
        now_ms, look_count = self._broker.context.unix_ms(), 0
        for (group, topic), lag in sorted(lags.items(), key=lambda row: -row[1].count):
            key = (group, topic) if group in shown else (REST, REST)
            series.lag_counts[key] = series.lag_counts.get(key, 0) + lag.count
            oldest_ms = now_ms
            for queue_id, offset in lag.unread:
                if look_count == _LOOK_COUNT_MAX:
                    break
                look_count += 1
                try:
                    stored_ms = self._broker.context.stored_ms(topic, queue_id, offset)
                except StoreError:  # Damaged: readers report it.
                    continue
                if stored_ms is not None:
                    oldest_ms = min(oldest_ms, stored_ms)
            age_s = (now_ms - oldest_ms) / 1000
            series.lag_s[key] = max(series.lag_s.get(key, 0.0), age_s)
