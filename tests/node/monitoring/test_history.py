"""The last hour: what was counted between two samples, and the lag of groups, bounded."""

import asyncio
from itertools import count

from node.monitoring.history import COUNT_MAX, LAG_EVERY, Facts, History, LagSample, quantile_us
from store.stats import Latencies


def test_samples_are_differences_and_only_an_hour_is_kept() -> None:
    times, appends, lags = count(1_000, 10), Latencies(), {"g": (5, 2.5)}
    numbers = count()

    def facts() -> Facts:
        n = next(numbers)
        appends.note(900)
        return Facts(7 * n, 70 * n, 3 * n, 30 * n, appends.snapshot(), 0.5)

    async def now() -> dict[str, tuple[int, float]]:
        return lags

    history = History(facts, now, asyncio.run, lambda: float(next(times)))
    for _ in range(COUNT_MAX + 2):
        history.take()
    assert len(history.samples) == COUNT_MAX
    last = history.samples[-1]
    assert last[1:] == (10_000, 7, 70, 3, 30, 1_024, 1_024, 0.5)
    assert len(history.groups["g"]) == COUNT_MAX // LAG_EVERY
    assert history.groups["g"][-1][1:] == LagSample(0, 5, 2_500)[1:]
    lags.clear()
    for _ in range(LAG_EVERY):
        history.take()
    assert history.groups == {}


def test_quantiles_of_buckets() -> None:
    assert quantile_us([0, 98, 1, 1], 0.5) == 2
    assert quantile_us([0, 98, 1, 1], 0.99) == 4
    assert quantile_us([0, 98, 1, 1], 1.0) == 8
    assert quantile_us([0, 0], 0.5) == 0
