"""The time of day, for everything in a node that writes or compares one."""

import time


def unix_ms() -> int:
    """Return the time of day of this machine, in Unix ms.

    Replicas of the name server compare it, so clocks should agree within seconds.
    """
    return time.time_ns() // 1_000_000
