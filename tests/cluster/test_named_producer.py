"""K3: a producer is started again under its name while the one before it is still alive."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import quorumlog
from quorumlog.errors import InvalidRequestError, Outcome, ProducerFencedError
from tests.cluster.conftest import running
from tests.cluster.workload import TOPIC

ROOT = Path(__file__).parents[2]
FENCED = "node.producer_fenced not_applied"


class Process:
    """One producer process; it sends one message a call."""

    def __init__(self, server: str, name: str, prefix: str) -> None:
        command = [sys.executable, "-m", "tests.cluster.named_producer", server, name, prefix]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    async def send(self) -> str:
        self.ask()
        return await asyncio.to_thread(self.answer)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def processes(server: str, *prefixes: str) -> Iterator[list[Process]]:
    made = [Process(server, "billing", prefix) for prefix in prefixes]
    try:
        yield made
    finally:
        for process in made:
            process.end()


async def bodies(client: quorumlog.Client) -> list[str]:
    batch = await client.pull(TOPIC, 0, 0, consistency="linearizable", max_count=1_000)
    return [body.decode() for body in batch.bodies()]


@pytest.mark.long
@pytest.mark.parametrize("replication", ["raft", "sync_master"])
async def test_the_process_before_is_fenced_while_it_is_alive(
    tmp_path: Path, replication: str
) -> None:
    """Paused, it was taken for dead; woken up it has a message under way, and sends more."""

    async with running(tmp_path / "c", replication=replication) as (cluster, client):
        with processes(cluster.bootstrap, "old", "new", "other") as (old, new, _):
            assert await old.send() == "acked 0"
            assert await old.send() == "acked 1"
            old.signal(signal.SIGSTOP)
            old.ask()  # It sends this one when it wakes up.
            assert await new.send() == "acked 2"
            old.signal(signal.SIGCONT)
            assert await asyncio.to_thread(old.answer) == FENCED
            assert await new.send() == "acked 3"
            assert await old.send() == FENCED
            # The fence is replicated: whoever leads next has it.
            leader = await asyncio.to_thread(cluster.leader_id)
            await asyncio.to_thread(cluster.kill, leader)
            assert await new.send() == "acked 4"
            assert await old.send() == FENCED
            cluster.start(leader)
            await asyncio.to_thread(cluster.wait_ready)
            new.signal(signal.SIGKILL)
            with processes(cluster.bootstrap, "again") as (again,):
                assert await again.send() == "acked 5"
                assert await old.send() == FENCED
        assert await bodies(client) == [
            *("old0000", "old0001", "new0000", "new0001", "new0002", "again0000")
        ]


async def test_a_name_is_of_one_producer_whatever_it_sends(tmp_path: Path) -> None:
    """Batches, delayed messages and transactions; other names and none are not concerned."""

    async with running(tmp_path / "c", nodes=1) as (cluster, client):
        old, new = client.producer(name="one"), client.producer(name="one")
        other, unnamed = client.producer(name="two"), client.producer()
        for producer in (old, other, unnamed, new, other, unnamed, new):
            await producer.send(TOPIC, "x", queue_id=0)
        for how in ({}, {"delay": 1.0}):
            with pytest.raises(ProducerFencedError, match="is not the last one") as caught:
                await old.send(TOPIC, "never", queue_id=0, delay=how.get("delay"))
            assert caught.value.outcome is Outcome.NOT_APPLIED
            assert not caught.value.retryable
        with pytest.raises(ProducerFencedError):
            await old.send_batch(TOPIC, ["never", "never"], queue_id=0)
        with pytest.raises(InvalidRequestError, match="name"):
            await client.producer(name="no name!").send(TOPIC, "never")
        check = lambda _transaction: "commit"  # noqa: E731
        first = client.transactional_producer("work", check, name="three")
        await (await first.begin(TOPIC, "half", queue_id=0)).commit()
        second = client.transactional_producer("work", check, name="three")
        await (await second.begin(TOPIC, "half", queue_id=0)).rollback()
        with pytest.raises(ProducerFencedError):
            await first.begin(TOPIC, "never", queue_id=0)
        third = client.transactional_producer("work", check, name="three", check_after_ms=3_600_000)
        made = await second.begin(TOPIC, "never", queue_id=0)
        await (await third.begin(TOPIC, "half", queue_id=0)).commit()
        for end in (made.commit, made.rollback):
            with pytest.raises(ProducerFencedError, match="is not the last one"):
                await end()
        await client.admin.end_transaction(made.transaction_id, "rollback")
        # What a checkpoint and a restart keep.
        await asyncio.to_thread(cluster.restart, 1)
        await asyncio.to_thread(cluster.wait_ready)
        with pytest.raises(ProducerFencedError):
            await old.send(TOPIC, "never", queue_id=0)
        await new.send(TOPIC, "x", queue_id=0)
        assert await bodies(client) == ["x"] * 7 + ["half", "half", "x"]
