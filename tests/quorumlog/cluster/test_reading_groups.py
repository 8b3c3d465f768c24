"""Several broker groups behind one client: readers, consumer groups, and what admin calls say."""

import asyncio
from collections import Counter

import pytest

import quorumlog
from quorumlog import Queue, errors
from tests.patience import end, eventually
from tests.quorumlog.fake_cluster import FakeCluster
from tests.quorumlog.fake_groups import connect, fake_groups


async def read_into(got: list[bytes], client: quorumlog.Client) -> None:
    async for message in client.consume("orders", until="end"):
        got.append(message.body)


async def filled(groups: dict[str, FakeCluster], client: quorumlog.Client) -> None:
    """Send 16 messages, to each group in turn."""
    async with client.producer() as producer:
        for i in range(16):
            group = list(groups)[i % len(groups)]
            await producer.send("orders", b"%02d" % i, queue_id=i // 4, broker_group=group)


async def test_a_lost_group_does_not_stop_readers() -> None:
    async with fake_groups("g0", "g1") as groups, connect(groups) as client:
        await filled(groups, client)
        tailing = client.pull_consumer("orders")
        assert len([await anext(tailing) for _ in range(16)]) == 16
        await groups["g1"].stop()
        late = client.pull_consumer("orders")
        assert {(await anext(late)).broker_group for _ in range(8)} == {"g0"}
        async with client.producer() as producer:
            await producer.send("orders", b"news", queue_id=0)
        assert (await anext(tailing)).body == b"news"
        await groups["g1"].start()
        seen = Counter([(await anext(late)).broker_group for _ in range(9)])
        assert seen == {"g0": 1, "g1": 8}
        await tailing.close()
        await late.close()


@pytest.mark.long  # The group that is there has to answer within the short time-out, too.
async def test_a_lost_group_is_named() -> None:
    async with (
        fake_groups("g0", "g1") as groups,
        connect(groups) as client,
        connect(groups, timeout_ms=1_000) as hasty,
    ):
        await filled(groups, client)
        await groups["g1"].stop()
        got: list[bytes] = []
        with pytest.raises(errors.QuorumlogError, match="of broker group g1"):
            await read_into(got, hasty)
        assert sorted(got) == sorted(groups["g0"].bodies())
        with pytest.raises(errors.QuorumlogError, match="of broker group g1"):
            await hasty.query_by_key("orders", "k")
        part = await hasty.admin.create_topic("cakes", queue_count=2)
        assert (part.queue_count, part.away) == (2, ("g1",))
        assert (await client.producer().send("cakes", b"")).broker_group == "g0"


async def test_members_share_the_queues_of_all_groups() -> None:
    async with fake_groups("g0", "g1") as groups, connect(groups) as client:
        everything = {Queue("orders", i, group) for group in groups for i in range(4)}
        members = [client.group_consumer("g", "orders") for _ in range(3)]
        for member in members:
            await member.start()

        def shares() -> list[int]:
            dealt = [queue for member in members for queue in member.assignment()]
            is_whole = len(dealt) == len(everything) and set(dealt) == everything
            return sorted(len(m.assignment()) for m in members) if is_whole else []

        await eventually(lambda: shares() == [2, 3, 3])
        async with client.producer() as producer:
            for i in range(80):
                await producer.send("orders", b"%02d" % i)
        got: list[bytes] = []
        done = asyncio.Event()

        async def read(member: quorumlog.GroupConsumer) -> None:
            async for message in member:
                got.append(message.body)
                if len(set(got)) == 80:
                    done.set()

        readers = [asyncio.create_task(read(member)) for member in members]
        await done.wait()
        await end(*readers)
        await members.pop().close()
        await eventually(lambda: shares() == [4, 4])
        assert sorted(got) == [b"%02d" % i for i in range(80)]
        for member in members:
            await member.commit()
            await member.close()
        for group in groups.values():  # Each has the offsets of its own queues.
            expected = {("g", *key): len(queue) for key, queue in group.queues.items()}
            assert group.offsets == expected
        assert sum((await client.admin.fetch_offsets("g", sorted(everything))).values()) == 80


async def test_more_members_than_queues_of_a_group_all_have_work() -> None:
    async with fake_groups("g0", "g1") as groups, connect(groups) as client:
        members = [client.group_consumer("g", "orders") for _ in range(8)]
        for member in members:
            await member.start()
        await eventually(lambda: all(len(m.members()) == 8 for m in members))
        await eventually(lambda: [len(m.assignment()) for m in members] == [1] * 8)
        for member in members:
            await member.close()


async def test_a_member_goes_on_and_commits_while_a_group_is_away() -> None:
    async with fake_groups("g0", "g1") as groups, connect(groups) as client:
        await client.producer().send("orders", b"first", queue_id=0)
        member = client.group_consumer("g", "orders", commit_interval_ms=20)
        assert (await anext(member)).body == b"first"
        assert len(member.assignment()) == 8
        await groups["g1"].stop()
        for i in range(20):
            await client.producer().send("orders", b"%d" % i, queue_id=0)
            assert (await anext(member)).body == b"%d" % i
        await eventually(lambda: groups["g0"].offsets.get(("g", "orders", 0)) == 20)
        late = client.group_consumer("g", "orders")
        await late.start()  # It hears of one group only, and takes its share there.
        await eventually(
            lambda: len([q for q in member.assignment() if q.broker_group == "g0"]) == 2
        )
        assert {q.broker_group for q in late.assignment()} == {"g0"}
        await late.close()
        await groups["g1"].start()
        await client.producer().send("orders", b"there", queue_id=3, broker_group="g1")
        while (await anext(member)).body != b"there":
            pass  # What was not processed comes again before it.
        await member.close()


async def test_topics_are_made_in_every_group() -> None:
    async with fake_groups("g0", "g1") as groups, connect(groups) as client:
        made = await client.admin.create_topic("pies", queue_count=3, must_be_new=True)
        assert (made.queue_count, [s.broker_group for s in made.shares]) == (6, ["g0", "g1"])
        assert [group.topics["pies"] for group in groups.values()] == [3, 3]
        groups["g0"].topics["old"] = 1
        with pytest.raises(errors.TopicExistsError):
            await client.admin.create_topic("old", must_be_new=True)
        assert "old" not in groups["g1"].topics
        listed = {t.topic: t.queue_count for t in await client.admin.list_topics()}
        assert listed == {"old": 1, "orders": 8, "pies": 6}


async def test_the_status_of_a_cluster_has_all_nodes_of_all_groups() -> None:
    async with fake_groups("g0", "g1", count=2) as groups, connect(groups) as client:
        groups["g1"].elect(4)
        status = await client.admin.cluster_status()
        assert [(n.node_id, n.broker_group) for n in status.nodes] == [
            (1, "g0"),
            (2, "g0"),
            (3, "g1"),
            (4, "g1"),
        ]
        assert [(g.broker_group, g.leader_id) for g in status.broker_groups] == [
            ("g0", 1),
            ("g1", 4),
        ]
        assert status.leader_id == 1
        assert (await client.admin.node_status(3)).broker_group == "g1"
        moved = await client.admin.transfer_leadership(3)
        assert (moved.leader_id, moved.broker_group) == (3, "g1")
        assert (groups["g0"].leader_id, groups["g1"].leader_id) == (1, 3)


async def test_numbers_of_queues_name_one_of_several_groups_or_nothing() -> None:
    async with fake_groups("g0", "g1") as groups, connect(groups) as client:
        producer = client.producer()
        for group in groups:
            for body in (b"0", b"1"):
                await producer.send("orders", body, queue_id=0, broker_group=group)
        async with client.pull_consumer("orders") as consumer:
            got = [await anext(consumer) for _ in range(4)]
            assert {message.broker_group for message in got} == {"g0", "g1"}
            with pytest.raises(errors.InvalidRequestError, match="queue_offsets"):
                consumer.offsets()
            await consumer.seek(0, 1)  # A number is that of the first group.
            again = await anext(consumer)
            assert (again.broker_group, again.body) == ("g0", b"1")
            assert consumer.queue_offsets()[Queue("orders", 0, "g1")] == 2
        async with client.pull_consumer("orders", queues=[Queue("orders", 0, "g1")]) as one:
            await anext(one)
            assert one.offsets() == {0: 1}
            await one.seek(Queue("orders", 0, "g1"), 0)
            assert (await anext(one)).body == b"0"
