"""Commands as message records: how they are written into a batch, and found again in the queue.

Owns the bytes of a record of the system topic; must not know what commands mean. One such record is
part of every idempotent batch, so encoding is one `pack` into a prepared frame.
"""

import struct
import time
import zlib
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
_crc32: Final = zlib.crc32
_V6_FLAGS_AT: Final = fmt.SYS_FLAG_AT + 3


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
        self._batch_command = Command(producer_batch=Command.ProducerBatch())
        """Filled again for each batch: making one takes longer than all else here."""
        self._batch_frames: dict[int, struct.Struct] = {}
        """Layouts of whole records by size of the body, which takes few values."""

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
        self,
        producer_id: int,
        sequence: int,
        record_count: int,
        size_bytes: int = 0,
        asked: bytes = b"",
    ) -> bytes:
        """Return the record that makes the batch before it idempotent.

        `size_bytes` of that batch is for logs that do not know where a batch begins. `asked` is a
        digest of what its call asked beside the messages.
        """
        batch = self._batch_command.producer_batch
        batch.producer_id, batch.sequence = producer_id, sequence
        batch.record_count, batch.size_bytes, batch.asked = record_count, size_bytes, asked
        body = self._batch_command.SerializeToString()
        body_size_bytes = len(body)
        frames = self._batch_frames
        if body_size_bytes not in frames:
            self._add_frame(body_size_bytes)
        return frames[body_size_bytes].pack(
            self._frame_size_bytes + body_size_bytes,
            fmt.MAGIC_V1,
            _crc32(body) & fmt.CRC_MASK,
            _QUEUE_ID,
            0,
            0,
            0,
            self._sys_flag,
            time.time_ns() // 1_000_000,
            self._hosts,
            body_size_bytes,
            body,
            self._tail,
        )

    def _add_frame(self, body_size_bytes: int) -> None:
        hosts, tail = len(self._hosts), len(self._tail)
        frame = struct.Struct(f"{_HEAD.format}{hosts}si{body_size_bytes}s{tail}s")
        self._batch_frames[body_size_bytes] = frame


def commands_in(data: bytes) -> Iterator[tuple[int, Command]]:
    """Yield (log position, command) of the records that lie back to back in `data`."""
    at = 0
    while at < len(data):
        size_bytes = fmt.INT32.unpack_from(data, at)[0]
        position = fmt.TIMESTAMP.unpack_from(data, at + fmt.PHYSICAL_OFFSET_AT)[0]
        yield position, command_of(data[at : at + size_bytes])
        at += size_bytes


def command_of(record: bytes) -> Command:
    """Return the command in a whole record that was checked."""
    if record[_V6_FLAGS_AT] & fmt.SYS_FLAG_ANY_V6:
        layout = record_layout(memoryview(record), 0)
        return Command.FromString(record[layout.body_at : layout.body_hi])
    body_size_bytes = fmt.INT32.unpack_from(record, fmt.BODY_LENGTH_AT)[0]
    return Command.FromString(record[fmt.BODY_AT : fmt.BODY_AT + body_size_bytes])


def _check_room() -> None:
    """Assert that a batch leaves room for the largest record that names a producer."""
    largest = CommandEncoder(("::1", 65_535)).encode_producer_batch(
        2**64 - 1, 2**64 - 1, 2**32 - 1, 2**32 - 1, bytes(16)
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
