"""Receives that wait: one line for each group, topic and queue, and for each topic as a whole.

Owns the waiting receives and their order; must not know what there is to take. Something new wakes
one receive of each group, and that one learns which queue to look at. A receive that was woken and
does not go on passes this to the next, so nothing that can be taken is forgotten. Empty lines are
removed: a queue that grows without readers costs one look into a dictionary.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from node.runtime.room import Room
from store.record.stamp import QueueKey

ANY_QUEUE: Final = -1

_GroupReceives = dict[int, dict["asyncio.Future[int | None]", None]]
"""By queue id: the waiting receives, first come first."""


class WaitingReceives:
    """All receives that wait. Belongs to the loop's thread."""

    def __init__(self, count_max: int) -> None:
        self.room: Final = Room("waiting receives", count_max)
        self._by_topic: dict[bytes, dict[str, _GroupReceives]] = {}

    async def wait(self, group: str, topic: str, queue_id: int, timeout_s: float) -> int | None:
        """Wait until a queue may have something; return its id, or None: look at all.

        The caller must not yield to the loop between its last look and this call. Raises BusyError.
        """
        host = self.room.take()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int | None] = loop.create_future()
        name = topic.encode()
        line = self._by_topic.setdefault(name, {}).setdefault(group, {})
        line.setdefault(queue_id, {})[future] = None
        timer = loop.call_later(timeout_s, _wake, future, None)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._leave(name, group, queue_id, future)
                hint = future.result()
                if hint is not None:
                    self.offer(group, topic, hint)
            raise
        finally:
            timer.cancel()
            self.room.give_back(host)
            self._leave(name, group, queue_id, future)

    def _leave(
        self, topic: bytes, group: str, queue_id: int, future: "asyncio.Future[int | None]"
    ) -> None:
        groups = self._by_topic.get(topic, {})
        line = groups.get(group, {})
        waiting = line.get(queue_id, {})
        waiting.pop(future, None)
        if not waiting and line.pop(queue_id, None) is not None and not line:
            del groups[group]
            if not groups:
                del self._by_topic[topic]

    def on_grown(self, queues: Iterable[QueueKey]) -> None:
        """Wake one receive of each group that waits for one of these queues."""
        if self._by_topic:
            for topic, queue_id in queues:
                groups = self._by_topic.get(topic)
                for line in groups.values() if groups else ():
                    _wake_first(line, queue_id)

    def offer(self, group: str, topic: str, queue_id: int) -> None:
        """Wake the first receive of a group that waits for a queue: it may have something now."""
        groups = self._by_topic.get(topic.encode())
        line = groups.get(group) if groups else None
        if line is not None:
            _wake_first(line, queue_id)

    def wake_all(self) -> None:
        """Wake all receives, so that each checks again whether this node may answer."""
        for groups in self._by_topic.values():
            for line in groups.values():
                for waiting in line.values():
                    for future in waiting:
                        _wake(future, None)


def _wake_first(line: _GroupReceives, queue_id: int) -> None:
    for wanted in (queue_id, ANY_QUEUE):
        for future in line.get(wanted, ()):
            if not future.done():
                future.set_result(queue_id)
                return


def _wake(future: "asyncio.Future[int | None]", hint: int | None) -> None:
    if not future.done():
        future.set_result(hint)
