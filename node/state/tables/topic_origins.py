"""The origins of recreated topics: the log position behind which each of them begins.

Owns the positions. Records of a deleted topic stay in the log until they expire, and queues and key
index find them by the name of the topic. A topic that is created under such a name has only the
records behind its origin. A topic without an origin has all records of its name. So has a
dead-letter topic here, which comes in one entry with its first records: `dead_letters` knows where
it begins, and `Context.origin` asks both.
"""

from node.config.limits import Limits
from node.state.tables.table import Table, TableContent, TableImage


class TopicOriginsTable(Table):
    """Name of a recreated topic to the log position of the command that created it. It has no
    commands: `State` notes what its own create, and deletes the topics of a group."""

    name, file_name = "topic_origins", "topicOrigins.json"

    def __init__(self, limits: Limits, image: TableImage) -> None:
        super().__init__(limits, image)
        (table,) = self._parts(image, positions={})
        self._positions: dict[str, int] = {str(name): int(at) for name, at in table.items()}

    def origin(self, topic: str) -> int:
        """Return the log position before which records of this name are those of a deleted topic.

        0 for a topic without an origin.
        """
        return self._positions.get(topic, 0)

    @property
    def count(self) -> int:
        """Count of the topics that have an origin."""
        return len(self._positions)

    def note(self, topic: str, position: int) -> None:
        """Note that the command at a log position recreated a topic."""
        self._positions[topic] = position
        self._changed()

    def forget_topic(self, name: str) -> None:
        """Forget the origin of a topic that was deleted."""
        if self._positions.pop(name, None) is not None:
            self._changed()

    def _copy(self) -> TableContent:
        return {"positions": dict(self._positions)}
