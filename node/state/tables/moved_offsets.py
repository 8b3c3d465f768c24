"""The queues in which a group was moved, and no consumer of it has said yet that it knows.

Owns the marks. A tool moves a group while its consumers are away, paused or connected to any node;
what they store from what they knew before must not undo it. A mark goes with the first offset that
a consumer stores which knows the stored one, and with the group or the topic.
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any, Final

from node.config.limits import Limits
from node.state.tables.table import Table, TableContent, TableImage


class MovedOffsetsTable(Table):
    """Group and topic to queues, in order. It has no commands: `State` notes what its own do. There
    are at most as many marks as stored offsets."""

    name, file_name = "moved_offsets", "movedOffsets.json"

    def __init__(self, limits: Limits, image: TableImage) -> None:
        super().__init__(limits, image)
        groups: Any = image.content.get("groups", {})
        if set(image.content) - {"groups"} or not isinstance(groups, dict):
            raise ValueError(f"moved offsets of an unknown form: {sorted(image.content)}")
        self._groups: Final[dict[str, Any]] = dict(groups)
        """Parts of images: replaced, never changed."""

    def holds(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a group was moved in a queue, and no consumer has said that it knows."""
        marked: list[int] = self._groups.get(group, {}).get(topic, [])
        at = bisect_left(marked, queue_id)
        return marked[at : at + 1] == [queue_id]

    def mark(self, group: str, queues: Iterable[tuple[str, int]]) -> None:
        """Note that a group was moved in queues."""
        topics = self._groups.get(group, {})
        put = {t: sorted(ids.union(topics.get(t, ()))) for t, ids in _by_topic(queues).items()}
        self._put(group, put)

    def settle(self, group: str, queues: Iterable[tuple[str, int]]) -> None:
        """Note that a consumer knows where the group is in queues."""
        topics = self._groups.get(group, {})
        put = {
            topic: [one for one in topics[topic] if one not in queue_ids]
            for topic, queue_ids in (_by_topic(queues) if topics else {}).items()
            if not queue_ids.isdisjoint(topics.get(topic, ()))
        }
        if put:
            self._put(group, put)

    def _put(self, group: str, put: dict[str, list[int]]) -> None:
        topics = self._groups.get(group, {}) | put
        self._groups[group] = {name: ids for name, ids in topics.items() if ids}
        if not self._groups[group]:
            del self._groups[group]
        self._changed()

    def forget_topic(self, name: str) -> None:
        """Forget the marks of a topic that was deleted."""
        for group in [group for group, topics in self._groups.items() if name in topics]:
            self._put(group, {name: []})

    def forget_group(self, name: str) -> None:
        """Forget the marks of a group that was deleted."""
        if self._groups.pop(name, None) is not None:
            self._changed()

    def _copy(self) -> TableContent:
        return {"groups": dict(self._groups)}


def _by_topic(queues: Iterable[tuple[str, int]]) -> dict[str, set[int]]:
    by_topic: dict[str, set[int]] = {}
    for topic, queue_id in queues:
        by_topic.setdefault(topic, set()).add(queue_id)
    return by_topic
