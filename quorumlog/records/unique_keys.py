"""Unique keys of messages, in RocketMQ's form: known before the send, and searchable after it.

Owns the form (storage-formats 1.10): 16 bytes in upper-case hex. Deviation: where RocketMQ has an
address and a hash there are random bytes here, drawn once a process, so that containers with equal
addresses do not share keys.
"""

import itertools
import os
import secrets
import struct
import time
from datetime import UTC, datetime
from typing import Final

PROPERTY: Final = "UNIQ_KEY"
_HEAD: Final = struct.Struct(">4sH4s")
_TAIL: Final = struct.Struct(">IH")


class UniqueKeys:
    """Makes keys that differ from all others, of this process or another."""

    def __init__(self) -> None:
        head = _HEAD.pack(secrets.token_bytes(4), os.getpid() & 0xFFFF, secrets.token_bytes(4))
        self._head = head.hex().upper()
        self._numbers = itertools.count(secrets.randbelow(1 << 16))
        self._month_unix_ms = self._next_month_unix_ms = 0

    def __call__(self) -> str:
        now_ms = time.time_ns() // 1_000_000
        if not self._month_unix_ms <= now_ms < self._next_month_unix_ms:
            self._find_month(now_ms)
        tail = _TAIL.pack((now_ms - self._month_unix_ms) & 0xFFFFFFFF, next(self._numbers) & 0xFFFF)
        return self._head + tail.hex().upper()

    def _find_month(self, now_ms: int) -> None:
        first = datetime.fromtimestamp(now_ms / 1000, UTC).replace(
            day=1, hour=0, minute=0, second=0, microsecond=0
        )
        after = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
        self._month_unix_ms = int(first.timestamp() * 1000)
        self._next_month_unix_ms = int(after.timestamp() * 1000)
