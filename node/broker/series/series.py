"""What a node knows of single topics and consumer groups, for Prometheus.

Owns the choice of topics and groups (`busiest_names`), and what lag is. Everything that is of the
cluster, and not of this process, the leader alone tells, so sums over nodes are right. Nothing is
counted for it on the way of a message but sizes by topic; the rest is read when a page is made,
what is of groups in slices of the loop before (`look`).
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from node.broker.series.busiest_names import REST, BusiestNames
from store.errors import StoreError
from store.record.topic_names import dead_letter_topic, is_reserved, retry_topic

if TYPE_CHECKING:
    from node.broker.broker import Broker
    from node.runtime.turn import Walk

_QUEUE_COUNT_MAX: Final = 16
"""Queues of a topic that have series of their own; those behind are one."""
_LOOK_COUNT_MAX: Final = 2_000
"""Limit of the records that one look reads for their times: about 30 ms."""
_ROW_COUNT_MAX: Final = 2_000
"""Groups and queues of groups that one look walks, about, in 40 ms: the next look goes on with the
groups that were walked the longest ago."""

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
    """What the last walk of a group found."""

    lags: dict[str, _Lag] = field(default_factory=dict)
    """By topic."""
    lag_count: int = 0
    offset_sum: int = 0
    member_count: int = 0
    dead_letter_count: int = 0


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
        """By group, the one that was walked the longest ago first."""
        self._looking = asyncio.Lock()
        self._group_series: GroupSeries | None = None

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
        """Return the series of groups as of the last look; None: there are to be none, or another
        node leads."""
        return self._group_series if self._broker.context.driver.is_ready else None

    async def lags(self) -> dict[str, tuple[int, float]]:
        """Return messages and age in s of the lag of each group that has series, over all topics;
        empty where another node leads."""
        await self.look()
        series, lags = self.groups(), dict[str, tuple[int, float]]()
        for (group, topic), count in (series.lag_counts if series else {}).items():
            if group != REST and series is not None:
                before, age_s = lags.get(group, (0, 0.0))
                lags[group] = before + int(count), max(age_s, series.lag_s[group, topic])
        return lags

    async def look(self) -> None:
        """Look at all groups. However many there are, the loop runs between slices."""
        context = self._broker.context
        async with self._looking:
            if not self._count_max or not context.driver.is_ready:
                self._walked.clear()
                self._group_series = None
                return
            async with context.turn.walk() as walk:
                self._group_series = await self._look(walk)

    async def _look(self, walk: "Walk") -> GroupSeries:
        broker, series = self._broker, GroupSeries()
        work = await self._walk_some(walk)
        await walk.step()
        shown = set(self._groups.choose(work))
        await walk.step()
        await self._add_lags(walk, series, shown)
        now_ms = broker.context.clock_ms()
        for group in work:
            await walk.step()
            one, label = self._walked.get(group) or _Walked(), REST
            if group in shown:
                label = group
                self._count(group, one, now_ms)  # Of the others, those of their last walk do.
            self._add(series.member_counts, label, one.member_count)
            retries = one.lags.get(retry_topic(group))
            self._add(series.retry_counts, label, retries.count if retries else 0)
            self._add(series.dead_letter_counts, label, one.dead_letter_count)
            self._add(series.in_flight_counts, label, 0)
        for (group, _, _), window in list(broker.pop.shared.table.windows.items()):
            await walk.step()
            self._add(series.in_flight_counts, group if group in shown else REST, len(window.items))
        opened = Counter[str]()
        for transaction in list(broker.transactions.ends.table.open.values()):
            await walk.step()
            opened[transaction.producer_group] += 1
        shown = set(self._producer_groups.choose(opened))
        for group, count in opened.items():
            self._add(series.transaction_counts, group if group in shown else REST, count)
        return series

    @staticmethod
    def _add(counts: ByGroup, label: str, count: int) -> None:
        counts[label] = counts.get(label, 0) + count

    async def _walk_some(self, walk: "Walk") -> dict[str, float]:
        """Walk groups up to the limit; return the work of each group: what it has to do, as `qlog
        group describe` counts it, and did since its last walk."""
        broker, now_ms = self._broker, self._broker.context.clock_ms()
        work = dict.fromkeys(broker.group_members.names(now_ms), 0.0)
        work |= dict.fromkeys(broker.context.state.groups, 0.0)
        await walk.step()
        old = {group: one for group, one in self._walked.items() if group in work}
        self._walked, row_count = dict(old), 0
        for group in [*(group for group in work if group not in old), *old]:
            if row_count >= _ROW_COUNT_MAX:
                break
            one, count = await self._walk(walk, group, now_ms)
            self._walked.pop(group, None)
            self._walked[group] = one
            row_count += count
        for group, one in self._walked.items():
            await walk.step()
            work[group] = abs(one.offset_sum - old.get(group, one).offset_sum) + one.lag_count
        return work

    async def _walk(self, walk: "Walk", group: str, now_ms: int) -> tuple[_Walked, int]:
        """Return what a walk of a group finds, and the count of it and its queues."""
        await walk.step()
        one, rows = _Walked(), [*self._broker.groups.read_rows(group, now_ms)]
        self._count(group, one, now_ms)
        for topic, queue_id, offset in rows:
            await walk.step()
            lo, hi = self._broker.context.store.queue_range(topic, queue_id)
            first = lo if offset is None else max(offset, lo)
            lag = one.lags.setdefault(topic, _Lag())
            if first < hi:
                one.lag_count += hi - first
                lag.count += hi - first
                lag.unread.append((queue_id, first))
            one.offset_sum += offset or 0
        return one, 1 + len(rows)

    def _count(self, group: str, walked: _Walked, now_ms: int) -> None:
        """Count the members and the dead letters of a group."""
        walked.member_count = len(self._broker.group_members.clients_of(group, now_ms))
        lo, hi = self._broker.context.store.queue_range(dead_letter_topic(group), 0)
        walked.dead_letter_count = hi - lo

    async def _add_lags(self, walk: "Walk", series: GroupSeries, shown: set[str]) -> None:
        """Add lag by group and topic. The groups that are the furthest behind are looked at first,
        so the limit of looks leaves out the ages of those with little lag."""
        context, look_count = self._broker.context, 0
        now_ms = context.unix_ms()
        for group, one in sorted(self._walked.items(), key=lambda row: -row[1].lag_count):
            await walk.step()
            for topic, lag in one.lags.items():
                key = (group, topic) if group in shown else (REST, REST)
                series.lag_counts[key] = series.lag_counts.get(key, 0) + lag.count
                oldest_ms = now_ms
                for queue_id, offset in lag.unread[: _LOOK_COUNT_MAX - look_count]:
                    await walk.step()
                    look_count += 1
                    try:
                        stored_ms = context.stored_ms(topic, queue_id, offset)
                    except StoreError:  # Damaged: readers report it.
                        continue
                    if stored_ms is not None:
                        oldest_ms = min(oldest_ms, stored_ms)
                age_s = (now_ms - oldest_ms) / 1000
                series.lag_s[key] = max(series.lag_s.get(key, 0.0), age_s)
