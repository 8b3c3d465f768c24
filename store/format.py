"""Names and bytes of everything on disk, and nothing else.

Owns the layout constants; must not know how they are read or written. All integers are big-endian
and signed unless said otherwise. Sources: storage-formats 1.2 to 1.7, 2.1, 3.1, 4.1, 7.1, 7.2.
Formats change only by adding.
"""

import struct
from typing import Final

Host = tuple[str, int]  # IPv4 or IPv6 literal, port.
LOOPBACK: Final[Host] = ("127.0.0.1", 0)

FILE_NAME_DIGITS: Final = 20  # Every rolling file is named by its first byte's position.
PAGE_SIZE_BYTES: Final = 4096  # RocketMQ counts "least pages" in these, whatever the machine has.

# --- Message record (1.2) ----------------------------------------------------------------------
MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB  # Same, but the topic length has two bytes.
MAGIC_BLANK: Final = 0xCBD43194
BLANK_SIZE_BYTES_MIN: Final = 8  # Stays free after each append, so that a blank always fits.
BLANK: Final = struct.Struct(">iI")  # Size of the remainder, MAGIC_BLANK.

RECORD_SIZE_BYTES_MIN: Final = 91  # V1, IPv4, empty body, topic and properties.
BODY_CRC_AT: Final = 8
QUEUE_ID_AT: Final = 12
QUEUE_OFFSET_AT: Final = 20
PHYSICAL_OFFSET_AT: Final = 28
SYS_FLAG_AT: Final = 36
BORN_HOST_AT: Final = 48
STORE_TIMESTAMP_AT: Final = 56  # With an IPv4 born host; 12 more with IPv6.
STORE_HOST_AT: Final = 64
BODY_LENGTH_AT: Final = 84
BODY_AT: Final = 88
HOST_V4_SIZE_BYTES: Final = 8
HOST_V6_SIZE_BYTES: Final = 20
HOST_V6_EXTRA_BYTES: Final = HOST_V6_SIZE_BYTES - HOST_V4_SIZE_BYTES

# Fixed part of an IPv4 record as the hot path reads it: size, magic, body crc, queue id,
# (flag, queue offset, physical offset skipped,) sys flag, (times and hosts skipped,) body length.
RECORD_HEAD: Final = struct.Struct(">iIIi20xi44xi")
OFFSETS: Final = struct.Struct(">qq")  # Queue offset, physical offset: adjacent in the record.
TIMESTAMP: Final = struct.Struct(">q")
INT32: Final = struct.Struct(">i")
INT16: Final = struct.Struct(">h")

SYS_FLAG_COMPRESSED: Final = 0x1
SYS_FLAG_TRANSACTION_MASK: Final = 0xC
TRANSACTION_NONE: Final = 0x0
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
SYS_FLAG_BORN_HOST_V6: Final = 0x10
SYS_FLAG_STORE_HOST_V6: Final = 0x20
SYS_FLAG_ANY_V6: Final = SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6
SYS_FLAG_NEED_UNWRAP: Final = 0x40  # The body is messages back to back (1.11).
SYS_FLAG_INNER_BATCH: Final = 0x80  # And the record counts as all of them in its queue.

CRC_MASK: Final = 0x7FFFFFFF  # RocketMQ stores CRCs as non-negative Java ints.
NAME_VALUE_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"
PROPERTY_KEYS: Final = "KEYS"
PROPERTY_TAGS: Final = "TAGS"
PROPERTY_UNIQUE_KEY: Final = "UNIQ_KEY"
PROPERTY_WAIT: Final = "WAIT"
PROPERTY_CRC: Final = "__CRC32#"
PROPERTY_INNER_NUM: Final = "INNER_NUM"  # Of an inner batch: how many messages it has,
PROPERTY_INNER_BASE: Final = "INNER_BASE"  # and the queue offset of the first.
# Delayed messages (8.5, 8.6): where they are held, and what they carry there.
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"  # One queue a level, which counts from 1.
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"  # Any time.
COMMAND_TOPIC: Final = "rmq_sys_quorumlog"  # Ours: all commands, in queue 0.
AUDIT_TOPIC: Final = "rmq_sys_audit"  # Ours: administration and refusals, in queue 0.
UNDELIVERABLE_TOPIC: Final = "rmq_sys_undeliverable"  # Ours: their own topic takes no messages.
PROPERTY_DELAY_LEVEL: Final = "DELAY"
PROPERTY_REAL_TOPIC: Final = "REAL_TOPIC"
PROPERTY_REAL_QUEUE_ID: Final = "REAL_QID"
PROPERTY_DELAY_SECONDS: Final = "TIMER_DELAY_SEC"
PROPERTY_DELAY_MS: Final = "TIMER_DELAY_MS"
PROPERTY_DELIVER_MS: Final = "TIMER_DELIVER_MS"
PROPERTY_DUE_MS: Final = "TIMER_OUT_MS"  # When the broker is to deliver, in Unix ms.
# The property CRC area (1.7): name, 0x01, ten digits with the least significant first, 0x02.
PROPERTY_CRC_PREFIX: Final = b"__CRC32#\x01"
PROPERTY_CRC_SIZE_BYTES: Final = 20
PROPERTY_CRC_PLACEHOLDER: Final = PROPERTY_CRC_PREFIX + b"0" * 10 + b"\x02"

