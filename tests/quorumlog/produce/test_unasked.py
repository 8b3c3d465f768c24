"""No failure that nobody asked about is dropped silently, and no message that waits."""

import asyncio
import subprocess
import sys
from collections.abc import Sequence

import pytest

from quorumlog import errors, sync
from quorumlog.cluster.retry import Deadline
from quorumlog.produce import unasked
from quorumlog.produce.delivery import Batch, Delivery
from quorumlog.produce.outgoing_messages import entry_of
from quorumlog.produce.unasked import KEPT_COUNT_MAX, Failures
from tests.quorumlog.fake_cluster import FakeCluster, connect, fake_cluster

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
    batch = Batch(Deadline(1_000), failures.note)
    entry = entry_of("none", b"", None, None, None, None, 0, None)
    delivery = batch.add(entry, 100)
    if when == ASKED:
        delivery._claim()
    batch.fail(errors.UnknownTopicError("none"))
    return delivery


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
import logging, multiprocessing
from quorumlog.produce import unasked

class Producer:
    def count(self):
        return 3

def work():
    global kept
    kept = Producer()
    unasked.watch(kept.count)

logging.basicConfig()
child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
"""


def test_a_worker_of_multiprocessing_is_a_program_that_ends() -> None:
    """It does not run what is registered at exit."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD], capture_output=True, text=True, check=True
    )
    assert done.stderr.count("3 messages had no receipt") == 1
