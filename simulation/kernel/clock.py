"""The clocks of a machine: each drifts in its own way, and the time of day may jump.

Owns the way from the time of the world to that of a machine and back.
"""

from typing import Final

from simulation.kernel.hub import Hub

UNIX_NS: Final = 1_800_000_000_000_000_000
"""The time of day at which each world begins."""
_MILLION: Final = 1_000_000
_BOOT_NS: Final = 1_000_000_000
"""What the monotonic clock has counted, at least, when the first process starts."""


class MachineClock:
    """Clocks of one machine: monotonic since its power came on, and the time of day."""

    def __init__(self, hub: Hub, *, drift_ppm: int = 0, unix_offset_ns: int = 0) -> None:
        """`drift_ppm`: how much faster than the world's it goes, in millionths."""
        self._hub = hub
        self._rate = _MILLION + drift_ppm
        self._start_ns = _BOOT_NS + hub.random.randrange(10**12)
        self._anchor_ns, self._base_ns = hub.now_ns, self._start_ns
        self.unix_offset_ns = unix_offset_ns

    def monotonic_ns(self) -> int:
        """Return the monotonic time of this machine."""
        return self._base_ns + (self._hub.now_ns - self._anchor_ns) * self._rate // _MILLION

    def unix_ns(self) -> int:
        """Return the time of day of this machine."""
        return UNIX_NS + self.unix_offset_ns + self.monotonic_ns() - self._start_ns

    def world_ns(self, monotonic_ns: int) -> int:
        """Return the first time of the world at which `monotonic_ns` is reached."""
        passed_ns = monotonic_ns - self._base_ns
        return self._anchor_ns + -(-passed_ns * _MILLION // self._rate)

    def set_drift(self, drift_ppm: int) -> None:
        """Go faster or slower from now on. Timers that are set keep the time of the world."""
        self._base_ns, self._anchor_ns = self.monotonic_ns(), self._hub.now_ns
        self._rate = _MILLION + drift_ppm

    def restart(self) -> None:
        """Begin again, as with a boot: the time of day continues, on a battery."""
        unix_ns = self.unix_ns()
        self._start_ns = self._base_ns = _BOOT_NS + self._hub.random.randrange(_BOOT_NS)
        self._anchor_ns = self._hub.now_ns
        self.unix_offset_ns = unix_ns - UNIX_NS

    def jump(self, by_ns: int) -> None:
        """Move the time of day, as an operator or a time service does."""
        self.unix_offset_ns += by_ns
