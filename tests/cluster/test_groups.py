"""Two broker groups in one cluster, as real processes: each loses nodes, the other goes on."""

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import quorumlog
from quorumlog import Queue, errors
from quorumlog.records.receipt import Receipt
from tests.cluster.conftest import running
from tests.cluster.workload import QUEUE_COUNT, TOPIC
from tests.patience import end, wait_for

pytestmark = pytest.mark.long
TWO_GROUPS: dict[str, Any] = {"groups": 2, "timeout_ms": 60_000}
ALL = {Queue(TOPIC, i, group) for group in ("g0", "g1") for i in range(QUEUE_COUNT)}


class Sending:
    """Sends numbers, to no queue in particular, until it is told to stop."""

    def __init__(self, client: quorumlog.Client) -> None:
        self._producer = client.producer(batch_count_max=20)
        self._deliveries: list[quorumlog.Delivery] = []
        self._task = asyncio.create_task(self._send())

    @property
    def acked_count(self) -> int:
        return self._producer.stats().acked_count

    async def _send(self) -> None:
        while True:
            number = len(self._deliveries)
            self._deliveries.append(await self._producer.enqueue(TOPIC, b"%08d" % number))
            await asyncio.sleep(0.001)

    async def acked(self, count: int) -> None:
        """Wait for so many more receipts."""
        target = self.acked_count + count
        await asyncio.to_thread(wait_for, f"{target} receipts", lambda: self.acked_count >= target)

    async def finish(self) -> tuple[dict[int, Receipt], list[errors.QuorumlogError]]:
        """Return receipts by number, and the failures."""
        await end(self._task)
        receipts: dict[int, Receipt] = {}
        failures = []
        for number, delivery in enumerate(self._deliveries):
            try:
                receipts[number] = await delivery
            except errors.QuorumlogError as error:
                failures.append(error)
        await self._producer.abort()
        return receipts, failures


async def prove(client: quorumlog.Client, receipts: dict[int, Receipt]) -> None:
    """What has a receipt is where it says, and there once."""
    by_number: dict[int, list[quorumlog.Message]] = {}
    async for message in client.consume(TOPIC, until="end", consistency="linearizable"):
        by_number.setdefault(int(message.body), []).append(message)
    for number, receipt in receipts.items():
        [message] = by_number.get(number, [])
        place = (message.broker_group, message.queue_id, message.queue_offset, message.log_position)
        assert place == (
            receipt.broker_group,
            receipt.queue_id,
            receipt.queue_offset,
            receipt.log_position,
        )
    assert not [number for number, copies in by_number.items() if len(copies) > 1]


@pytest.mark.parametrize("replication", ["raft", "sync_master"])
async def test_leaders_of_both_groups_are_killed_and_nothing_is_lost(
    tmp_path: Path, replication: str
) -> None:
    """All queues of both groups get messages; each has one stored copy and a true receipt."""

    async with running(tmp_path / "c", replication=replication, **TWO_GROUPS) as (cluster, client):
        assert client.broker_groups == ("g0", "g1")
        sending = Sending(client)
        for group in ("g1", "g0"):
            await sending.acked(150)
            leader = await asyncio.to_thread(cluster.leader_id, group)
            assert leader in cluster.groups[group]
            await asyncio.to_thread(cluster.kill, leader)
            await sending.acked(150)
            await asyncio.to_thread(
                wait_for,
                f"another leader of {group}",
                partial(cluster.leader_id, group),
            )
            cluster.start(leader)
        await sending.acked(150)
        receipts, failures = await sending.finish()
        assert failures == []
        assert {Queue(r.topic, r.queue_id, r.broker_group) for r in receipts.values()} == ALL
        await prove(client, receipts)


async def test_a_group_wholly_down_does_not_stop_the_other(tmp_path: Path) -> None:
    """What is bound to no queue goes on; what may be in the dead group waits, and is there once."""

    async with running(tmp_path / "c", nodes=1, **TWO_GROUPS) as (cluster, client):
        member = client.group_consumer("readers", TOPIC)
        await member.start()
        await asyncio.to_thread(wait_for, "its queues", lambda: set(member.assignment()) == ALL)
        seen: Counter[int] = Counter()

        async def read() -> None:
            async for message in member:
                seen[int(message.body)] += 1

        reading = asyncio.create_task(read())
        sending = Sending(client)
        await sending.acked(200)
        [dead] = cluster.groups["g1"]
        await asyncio.to_thread(cluster.kill, dead)
        await sending.acked(1_000)
        with pytest.raises(errors.QuorumlogError, match="of broker group g1") as refused:
            await client.producer(timeout_ms=1_000).send(TOPIC, b"0", broker_group="g1")
        assert refused.value.outcome is errors.Outcome.NOT_APPLIED
        before = len(seen)
        await asyncio.to_thread(
            wait_for, "messages of the other group", lambda: len(seen) > before + 200
        )
        cluster.start(dead)
        await asyncio.to_thread(cluster.wait_ready)
        receipt = await client.producer().send(TOPIC, b"99999999", broker_group="g1")
        assert receipt.broker_group == "g1"
        await sending.acked(100)
        receipts, failures = await sending.finish()
        assert failures == []  # Also what had no answer when the group died: it asked again.
        await prove(client, receipts)
        await asyncio.to_thread(
            wait_for, "all messages", lambda: set(seen) >= {*receipts, 99_999_999}
        )
        await end(reading)
        await member.close()


async def test_a_new_group_is_found_and_its_queues_are_shared(tmp_path: Path) -> None:
    """A client that knows one group hears of the other from its nodes, within 30 s."""

    async with running(tmp_path / "c", nodes=1, first=1, **TWO_GROUPS) as (cluster, client):
        assert list(client.broker_groups) == ["g0"]
        members = [client.group_consumer("readers", TOPIC) for _ in range(2)]
        for member in members:
            await member.start()
        await asyncio.to_thread(wait_for, "three queues", lambda: shares(members) == [1, 2])
        cluster.start(2)
        await asyncio.to_thread(wait_for, "the new group", lambda: len(client.broker_groups) == 2)
        made = await client.admin.create_topic(TOPIC, queue_count=QUEUE_COUNT)
        assert [(share.broker_group, share.queue_count) for share in made.shares] == [
            ("g0", QUEUE_COUNT),
            ("g1", QUEUE_COUNT),
        ]
        await asyncio.to_thread(wait_for, "six queues", lambda: shares(members) == [3, 3])
        assert {queue for member in members for queue in member.assignment()} == ALL
        async with client.producer() as producer:
            sent = [await producer.send(TOPIC, b"%08d" % i) for i in range(60)]
        assert {receipt.broker_group for receipt in sent} == {"g0", "g1"}
        await members[0].close()
        await asyncio.to_thread(wait_for, "all queues", lambda: set(members[1].assignment()) == ALL)
        got = set()
        async for message in members[1]:
            got.add(int(message.body))
            if len(got) == len(sent):
                break
        await members[1].close()


def shares(members: list[quorumlog.GroupConsumer]) -> list[int]:
    """How many queues each has, when no two have the same."""
    queues = [queue for member in members for queue in member.assignment()]
    return sorted(len(m.assignment()) for m in members) if len(set(queues)) == len(queues) else []
