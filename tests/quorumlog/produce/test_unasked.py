"""No failure that nobody asked about is dropped silently, and no message that waits."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

import quorumlog
from quorumlog import errors, sync
from quorumlog.cluster.retry import Deadline
from quorumlog.produce import unasked
from quorumlog.produce.delivery import Batch, Delivery
from quorumlog.produce.outgoing_messages import entry_of
from quorumlog.produce.unasked import KEPT_COUNT_MAX, Failures
from tests.patience import eventually
from tests.quorumlog.fake_cluster import HANG_AFTER, FakeCluster, connect, fake_cluster

ASKED, LATER, NEVER = "asked before", "asked after", "never asked"


@pytest.mark.parametrize(
    "pattern",
    [
        (ASKED, NEVER),
        (LATER, NEVER),
        (NEVER, ASKED),
        (NEVER, LATER),
        (ASKED, LATER, NEVER),
        (NEVER, NEVER),
        (ASKED, LATER),
    ],
)
async def test_a_failure_that_nobody_asked_about_is_told_whatever_came_before(
    pattern: Sequence[str],
) -> None:
    failures = Failures()
    for number, when in enumerate(pattern):
        count = 1 if number == len(pattern) - 1 else KEPT_COUNT_MAX + 1
        later = [_failed(failures, when) for _ in range(count)]
        for delivery in later if when == LATER else ():
            with pytest.raises(errors.UnknownTopicError):
                delivery.result()
    assert (failures.take() is not None) is (NEVER in pattern)
    assert failures.take() is None


def _failed(failures: Failures, when: str) -> Delivery:
    batch = Batch(Deadline(1_000), lambda _: None)
    entry = entry_of("none", b"", None, None, None, None, 0, None)
    delivery = batch.add(entry, 100)
    batch.fail(errors.UnknownTopicError("none"))
    if when == ASKED:
        with pytest.raises(errors.UnknownTopicError):
            delivery.result()
    failures.note(batch)
    return delivery


WAYS: dict[str, Callable[[quorumlog.Producer], Coroutine[Any, Any, object]]] = {
    "send": lambda producer: producer.send("orders", b""),
    "send_batch": lambda producer: producer.send_batch("orders", [b"1", b"2"]),
    "send_nowait": lambda producer: producer.send_nowait("orders", b"").receipt(),
}


@pytest.mark.parametrize("end", ["received", "given up before", "given up in the turn of it"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_failure_is_named_once_and_only_if_no_caller_received_it(
    way: str, end: str
) -> None:
    async with fake_cluster(1) as cluster, connect(cluster) as client:
        producer = client.producer()
        await producer.send("orders", b"")
        cluster.script.actions.append(HANG_AFTER)
        sending = asyncio.create_task(WAYS[way](producer))
        await eventually(lambda: producer.stats().in_flight_batches == 1)
        if end == "given up before":
            sending.cancel()
            await asyncio.wait([sending])
        producer._fail_all(errors.DeadlineError("late"))
        if end == "given up in the turn of it":
            sending.cancel()
        flushed = asyncio.gather(producer.flush(), return_exceptions=True)
        (outcome,) = await asyncio.gather(sending, return_exceptions=True)
        assert isinstance(outcome, errors.DeadlineError) is (end == "received")
        told = [type(one) for one in await flushed]
        assert told == ([type(None)] if end == "received" else [errors.DeadlineError])
        await producer.close()


@pytest.mark.parametrize("is_blocking", [True, False])
async def test_a_program_that_ends_with_messages_waiting_is_told_how_many(
    caplog: pytest.LogCaptureFixture, is_blocking: bool
) -> None:
    async with fake_cluster() as cluster:
        await asyncio.to_thread(_block if is_blocking else _run, cluster)
    told = [one.getMessage() for one in caplog.records if one.name == "quorumlog.producer"]
    assert [one[:27] for one in told] == ["200 messages had no receipt"]


def _run(cluster: FakeCluster) -> None:
    async def program() -> None:
        client = connect(cluster)
        await client.start()
        producer = client.producer()
        for _ in range(200):
            producer.send_nowait("orders", b"")

    asyncio.run(program())
    unasked._warn_all()


def _block(cluster: FakeCluster) -> None:
    client = sync.connect(cluster.bootstrap)
    client.start()
    producer = client.producer(linger_ms=60_000)
    for _ in range(200):
        producer.send_nowait("orders", b"")
    unasked._warn_all()
    producer.abort()
    client.close()


_CHILD = """
import logging, multiprocessing, os, sys
from quorumlog.cluster.forks import forks
from quorumlog.produce import unasked

class Producer:
    def count(self):
        return 3

def work():
    global kept
    kept = Producer()
    unasked.watch(kept.count)

logging.basicConfig()
if sys.argv[1] == "fork":  # It has a copy of what its parent sends.
    forks.use()
    work()
    if os.fork():
        os.wait()
    sys.exit()
child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
"""


@pytest.mark.parametrize("what", ["worker", "fork"])
def test_each_message_is_warned_of_by_the_program_that_sends_it(what: str) -> None:
    """A worker of multiprocessing does not run what is registered at exit, and a fork does."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, what], capture_output=True, text=True, check=True
    )
    assert done.stderr.count("3 messages had no receipt") == 1
