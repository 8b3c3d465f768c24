"""Stored batches of a plain log: the command record at the end says where its batch begins.

Owns that one look-up. Source of the size: `Command.ProducerBatch.size_bytes`.
"""

from __future__ import annotations

from node.replication.ha.storage.log import HaLog
from node.state.command_records import StoredBatch, commands_in
from store import format as fmt
from store.errors import CorruptionError


class PlainBatches:
    """`node.broker.core.batches.Batches` over the log of a master-slave replica."""

    def __init__(self, log: HaLog) -> None:
        self._log = log

    def batch_of(self, position: int) -> StoredBatch:
        """Return the batch whose command record is at `position`; see `Batches.batch_of`."""
        log = self._log.store.log
        size_bytes: int = fmt.INT32.unpack(log.read(position, fmt.INT32.size))[0]
        data = log.read(position, size_bytes)
        log.check(position, data)
        ((_, command),) = commands_in(data)
        first = position - command.producer_batch.size_bytes
        records = log.read(first, position + size_bytes - first)
        log.check(first, records)
        if not command.producer_batch.size_bytes:
            raise CorruptionError("the log", position, "size of a batch", "more than 0", "0")
        end = position + size_bytes
        return StoredBatch(end - 1, self._log.epoch_at(first).number, first, records)
