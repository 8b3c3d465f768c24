"""The last hour of a node as a few numbers every ten seconds, for people without Prometheus.

Owns the samples and their bounds; must not know how the numbers come about. The leader has the lag
of consumer groups in it, for the groups that have series of their own.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple

from store.stats import LatencyStats

INTERVAL_S: Final = 10.0
COUNT_MAX: Final = 360
LAG_EVERY: Final = 3
"""Lags are read with every third sample: they cost the most."""
GROUP_COUNT_MAX: Final = 200


class Facts(NamedTuple):
    """The numbers of a node as of now; counters since its process began."""

    in_messages: int
    in_size_bytes: int
    out_messages: int
    out_size_bytes: int
    appends: LatencyStats
    """Of the appends that this node led."""
    disk_used_ratio: float


class Sample(NamedTuple):
    """One sample: what was counted since the one before, and what is."""

    unix_ms: int
    duration_ms: int
    in_messages: int
    in_size_bytes: int
    out_messages: int
    out_size_bytes: int
    append_p50_us: int
    """0: no append was answered meanwhile."""
    append_p99_us: int
    disk_used_ratio: float


class LagSample(NamedTuple):
    """The lag of one group over all topics."""

    unix_ms: int
    message_count: int
    age_ms: int
    """Of the oldest message that is not consumed."""


class History:
    """Takes the samples until stopped. Runs on the loop's thread."""

    def __init__(
        self,
        facts: Callable[[], Facts],
        lags: Callable[[], Awaitable[Mapping[str, tuple[int, float]]]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`lags` returns messages and seconds by group; empty where another node leads. `spawn`
        runs what waits for it."""
        self._facts, self._lags, self._spawn, self._now_s = facts, lags, spawn, now_s
        self.samples: Final = deque[Sample](maxlen=COUNT_MAX)
        self.groups: Final[dict[str, deque[LagSample]]] = {}
        self._last, self._last_s = facts(), now_s()
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Take a sample every ten seconds from now on."""
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._on_time)

    def stop(self) -> None:
        """Take no more samples."""
        if self._timer is not None:
            self._timer.cancel()

    def _on_time(self) -> None:
        self.start()
        self.take()

    def take(self) -> None:
        """Take a sample now."""
        now_s, facts, last = self._now_s(), self._facts(), self._last
        counts = [
            new - old for new, old in zip(facts.appends.counts, last.appends.counts, strict=True)
        ]
        self.samples.append(
            Sample(
                int(now_s * 1000),
                max(1, int((now_s - self._last_s) * 1000)),
                facts.in_messages - last.in_messages,
                facts.in_size_bytes - last.in_size_bytes,
                facts.out_messages - last.out_messages,
                facts.out_size_bytes - last.out_size_bytes,
                quantile_us(counts, 0.5),
                quantile_us(counts, 0.99),
                facts.disk_used_ratio,
            )
        )
        self._last, self._last_s = facts, now_s
        if self._count % LAG_EVERY == 0:
            self._spawn(self._take_lags(int(now_s * 1000)))
        self._count += 1

    async def _take_lags(self, unix_ms: int) -> None:
        lags = await self._lags()
        for group in [name for name in self.groups if name not in lags]:
            del self.groups[group]  # It is gone, or another node leads.
        for group, (count, age_s) in list(lags.items())[:GROUP_COUNT_MAX]:
            kept = self.groups.setdefault(group, deque(maxlen=COUNT_MAX // LAG_EVERY))
            kept.append(LagSample(unix_ms, count, int(age_s * 1000)))


def quantile_us(counts: list[int], share: float) -> int:
    """Return the time that a share of durations stays below, in us: the end of their bucket, where
    bucket k holds [2**(k-1), 2**k) us; 0: there are none."""
    left = share * sum(counts)
    for bucket, count in enumerate(counts):
        left -= count
        if left <= 0 and count:
            return 1 << bucket
    return 0
