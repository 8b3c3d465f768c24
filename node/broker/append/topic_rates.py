"""Rates of topics at the leader: what is appended to one in a second.

Owns the meters; the table of the state has the rates.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from node.state.state import State
from node.state.tables.topic_rates import TopicRate, TopicRatesTable
from node.users.rates import Meter, Unit
from store.record.edit import layouts


class TopicMeters:
    """Meters of the topics that have rates. One per broker."""

    def __init__(self, state: State, clock_ms: Callable[[], int]) -> None:
        self.table = state.table(TopicRatesTable)
        """Replaced with the state. Without rows nothing has to be called."""
        self._clock_s: Final = lambda: clock_ms() / 1000
        self._meters: dict[bytes, tuple[TopicRate, Meter]] = {}
        self.refused: Final = Counter(
            {unit.name.lower(): 0 for unit in (Unit.BYTES, Unit.MESSAGES)}
        )
        """Appends that were refused, by what was over its rate."""

    def take(self, counts: Iterable[tuple[bytes, int]], size_bytes: int, total_count: int) -> None:
        """Take a batch, by the counts of messages in topics, which share its bytes. Raises
        RateLimitedError."""
        rates, of_topic = self.table.by_topic, Counter[bytes]()
        for topic, count in counts:
            if topic in rates:
                of_topic[topic] += count
        for topic, count in of_topic.items():
            self._meter(topic, rates[topic]).take(size_bytes * count // max(1, total_count), count)

    def take_records(self, records: bytes) -> None:
        """Take a batch of encoded records. Raises RateLimitedError, RecordFormatError."""
        topics = [records[layout.topic_at : layout.topic_hi] for layout in layouts(records)]
        self.take(((topic, 1) for topic in topics), len(records), len(topics))

    def _meter(self, topic: bytes, rate: TopicRate) -> Meter:
        known = self._meters.get(topic)
        if known is None or known[0] != rate:
            self._meters = {
                one: row for one, row in self._meters.items() if one in self.table.by_topic
            }
            whose = f"topic {topic.decode('utf-8', 'replace')!r}"
            known = self._meters[topic] = rate, Meter(whose, rate, self.refused, self._clock_s)
        return known[1]
