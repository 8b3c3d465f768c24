"""Pages of the HTTP port under a flood of requests: one is made for all, none is old."""

import asyncio
from collections.abc import Iterator
from itertools import count

import pytest

from node.monitoring.shared_page import PAUSE_FACTOR, PAUSE_S_MAX, SharedPage


class Costs:
    """A clock of the processor by which each page takes the same time."""

    def __init__(self, cost_s: float) -> None:
        self._readings: Iterator[int] = count()
        self._cost_s = cost_s

    def __call__(self) -> float:
        reading = next(self._readings)
        return (reading + 1) // 2 * self._cost_s


def numbered(cost_s: float = 0.0) -> SharedPage:
    """A page that says how many were made."""
    numbers = count(1)
    return SharedPage(lambda: b"%d" % next(numbers), Costs(cost_s))


async def test_all_requests_of_a_moment_share_one_page() -> None:
    page = numbered()
    assert await asyncio.gather(*(page.get() for _ in range(100))) == [b"1"] * 100
    assert page.made_count == 1


async def test_a_page_is_no_older_than_its_request() -> None:
    page = numbered(0.002)
    for number in range(1, 5):
        assert await page.get() == b"%d" % number


@pytest.mark.parametrize(("cost_s", "pause_s"), [(0.002, PAUSE_FACTOR * 0.002), (1.0, PAUSE_S_MAX)])
async def test_the_next_page_waits_for_nine_times_the_cost(cost_s: float, pause_s: float) -> None:
    page, loop = numbered(cost_s), asyncio.get_running_loop()
    began_s = loop.time()
    await page.get()
    first = asyncio.create_task(page.get())
    assert await page.get() == await first == b"2"
    assert loop.time() - began_s > pause_s - 0.005, "the loop rounds the time of a timer"


async def test_a_request_that_is_given_up_takes_the_page_from_no_other() -> None:
    page = numbered(0.01)
    await page.get()
    gone, waiting = (asyncio.create_task(page.get()) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    assert await waiting == b"2"


async def test_a_page_that_cannot_be_made_fails_its_requests_and_no_later_one() -> None:
    outcomes: Iterator[bytes] = iter([b"whole"])

    def make() -> bytes:
        if page.made_count == 0 and not failed:
            failed.append(True)
            raise ValueError("no sample")
        return next(outcomes)

    failed = list[bool]()
    page = SharedPage(make)
    errors = await asyncio.gather(page.get(), page.get(), return_exceptions=True)
    assert [type(one) for one in errors] == [ValueError, ValueError]
    assert await page.get() == b"whole"


async def test_a_stopped_page_lets_those_go_who_wait() -> None:
    page = numbered(0.01)
    await page.get()
    waiting = asyncio.create_task(page.get())
    await asyncio.sleep(0)
    page.stop()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert page.made_count == 1


async def test_pages_that_take_turns_of_the_loop_are_made_one_at_a_time() -> None:
    making = list[asyncio.Future[None]]()

    async def make() -> bytes:
        making.append(asyncio.get_running_loop().create_future())
        await making[-1]
        return b"%d" % len(making)

    page = SharedPage(make, Costs(0.0))
    first = asyncio.create_task(page.get())
    for _ in range(3):
        await asyncio.sleep(0)
    later = [asyncio.create_task(page.get()) for _ in range(100)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(making) == 1
    making[0].set_result(None)
    assert await first == b"1"
    for _ in range(3):
        await asyncio.sleep(0)
    page.stop()
    ends = await asyncio.gather(*later, return_exceptions=True)
    assert {type(end) for end in ends} == {asyncio.CancelledError}
    assert (len(making), making[1].cancelled()) == (2, True)
