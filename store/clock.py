"""The time of day, for everything in the store that writes or compares one."""

import time


def unix_ms() -> int:
    """Return the time of day of this machine, in Unix ms."""
    return time.time_ns() // 1_000_000
