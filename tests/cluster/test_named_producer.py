"""K3: a producer is started again under its name while the one before it is still alive."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import IO, NamedTuple

import pytest

import quorumlog
from quorumlog.errors import InvalidRequestError, Outcome, ProducerFencedError
from tests.cluster.conftest import running
from tests.cluster.workload import TOPIC

ROOT = Path(__file__).parents[2]
FENCED = "node.producer_fenced not_applied"


class Process(NamedTuple):
    """One producer process; it sends one message a call."""

    pid: int
    calls: IO[str]
    answers: IO[str]

    def ask(self) -> None:
        self.calls.write("\n")
        self.calls.flush()

    def answer(self) -> str:
        return self.answers.readline().strip()

    async def send(self) -> str:
        self.ask()
        return await asyncio.to_thread(self.answer)


@contextmanager
def producing(server: str, prefix: str) -> Iterator[Process]:
    """A process with a producer of the name `billing`."""
    command = [sys.executable, "-m", "tests.cluster.named_producer", server, "billing", prefix]
    with subprocess.Popen(command, cwd=ROOT, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Process(process.pid, process.stdin, process.stdout)
        finally:
            process.kill()


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
        server = cluster.bootstrap
        with producing(server, "old") as old, producing(server, "new") as new:
            assert await old.send() == "acked 0"
            assert await old.send() == "acked 1"
            os.kill(old.pid, signal.SIGSTOP)
            old.ask()  # It sends this one when it wakes up.
            assert await new.send() == "acked 2"
            os.kill(old.pid, signal.SIGCONT)
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
            os.kill(new.pid, signal.SIGKILL)
            with producing(server, "again") as again:
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
