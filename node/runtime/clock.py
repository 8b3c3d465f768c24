"""The time of day that replicas of the name server compare."""

import time


def unix_ms() -> int:
    """Return the time of day. The replicas compare it, so clocks should agree within seconds."""
    return time.time_ns() // 1_000_000
