"""Moves messages that a group was given too often to its dead letters.

Owns that move; must not know when a message is dead. The record of the dead letter and the command
that takes the message out of flight share one entry, so there is never one without the other.
"""

from collections.abc import Sequence
from typing import Final

from node.broker.pop.shared import PopShared
from node.broker.records.delayed import split_records
from node.broker.records.retry import dead_letter
from node.state.state import PERMISSION_ALL
from node.state.tables.pop import InFlightMessage, WindowKey
from quorumlog.pb.pop_pb2 import PopSettle
from quorumlog.pb.state_pb2 import Command
from store.derived.queues.pull import PullStatus
from store.errors import StoreError
from store.record.topic_names import dead_letter_topic

_COUNT_MAX: Final = 64
"""Messages of one entry."""
_SIZE_BYTES_MAX: Final = 1024 * 1024


class PopDeadLetters:
    """Moves messages to the dead letters. One per broker."""

    def __init__(self, shared: PopShared) -> None:
        self._shared: Final = shared
        # The rest is for the commands: some 20 bytes a message.
        room = shared.own_appends.entry_size_bytes_max * 3 // 4
        self._size_bytes_max = min(_SIZE_BYTES_MAX, room)
        self.dead_total = 0

    async def move(self, key: WindowKey, messages: Sequence[tuple[int, InFlightMessage]]) -> int:
        """Move the first of these messages of one window; return how many.

        The caller sees to it that nothing else happens to them. A message that has expired from the
        log is only taken out of flight; one that cannot be read stays in flight, and the others do
        not wait for it. Raises the errors of `OwnAppends.write`, and StoreError if none can be
        read.
        """
        shared, (group, topic, queue_id) = self._shared, key
        settle = PopSettle(group=group, topic=topic)
        parts: list[bytes] = []
        size_bytes = 0
        unreadable: StoreError | None = None
        for offset, item in messages[:_COUNT_MAX]:
            try:
                pulled = shared.taking.read(key, offset, 1)
            except StoreError as error:
                unreadable = error
                shared.context.note_damage(error)
                continue
            if pulled.status is PullStatus.FOUND:
                record = dead_letter(next(split_records(pulled.data)), group)
                size_bytes += len(record)
                if parts and size_bytes > self._size_bytes_max:
                    break
                parts.append(record)
            settle.queue_ids.append(queue_id)
            settle.offsets.append(offset)
            settle.generations.append(item.generation)
        if unreadable is not None and not settle.offsets:
            raise unreadable
        commands = [Command(pop_settle=settle)]
        name = dead_letter_topic(group)
        if parts and name not in shared.context.state.topics:
            put = Command.PutTopic(topic=name, queue_count=1, permission=PERMISSION_ALL)
            commands.insert(0, Command(put_topic=put))
        await shared.own_appends.write(b"".join(parts), commands)
        self.dead_total += len(parts)
        return len(settle.offsets)
