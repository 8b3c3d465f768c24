"""Held messages that were taken: progress of the delivery of delayed messages.

Owns one set of offsets for each queue that holds delayed messages; must not know what is in them,
or when it is due. A message is held from the entry that puts it into such a queue until an entry
that records here that it is taken: delivered, by the same entry, or cancelled. Times decide nothing
here, so neither clocks that differ nor messages that overtake each other lose or double one. In the
checkpoint it is `delayOffset.json`: RocketMQ's table of the levels, and ours beside it.
"""

from collections import OrderedDict
from typing import Any, Final, cast

from node.config.limits import Limits
from node.errors.common import BadRequestError, NodeError
from node.errors.delay import DelayedGoneError
from node.state.tables.offset_set import OffsetSet, decode_runs
from node.state.tables.table import Core, Table, TableContent, TableImage
from quorumlog.pb.state_pb2 import Command
from store.errors import CorruptionError

QUEUE_COUNT: Final = 19
"""Queue 0 holds messages of any time, 1 to 18 those of the levels."""
_FORMAT: Final = 2
_TABLE: Final = "offsetTable"
_OURS: Final = "quorumlog"


class DelayTable(Table):
    """Progress of each queue, and the latest cancels, which may be asked for again. Messages of a
    deleted topic stay: they are undeliverable when they are due."""

    name, file_name, has_integer_keys = "delay", "delayOffset.json", True
    commands = frozenset({"take_delayed", "cancel_delayed"})

    def __init__(self, limits: Limits, image: TableImage) -> None:
        super().__init__(limits, image)
        content: Any = image.content
        if content and content["format"] != _FORMAT:
            found_format = str(content["format"])
            raise CorruptionError("state", 0, "format of delayed", str(_FORMAT), found_format)
        rows = content["queues"] if content else {}
        self.queues: Final = tuple(
            OffsetSet.of(rows[str(queue)]) if str(queue) in rows else OffsetSet()
            for queue in range(QUEUE_COUNT)
        )
        """Offsets that were taken from each queue."""
        self._cancelled: OrderedDict[tuple[int, int], None] = OrderedDict()
        self.undeliverable_count = 0
        """Count of messages taken to rmq_sys_undeliverable."""
        if content:
            self._cancelled.update(((int(q), int(o)), None) for q, o in content["cancelled"])
            self.undeliverable_count = int(content["undeliverable_count"])

    def was_cancelled(self, queue: int, offset: int) -> bool:
        """Whether one of the latest cancels was of this message."""
        return (queue, offset) in self._cancelled

    # --- Commands ---

    def apply(self, _state: Core, command: Command, _position: int) -> NodeError | None:
        """Take the messages that a command names, all or none."""
        if command.WhichOneof("command") == "cancel_delayed":
            return self._cancel(command.cancel_delayed)
        return self._take(command.take_delayed)

    def _take(self, command: Command.TakeDelayed) -> NodeError | None:
        due = []
        for row in command.queues:
            runs = decode_runs(row.runs)
            if row.queue >= QUEUE_COUNT or runs is None:
                return BadRequestError("queues", "offsets of held messages", str(row.queue))
            due.append((row.queue, runs))
        if len({queue for queue, _ in due}) != len(due):
            return BadRequestError("queues", "each once", "one twice")
        for queue, runs in due:
            for lo, hi in runs:
                if self.queues[queue].has_any(lo, hi):
                    return DelayedGoneError(queue, lo)
        for queue, runs in due:
            for lo, hi in runs:
                self.queues[queue].add(lo, hi)
        self.undeliverable_count += command.undeliverable_count
        self.version += 1
        return None

    def _cancel(self, command: Command.CancelDelayed) -> NodeError | None:
        queue, offset = command.queue, command.offset
        if queue >= QUEUE_COUNT or offset < 0:
            return BadRequestError("queue", "one of held messages", str(queue))
        if offset in self.queues[queue]:
            return DelayedGoneError(queue, offset)
        self.queues[queue].add(offset, offset + 1)
        self._cancelled[queue, offset] = None
        if len(self._cancelled) > self._limits.cancelled_delayed_count_max:
            self._cancelled.popitem(last=False)
        self.version += 1
        return None

    # --- Images ---

    def content(self) -> TableContent:
        """Return everything as JSON values that later commands do not change."""
        return {
            "format": _FORMAT,
            "queues": {
                str(queue): gone.content() for queue, gone in enumerate(self.queues) if gone.count
            },
            "cancelled": [[queue, offset] for queue, offset in self._cancelled],
            "undeliverable_count": self.undeliverable_count,
        }

    @staticmethod
    def encode(content: TableContent) -> TableContent:
        """Return the document of `delayOffset.json`."""
        queues = cast(dict[str, Any], content["queues"])
        return {_TABLE: {q: row["floor"] for q, row in queues.items() if q != "0"}, _OURS: content}

    @staticmethod
    def decode(document: TableContent) -> TableContent:
        """Return the content of `delayOffset.json`, ours or RocketMQ's."""
        if _OURS in document:
            return cast(TableContent, document[_OURS])
        table = cast(dict[str, Any], document[_TABLE])
        return {
            "format": _FORMAT,
            "queues": {level: OffsetSet.below(int(n)).content() for level, n in table.items()},
            "cancelled": [],
            "undeliverable_count": 0,
        }
