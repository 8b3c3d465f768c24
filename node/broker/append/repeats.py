"""The digests that tell a repeated batch from another one under the same number.

Owns what counts as the same message; must not know producers. A writer that runs again may place
its messages on other queues and make them at another time, and the node sets places and due times:
all of these are left out. What a call asks beside its messages cannot be read from them.
"""

from collections.abc import Iterable
from hashlib import blake2b
from struct import Struct
from typing import Final

from node.broker.records.delayed import HELD_ONLY, joined, split
from node.state.state import COMMAND_TOPIC, INTERNAL_TOPICS
from quorumlog.pb.consumer_pb2 import GroupOffset
from quorumlog.pb.transaction_pb2 import ConsumedOffset
from store import format as fmt
from store.record.edit import layouts, properties_of, start_of

_HEAD: Final = Struct(">iiIII")
_COMMAND_TOPIC: Final = COMMAND_TOPIC.encode()
_REAL_TOPIC: Final = fmt.PROPERTY_REAL_TOPIC.encode()


def asked_digest(*asked: object) -> bytes:
    """Return a digest of what a call asks beside messages: texts, numbers, and lists of them."""
    return blake2b(ascii(asked).encode(), digest_size=16).digest()


def stored_rows(offsets: Iterable[ConsumedOffset | GroupOffset]) -> list[tuple[str, int, int]]:
    """Return what offsets store, in one order; not on which condition."""
    return sorted((row.topic, row.queue_id, row.offset) for row in offsets)


def messages_digest(records: bytes) -> bytes:
    """Return a digest of topics, bodies, flags and properties; commands do not count.

    Raises RecordFormatError.
    """
    digest = blake2b(digest_size=16)
    for layout in layouts(records):
        topic = records[layout.topic_at : layout.topic_hi]
        if topic == _COMMAND_TOPIC:
            continue
        kept, held = split(properties_of(records, layout), HELD_ONLY)
        at = start_of(layout) + fmt.QUEUE_ID_AT + fmt.INT32.size
        flag = fmt.INT32.unpack_from(records, at)[0]
        sys_flag = layout.sys_flag & ~fmt.SYS_FLAG_ANY_V6
        if topic.decode() in INTERNAL_TOPICS:  # The node holds it; elsewhere a client wrote this.
            topic = held.get(_REAL_TOPIC, topic)
        parts = topic, records[layout.body_at : layout.body_hi], joined(kept)
        digest.update(_HEAD.pack(flag, sys_flag, *map(len, parts)))
        for part in parts:
            digest.update(part)
    return digest.digest()