PROPERTIES_SIZE_BYTES_MAX: Final = 32767  # The length field is a signed i2.
TOPIC_SIZE_CHARACTERS_MAX: Final = 127  # Largest number in one signed byte (V1).
TOPIC_SIZE_CHARACTERS_HARD_MAX: Final = 255  # Retry and dead-letter topics, stored as V2.
RETRY_TOPIC_PREFIX: Final = "%RETRY%"
DEAD_LETTER_TOPIC_PREFIX: Final = "%DLQ%"
IMPORT_GROUP_PREFIX: Final = "CID_RMQ_SYS_IMPORT_"
"""Of the groups whose offsets are those of queues of a source; RocketMQ's own groups begin so."""
RECORD_OVERHEAD_BYTES_MAX: Final = 65536  # A record may exceed the body limit by this much (1.5).
# Transactions (8.8): half messages, those that are done, those that were given up without an end.
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
HALF_DONE_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
HALF_GIVEN_UP_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
PROPERTY_HALF: Final = "TRAN_MSG"
PROPERTY_PRODUCER_GROUP: Final = "PGROUP"
PROPERTY_TRANSACTION_ID: Final = "__transactionId__"

# --- Consume queue (2.1) -----------------------------------------------------------------------
CONSUME_QUEUE_UNIT: Final = struct.Struct(">qiq")  # Log position, size, tags code.
CONSUME_QUEUE_UNIT_SIZE_BYTES: Final = 20
CONSUME_QUEUE_FILLER_SIZE: Final = 0x7FFFFFFF

# --- Index file (3.1) --------------------------------------------------------------------------
INDEX_HEADER: Final = struct.Struct(">qqqqii")  # begin/end time, begin/end position, slots, count.
INDEX_HEADER_SIZE_BYTES: Final = 40
INDEX_SLOT_SIZE_BYTES: Final = 4
INDEX_ENTRY: Final = struct.Struct(">iqii")  # Key hash, log position, seconds, previous entry.
INDEX_ENTRY_SIZE_BYTES: Final = 20
INDEX_FILE_NAME_DIGITS: Final = 17  # Local time yyyyMMddHHmmssSSS.

# --- Checkpoint (4.1) --------------------------------------------------------------------------
CHECKPOINT: Final = struct.Struct(">qqqqq")
CHECKPOINT_SIZE_BYTES: Final = 4096

# --- Ledger entry (7.1) and index unit (7.2) ---------------------------------------------------
ENTRY_MAGIC: Final = 1
ENTRY_MAGIC_BLANK: Final = -1
# magic, size, index, term, position, channel (kind), chain CRC, body CRC, body size.
ENTRY_HEADER: Final = struct.Struct(">iiqqqiIIi")
ENTRY_HEADER_SIZE_BYTES: Final = 48
ENTRY_CHAIN_CRC_AT: Final = 36
ENTRY_SIZE_BYTES_MAX: Final = 4 * 1024 * 1024  # DLedger's entry buffer, header included.
ENTRY_BLANK: Final = struct.Struct(">ii")  # -1, size of the remainder.
INDEX_UNIT: Final = struct.Struct(">iqiqq")  # magic, position, size, index, term.
INDEX_UNIT_SIZE_BYTES: Final = 32

assert RECORD_HEAD.size == BODY_AT
assert BLANK.size == BLANK_SIZE_BYTES_MIN == ENTRY_BLANK.size
assert CONSUME_QUEUE_UNIT.size == CONSUME_QUEUE_UNIT_SIZE_BYTES
assert INDEX_HEADER.size == INDEX_HEADER_SIZE_BYTES
assert INDEX_ENTRY.size == INDEX_ENTRY_SIZE_BYTES
assert ENTRY_HEADER.size == ENTRY_HEADER_SIZE_BYTES
assert INDEX_UNIT.size == INDEX_UNIT_SIZE_BYTES
assert len(PROPERTY_CRC_PLACEHOLDER) == PROPERTY_CRC_SIZE_BYTES


def is_file_name(name: str) -> bool:
    """Whether a name is that of a rolling file."""
    return len(name) == FILE_NAME_DIGITS and name.isdecimal()


def file_name(position: int) -> str:
    """Return the name of the rolling file whose first byte is at `position`."""
    assert position >= 0, f"position {position}"
    return f"{position:0{FILE_NAME_DIGITS}d}"
