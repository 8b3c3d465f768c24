"""The rates of topics: how much clients may send to one in a second, in this broker group.

Owns the numbers; the leader keeps to them (`broker.append.topic_rates`).
"""

from typing import Final, NamedTuple

from node.config.limits import Limits
from node.errors.common import NodeError
from node.errors.users import BadAccessError
from node.state.tables.table import Core, Table, TableContent, TableImage
from quorumlog.pb.state_pb2 import Command

RATE_MAX: Final = 1 << 40
"""A second; 1 TiB of bytes."""


class TopicRate(NamedTuple):
    """Limits of one topic. 0: none."""

    bytes_per_second: int = 0
    messages_per_second: int = 0


NO_RATE: Final = TopicRate()


class TopicRatesTable(Table):
    """Rates by topic, of those that have any."""

    name, commands = "topic_rates", frozenset({"set_topic_rates"})
    file_name = "topicRates.json"

    def __init__(self, limits: Limits, image: TableImage) -> None:
        """Raises ValueError or TypeError for an image of another form."""
        super().__init__(limits, image)
        (rows,) = self._parts(image, topics={})
        self.by_topic: dict[bytes, TopicRate] = {
            str(name).encode(): TopicRate(*map(int, row)) for name, row in rows.items()
        }

    def of(self, topic: str) -> TopicRate:
        """Return the rates of a topic."""
        return self.by_topic.get(topic.encode(), NO_RATE)

    def apply(self, state: Core, command: Command, _position: int) -> NodeError | None:
        """Set the rates of a topic of clients."""
        put = command.set_topic_rates
        refusal = state.queue_refusal(put.topic, 0)
        if refusal is not None:
            return refusal
        rate = TopicRate(put.bytes_per_second, put.messages_per_second)
        if max(rate) > RATE_MAX:
            what, why = f"a rate of {max(rate)} a second is too high", f"the highest is {RATE_MAX}"
            return BadAccessError(what, why, "give a lower one, or 0 for no limit")
        self.by_topic.pop(put.topic.encode(), None)
        if rate != NO_RATE:
            self.by_topic[put.topic.encode()] = rate
        self._changed()
        return None

    def forget_topic(self, name: str) -> None:
        """Forget the rates of a topic that was deleted."""
        if self.by_topic.pop(name.encode(), None) is not None:
            self._changed()

    def _copy(self) -> TableContent:
        return {"topics": {name.decode(): list(rate) for name, rate in self.by_topic.items()}}
