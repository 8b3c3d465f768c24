"""Commands as message records: how they are written into a batch, and found again in the queue.

Owns the bytes of a record of the system topic; must not know what commands mean. One such record is
part of every idempotent batch, so encoding is one `pack` into a prepared frame.
"""

import struct
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from node.config.limits import COMMAND_SIZE_BYTES_MAX
from node.state.state import COMMAND_TOPIC
from quorumlog.pb.state_pb2 import Command
from raft.messages import Index, Term
from store import format as fmt
from store.files.checksum import body_crc
from store.format import LOOPBACK, Host
from store.record.message import encode_host, encode_message, record_layout

# Size, magic, body CRC, (queue id, flag, offset, position,) sys flag, born time; then hosts.
_HEAD: Final = struct.Struct(">iIIiiqqiq")
_QUEUE_ID: Final = 0


class CommandEncoder:
    """Encodes records for one store, whose host has one address family."""

    def __init__(self, store_host: Host) -> None:
        empty = encode_message(COMMAND_TOPIC, _QUEUE_ID, b"", store_host=store_host)
        born, stored = encode_host(LOOPBACK), encode_host(store_host)
        hosts_at = _HEAD.size
        hosts_hi = hosts_at + len(born) + 8 + len(stored) + 12
        self._sys_flag = _HEAD.unpack_from(empty)[7]
        self._hosts = empty[hosts_at:hosts_hi]
        self._tail = empty[hosts_hi + 4 :]
        self._frame_size_bytes = len(empty)

    def encode(self, command: Command) -> bytes:
        """Return the record of a command; the store fills in place and store time."""
        body = command.SerializeToString()
        head = _HEAD.pack(
            self._frame_size_bytes + len(body),
            fmt.MAGIC_V1,
            body_crc(body),
            _QUEUE_ID,
            0,
            0,
            0,
            self._sys_flag,
            time.time_ns() // 1_000_000,  # Inlined: once an append.
        )
        return b"".join((head, self._hosts, fmt.INT32.pack(len(body)), body, self._tail))

    def encode_producer_batch(
        self, producer_id: int, sequence: int, record_count: int, size_bytes: int = 0
    ) -> bytes:
        """Return the record that makes the batch before it idempotent.

        `size_bytes` of that batch is for logs that do not know where a batch begins.
        """
        command = Command()
        batch = command.producer_batch
        batch.producer_id = producer_id
        batch.sequence = sequence
        batch.record_count = record_count
        batch.size_bytes = size_bytes
        return self.encode(command)


def commands_in(data: bytes) -> Iterator[tuple[int, Command]]:
    """Yield (log position, command) of the records that lie back to back in `data`."""
    at = 0
    while at < len(data):
        size_bytes = fmt.INT32.unpack_from(data, at)[0]
        position = fmt.TIMESTAMP.unpack_from(data, at + fmt.PHYSICAL_OFFSET_AT)[0]
        if fmt.INT32.unpack_from(data, at + fmt.SYS_FLAG_AT)[0] & fmt.SYS_FLAG_ANY_V6:
            layout = record_layout(memoryview(data), at)
            body_at, body_hi = layout.body_at, layout.body_hi
        else:
            body_at = at + fmt.BODY_AT
            body_hi = body_at + fmt.INT32.unpack_from(data, at + fmt.BODY_LENGTH_AT)[0]
        yield position, Command.FromString(data[body_at:body_hi])
        at += size_bytes


def _check_room() -> None:
    """Assert that a batch leaves room for the largest record that names a producer."""
    largest = CommandEncoder(("::1", 65_535)).encode_producer_batch(
        2**64 - 1, 2**64 - 1, 2**32 - 1, 2**32 - 1
    )
    assert len(largest) <= COMMAND_SIZE_BYTES_MAX, f"{len(largest)} bytes"


_check_room()


class StoredBatch(NamedTuple):
    """A batch as it lies in the log, its command record included."""

    index: Index  # type: ignore[assignment]  # Hides tuple.index, which is not needed here.
    term: Term
    position: int
    """Log position of the first record."""
    records: bytes
