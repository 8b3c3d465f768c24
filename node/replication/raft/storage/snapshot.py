"""A snapshot: replaces, for a follower, entries that its leader has deleted.

Owns its content, its bytes and how it is built from a store; must not know how it travels or when
one is sent. It holds no log: it says where the log of the sender begins (or may begin), so that the
follower begins at the same byte and gets everything behind by ordinary appends. So all replicas
keep the same records. Its state may be newer than that beginning: commands that the state has seen
are skipped.

Bytes: `QLSNAP1\\n`, u32 size of the header, header (JSON), state, CRC-32C of all before it.
"""

import json
import struct
from typing import Final, NamedTuple

from node.errors.common import NodeError
from node.replication.raft.storage.hard_state import configuration_json, configuration_of
from quorumlog.foreign_json import read_json
from raft.messages import Index, SnapshotMeta
from store.errors import PositionRangeError
from store.files.checksum import crc32c
from store.record.stamp import QueueKey
from store.replicated.ledger_store import ReplicaStore

_MAGIC: Final = b"QLSNAP1\n"
_U32: Final = struct.Struct(">I")
_HEADER_AT: Final = len(_MAGIC) + _U32.size


class SnapshotFormatError(NodeError):
    """Bytes that claim to be a snapshot are not one. Nothing was changed."""

    code, status = "node.snapshot_format", "DATA_LOSS"
    text = "a received snapshot is refused: {problem}; fetch it again"
    problem: str


class Snapshot(NamedTuple):
    """The log begins behind entry `meta.index`, which ended at `end_position`.

    `next_offsets` are those of all queues there, and `state` is the state machine's after entry
    `state_index`, which is `meta.index` or later.
    """

    meta: SnapshotMeta
    end_position: int
    chain_crc: int
    next_offsets: dict[QueueKey, int]
    state_index: Index
    state: bytes


def build_snapshot(
    store: ReplicaStore, meta: SnapshotMeta, state: bytes, state_index: Index
) -> Snapshot:
    """Return a snapshot at `meta.index`, which readers here have seen. Any thread, but not beside
    retention.

    Raises PositionRangeError when the log no longer reaches back to it, CorruptionError.
    """
    ledger, index = store.ledger, meta.index
    assert index <= state_index, f"state of {state_index} for a snapshot at {index}"
    if not ledger.first_index - 1 <= index <= store.dispatched_index:
        lo, hi = ledger.first_index - 1, store.dispatched_index + 1
        raise PositionRangeError("snapshot index", index, lo, hi)
    last, end_position = ledger.tail_at(index)
    next_offsets = store.next_offsets_at(end_position)
    if ledger.first_index - 1 > index:  # Deleted meanwhile: offsets were counted from there.
        raise PositionRangeError("snapshot index", index, ledger.first_index - 1, index)
    return Snapshot(meta, end_position, last.chain_crc, next_offsets, state_index, state)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Return the bytes of a snapshot."""
    meta, end_position, chain_crc, next_offsets, state_index, state = snapshot
    header = json.dumps(
        {
            "index": meta.index,
            "term": meta.term,
            "configuration": configuration_json(meta.configuration_at),
            "end_position": end_position,
            "chain_crc": chain_crc,
            "next_offsets": sorted([t.decode(), i, o] for (t, i), o in next_offsets.items()),
            "state_index": state_index,
        }
    ).encode()
    content = b"".join((_MAGIC, _U32.pack(len(header)), header, state))
    return content + _U32.pack(crc32c(content))


def is_checksum_right(data: bytes) -> bool:
    """Whether the last bytes of a snapshot are the checksum of the others."""
    return data[-_U32.size :] == _U32.pack(crc32c(data[: -_U32.size]))


def decode_snapshot(data: bytes) -> Snapshot:
    """Return the snapshot of these bytes. Raises SnapshotFormatError."""
    if len(data) < _HEADER_AT + _U32.size or not data.startswith(_MAGIC):
        raise SnapshotFormatError("it does not begin like a snapshot")
    hi = len(data) - _U32.size
    if not is_checksum_right(data):
        raise SnapshotFormatError("its checksum is wrong")
    header_hi = _HEADER_AT + _U32.unpack_from(data, len(_MAGIC))[0]
    try:
        header = read_json(data[_HEADER_AT:header_hi])
        index, term = int(header["index"]), int(header["term"])
        meta = SnapshotMeta(index, term, configuration_of(header["configuration"]))
        end_position, chain_crc = int(header["end_position"]), int(header["chain_crc"])
        rows = header["next_offsets"]
        next_offsets = {(str(topic).encode("ascii"), int(i)): int(o) for topic, i, o in rows}
        state_index = int(header["state_index"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:  # 1e999 is no integer.
        raise SnapshotFormatError(f"its header: {error!r}") from error
    if header_hi > hi or index < 0 or state_index < index or meta.configuration_at.index > index:
        raise SnapshotFormatError("its numbers do not fit each other")
    state = data[header_hi:hi]
    return Snapshot(meta, end_position, chain_crc, next_offsets, state_index, state)
