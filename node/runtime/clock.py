"""The time of day as the name server compares it."""

import time


def unix_ms() -> int:
    """Return the time of day: the replicas compare it, so clocks should agree within seconds."""
    return time.time_ns() // 1_000_000
