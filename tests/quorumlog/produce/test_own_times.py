"""One send with a time of its own: what it is told, and that others are not harmed by it."""

import asyncio

import pytest

from quorumlog import Producer, errors
from tests.patience import eventually
from tests.quorumlog.fake_cluster import HANG_AFTER, producing

SENDS = {
    "send": lambda producer, ms: producer.send("orders", b"late", queue_id=0, timeout_ms=ms),
    "send_batch": lambda producer, ms: producer.send_batch(
        "orders", [b"late", b"late"], queue_id=0, timeout_ms=ms
    ),
    "send_nowait": lambda producer, ms: producer.send_nowait(
        "orders", b"late", queue_id=0, timeout_ms=ms
    ).receipt(),
}


@pytest.mark.parametrize("way", SENDS)
async def test_what_was_not_sent_within_its_own_time_leaves_and_the_rest_stays_in_order(
    way: str,
) -> None:
    async with producing(1) as (cluster, producer):
        cluster.leader_id = 0
        for body in (b"1", b"2"):
            producer.send_nowait("orders", body, queue_id=0)
        late = asyncio.create_task(SENDS[way](producer, 20))
        await asyncio.sleep(0)
        producer.send_nowait("orders", b"3", queue_id=0)
        with pytest.raises(errors.DeadlineError, match="within 20 ms") as caught:
            await late
        assert caught.value.outcome is errors.Outcome.NOT_APPLIED
        producer.send_nowait("orders", b"unasked", queue_id=0, timeout_ms=1)
        flushing = asyncio.create_task(producer.flush())
        await eventually(lambda: producer.stats().failed_count == (3 if "batch" in way else 2))
        cluster.elect(1)
        with pytest.raises(errors.DeadlineError, match="within 1 ms"):
            await flushing
        assert cluster.bodies() == [b"1", b"2", b"3"]
        assert producer.stats().held_size_bytes == 0


@pytest.mark.parametrize("way", SENDS)
async def test_the_outcome_of_what_was_sent_is_unknown_and_later_messages_are_stored_once(
    way: str,
) -> None:
    async with producing(2) as (cluster, producer):
        await producer.send("orders", b"1", queue_id=0)
        cluster.script.append(HANG_AFTER)
        with pytest.raises(errors.OutcomeUnknownError, match="within 100 ms in 1 attempt;"):
            await SENDS[way](producer, 100)
        later = asyncio.create_task(producer.send("orders", b"2", queue_id=0))
        cluster.elect(2)
        assert (await later).attempts == 1
        assert cluster.bodies() == [b"1", *[b"late"] * (2 if "batch" in way else 1), b"2"]
        await producer.flush()  # The caller has the error.


async def test_a_time_within_that_of_the_producer_is_taken_and_no_other() -> None:
    async with producing(1, timeout_ms=30_000) as (cluster, producer):
        receipt = await producer.send("orders", b"1", key="k", timeout_ms=30_000)
        batch = await producer.send_batch("orders", [b"2", b"3"], timeout_ms=30_000)
        assert [receipt.attempts, *(one.attempts for one in batch)] == [1, 1, 1]
        await _refused(producer, 30_001, "timeout_ms is 30001; use 1 to 30000")
        await _refused(producer, 0, "timeout_ms is 0; use 1 to 30000")
        assert sorted(cluster.bodies()) == [b"1", b"2", b"3"]


async def _refused(producer: Producer, timeout_ms: int, text: str) -> None:
    with pytest.raises(errors.InvalidRequestError, match=text):
        await producer.enqueue("orders", b"x", timeout_ms=timeout_ms)
