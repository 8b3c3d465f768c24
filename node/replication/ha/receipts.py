"""The rules of receipts for a plain log that a master ships to slaves.

Owns the promise of a receipt, and the way from a command record to its batch. A plain log does not
know where a batch begins: the command record at its end says so (`Command.ProducerBatch`).
"""

from functools import partial

from node.contract import ReceiptRules
from node.errors.common import NodeError
from node.errors.ha import NotMasterError, StateMissingError
from node.replication.ha.core.types import AckMode
from node.replication.ha.driver import HaDriver
from node.replication.ha.storage.log import HaLog
from node.state.command_records import StoredBatch, commands_in
from quorumlog.pb import common_pb2
from store import format as fmt
from store.errors import CorruptionError


def ha_receipts(driver: HaDriver) -> ReceiptRules:
    """Return the rules for the log of a driver."""

    def durability() -> common_pb2.Durability:
        state = driver.machine.state
        if state.mode is AckMode.ASYNC or state.settings.copies == 1:
            return common_pb2.DURABILITY_LEADER_DISK
        if 2 * state.settings.copies > len(state.settings.replica_ids):
            return common_pb2.DURABILITY_QUORUM_DISK
        return common_pb2.DURABILITY_COPIES_DISK

    def why_not_local() -> NodeError | None:
        return StateMissingError() if driver.applied.is_missing else None

    batch_at = partial(batch_of, driver.log)
    return ReceiptRules(batch_at, durability, NotMasterError, False, why_not_local)


def batch_of(log: HaLog, position: int) -> StoredBatch:
    """Return the batch whose command record is at `position`; see `ReceiptRules.batch_of`."""
    plain = log.store.log
    size_bytes: int = fmt.INT32.unpack(plain.read(position, fmt.INT32.size))[0]
    data = plain.read(position, size_bytes)
    plain.check(position, data)
    ((_, command),) = commands_in(data)
    first = position - command.producer_batch.size_bytes
    records = plain.read(first, position + size_bytes - first)
    plain.check(first, records)
    if not command.producer_batch.size_bytes:
        raise CorruptionError("the log", position, "size of a batch", "more than 0", "0")
    end = position + size_bytes
    return StoredBatch(end - 1, log.epoch_at(first).number, first, records)
