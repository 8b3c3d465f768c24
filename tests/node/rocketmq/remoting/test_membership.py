"""One membership for all protocols: the leader has it, whichever node its members talk to."""

import asyncio
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from node.broker.groups.member import MemberKind, Reported, comparable
from node.broker.groups.members import Consumer
from node.config.limits import Limits
from node.errors.common import GroupNotEmptyError, NotReadyError
from node.errors.groups import GroupKindError
from node.rocketmq.clients import GatewayClients
from node.rocketmq.remoting import member_reports
from node.rocketmq.remoting.protocol.codes import ResponseCode
from quorumlog.pb.admin_pb2 import DeleteGroupRequest, DescribeGroupRequest
from quorumlog.pb.common_pb2 import QueueId
from quorumlog.pb.consumer_pb2 import (
    CommitOffsetsRequest,
    GroupOffset,
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
)
from quorumlog.pb.pop_pb2 import ReceiveRequest
from quorumlog.pb.retry_pb2 import RetryLaterRequest, RetryMessage
from quorumlog.pb.transaction_pb2 import CommitConsumedRequest
from tests.node.broker_fakes import configure
from tests.node.rocketmq.remoting import codes
from tests.node.rocketmq.remoting.clients import ClassicClient, Gateway, client_at, gateway_at
from tests.node.rocketmq.remoting.test_forwarding import follow, pair_at
from tests.node.transaction_calls import begun, round_of
from tests.patience import PATIENCE_S, eventually

GROUP = "readers"
RETRY_TOPIC = f"%RETRY%{GROUP}"
FIRST = RetryMessage(topic="orders", queue_id=0, offset=0)
SETTLED_MS = 60_000


async def beat(gateway: Gateway, client_id: str, *, is_new: bool = False) -> HeartbeatResponse:
    """Register a client of QuorumLog's own protocol."""
    request = HeartbeatRequest(
        group=GROUP, client_id=client_id, topics=["orders"], cluster_id="cluster", is_new=is_new
    )
    return await gateway.node.broker.groups.heartbeat(request)


async def listed(client: ClassicClient) -> list[str]:
    response = await client.ask(codes.MEMBERS, {"consumerGroup": GROUP})
    return json.loads(response.body)["consumerIdList"] if response.code == 0 else []


async def part_of(client: ClassicClient, client_id: str) -> list[int]:
    """Return the queues that RocketMQ's average strategy gives a client."""
    route = json.loads((await client.ask(codes.ROUTE, {"topic": "orders"})).body)
    counts = {row["brokerName"]: row["readQueueNums"] for row in route["queueDatas"]}
    queues = sorted((name, number) for name in counts for number in range(counts[name]))
    names = sorted(counts)
    members = await listed(client)
    index, least, more = members.index(client_id), *divmod(len(queues), len(members))
    lo = index * least + min(index, more)
    mine = queues[lo : lo + least + (index < more)]
    return [number * len(names) + names.index(name) for name, number in mine]


@pytest.mark.parametrize("others", [("a",), ("z",), ("a", "k", "z"), ("a", "b", "y", "z")])
async def test_each_queue_has_one_reader_in_a_group_of_two_protocols(
    tmp_path: Path, others: tuple[str, ...]
) -> None:
    async with client_at(tmp_path) as (gateway, client):
        await client.send()
        again = RetryLaterRequest(group=GROUP, messages=[FIRST], cluster_id="cluster")
        await gateway.node.broker.retry.retry_later(again)
        await client.heartbeat("m@1", group=GROUP)
        await client.heartbeat("n@1", group=GROUP)
        await client.heartbeat("o@1", GROUP, "bills")  # Its part of orders is read, too.
        for client_id in others:
            await beat(gateway, client_id)
        read = await part_of(client, "m@1") + await part_of(client, "n@1")
        given_back = list[int]()  # Which no classic one subscribes to.
        for client_id in others:
            answer = await beat(gateway, client_id)
            assert answer.is_divided
            read += [queue.queue_id for queue in answer.queues if queue.topic == "orders"]
            given_back += [queue.queue_id for queue in answer.queues if queue.topic == RETRY_TOPIC]
        assert (sorted(read), given_back) == ([0, 1, 2, 3], [0])
        assert await listed(client) == sorted([*others, "m@1", "n@1", "o@1"])


async def test_the_leader_knows_members_of_other_nodes(tmp_path: Path) -> None:
    async with pair_at(tmp_path) as (leader, follower):
        groups = leader.node.broker.groups
        client, away = await follower.client(), await follower.client()
        await client.heartbeat("m@1", group=GROUP)
        assert await listed(client) == ["m@1"], "as soon as the heartbeat has its answer"
        await away.heartbeat("n@1", group=GROUP)
        assert await listed(client) == ["m@1", "n@1"]
        described = await groups.describe_group(DescribeGroupRequest(group=GROUP))
        assert list(described.client_ids) == ["m@1", "n@1"]
        await away.close()
        clients_of = leader.node.broker.group_members.clients_of
        await eventually(lambda: [*clients_of(GROUP, 0)] == ["m@1"], "the client that left")
        response = await beat(leader, "a")
        assert (list(response.client_ids), response.is_divided) == (["a", "m@1"], True)
        heard = await client.hear()
        assert heard.ext == {"consumerGroup": GROUP}, "those at other nodes are notified"
        offsets = [GroupOffset(topic="orders", queue_id=0, offset=0)]
        refused = CommitOffsetsRequest(group=GROUP, offsets=offsets, must_be_empty=True)
        with pytest.raises(GroupNotEmptyError):
            await groups.commit_offsets(refused)
        with pytest.raises(GroupNotEmptyError):
            await leader.node.delete_group(GROUP)


async def test_a_reset_by_a_tool_is_refused_where_it_would_be_undone(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        tool = await gateway.client()
        fields = {"topic": "orders", "group": GROUP, "timestamp": "0", "bname": "g0-n1"}
        await beat(gateway, "a")
        refused = await tool.ask(codes.RESET, fields)
        assert refused.code == 1
        assert "qlog group reset" in (refused.remark or "").replace("\n", " ")
        gateway.node.clock.now_ms += SETTLED_MS
        assert (await tool.ask(codes.RESET, fields)).code == 26, "it had no offset"
        await configure(gateway.node, GROUP)
        assert (await tool.ask(codes.RESET, fields)).code == 0


async def test_a_node_that_reports_no_more_takes_its_members_along(tmp_path: Path) -> None:
    async with pair_at(tmp_path) as (leader, follower):
        client = await follower.client()
        await client.heartbeat("m@1", group=GROUP)
        members, clock = leader.node.broker.group_members, leader.node.clock
        assert members.clients_of(GROUP, clock.now_ms) == {"m@1": frozenset({"orders"})}
        assert members.clients_of(GROUP, clock.now_ms + SETTLED_MS) == {}
        await client.heartbeat("n@1", group=GROUP)
        # The whole, which a leader that forgot the node asks for.
        await eventually(lambda: [*members.clients_of(GROUP, clock.now_ms)] == ["m@1", "n@1"])


async def test_members_that_differ_are_told(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        members = gateway.node.broker.group_members
        orders, both, sharing = {"orders"}, {"orders", "bills"}, MemberKind.SHARING
        first = members.heartbeat(GROUP, Consumer("a"), frozenset(orders), sharing, "averagely")
        assert first.warnings == []
        second = members.heartbeat(GROUP, Consumer("b"), frozenset(both), sharing, "circle")
        assert second.readers == {"bills": [1]}
        topics, division = second.warnings
        assert ": not all members " in topics
        assert ": members divide queues " in division
        members.heartbeat(GROUP, Consumer("c"), frozenset(orders), MemberKind.BROADCASTING)
        assert "broadcasting and sharing" in members.warnings_of(GROUP, 0)[0]


async def test_classic_members_read_what_each_of_them_told(tmp_path: Path) -> None:
    """At any node, though a neighbour says otherwise later; and all are told what is unlike."""
    async with pair_at(tmp_path) as (leader, follower):
        sender, members = await leader.client(), leader.node.broker.group_members
        for tag in "xyx":
            await sender.send(f"of {tag}".encode(), TAGS=tag, UNIQ_KEY=tag)
        for group, place in (("here", leader), ("there", follower)):
            reader, other, late, twice = [await place.client() for _ in range(4)]
            for one in (reader, twice):  # As a client of several ports does.
                await one.heartbeat("b@1", group, tags="y")
            for read, tags in ("bills", "*"), ("orders bills", "x"):
                await other.heartbeat("a@1", group, *read.split(), tags=tags)
                # The follower has no messages: the leader filters for it.
                ext = {"consumerGroup": group, "sysFlag": "0"}
                pulled = await reader.pull(0, 1, ext=ext)
                outcome = pulled.code, b"of y" in pulled.body, b"of x" in pulled.body
                assert outcome == (0, True, False)
                refused = (await other.pull(0, 1, ext=ext | {"topic": "more"})).code
                assert refused == ResponseCode.SUBSCRIPTION_NOT_EXIST
            assert (await late.pull(0, 1, ext=ext)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
            topics, filters = members.warnings_of(group, 0)
            assert "not all members read bills;" in topics
            assert "members filter orders in unlike ways, 'x', 'y';" in filters


async def test_no_commit_undoes_what_others_stored(tmp_path: Path) -> None:
    """Of a classic client at any node, member or not; one that knows what is stored goes back."""
    async with pair_at(tmp_path) as (leader, follower):
        tool = await leader.client()
        for _ in range(9):
            await tool.send()
        for group, place in (("here", leader), ("there", follower)):
            queue = {"consumerGroup": group, "topic": "orders", "queueId": "0", "bname": "g0-n1"}
            member, other, again = [await place.client() for _ in range(3)]

            async def commit(
                client: ClassicClient, offset: int, queue: dict[str, str] = queue
            ) -> tuple[int, str]:
                """Return the code of a commit, and what is stored then."""
                code = (await client.ask(codes.COMMIT, queue | {"commitOffset": str(offset)})).code
                return code, (await tool.ask(codes.GET_OFFSET, queue)).ext["offset"]

            assert await commit(other, 8) == (0, "8")
            assert await commit(again, 3) == (0, "3"), "nobody reads: it is moved"
            await member.heartbeat("m@1", group)
            assert await commit(member, 8) == (0, "8")
            assert await commit(again, 2) == (1, "8"), "of one that is no member"
            assert await commit(member, 5) == (0, "5"), "its own it may set back"
            assert await commit(other, 6) == (1, "5"), "others went back from what it knows"
            await other.ask(codes.GET_OFFSET, queue)
            assert await commit(other, 6) == (0, "6")
            assert await commit(member, 4) == (1, "6"), "others stored beyond what it knows"
            await member.ask(codes.GET_OFFSET, queue)
            assert await commit(member, 4) == (0, "4")
            await again.heartbeat("m@1", group)
            assert await commit(again, 3) == (1, "4"), "a connection that was lost knows nothing"
            read = [QueueId(topic="orders", queue_id=0)]
            request = HeartbeatRequest(group=group, client_id="s", topics=["orders"], queues=read)
            request.cluster_id = "cluster"
            await leader.node.broker.groups.heartbeat(request)
            assert await commit(member, 1) == (1, "4"), "the queue is that of another member"


async def test_producers_at_other_nodes_are_asked_about_their_transactions(tmp_path: Path) -> None:
    async with gateway_at(tmp_path / "leader") as leader:
        check = leader.node.broker.transactions.check_transactions
        async with gateway_at(tmp_path / "node", questions=lambda _, request: check(request)) as at:
            follow(at, 2)
            producer = await at.client()
            await producer.produce_for("p@1", "paying")
            producers = leader.node.broker.transactions.checks.producers
            await eventually(lambda: producers.is_there("paying"), "the leader knows of it")
            await begun(leader.node, 0, 1, group="paying")
            await round_of(leader.node, 6_000)
            assert (await producer.hear()).code == codes.CHECK
            await producer.close()
            await eventually(lambda: not producers.is_there("paying"), "nor longer than it is")


async def test_members_that_pop_and_members_that_share_keep_out_of_each_others_groups(
    tmp_path: Path,
) -> None:
    async with gateway_at(tmp_path) as gateway:
        members, pop = gateway.node.broker.group_members, gateway.node.broker.pop
        request = ReceiveRequest(group=GROUP, topic="orders", queue_id=-1)
        client = await gateway.client()
        await client.heartbeat("m@1", group=GROUP)
        with pytest.raises(GroupKindError, match="by queue"):
            await pop.receive(request)
        query = {"topic": "orders", "consumerGroup": GROUP, "clientId": "m@1"}
        assert (await client.ask(codes.ASSIGNMENT, body=query)).code == 0
        await pop.receive(request)
        with pytest.raises(GroupKindError, match="by pop"):
            await beat(gateway, "a")
        await client.heartbeat("n@1", group=GROUP)
        assert members.popping(GROUP, SETTLED_MS) == ["m@1"]
        query["clientId"] = "n@1"
        assert (await client.ask(codes.ASSIGNMENT, body=query)).code == 0
        assert members.popping(GROUP, SETTLED_MS) == ["m@1", "n@1"], "as soon as it tells"
        await client.close()
        await eventually(lambda: not members.clients_of(GROUP, 0), "they left")
        await beat(gateway, "a")
        with pytest.raises(GroupKindError, match="by queue"):
            await pop.receive(request)


@pytest.mark.parametrize("is_new", [False, True])
async def test_a_member_that_pops_waits_until_no_other_shares_the_group(
    tmp_path: Path, is_new: bool
) -> None:
    """Also of a new leader, which may hear of it first, and when the first that shares leaves."""
    async with gateway_at(tmp_path) as gateway:
        node, members = gateway.node, gateway.node.broker.group_members
        await node.commit(GROUP, ("orders", 0, 0))
        node.driver.term += is_new
        reports = [(1, {"a": MemberKind.SHARING}), (2, {"p": MemberKind.POPPING})]
        for reporter, kinds in reports[:: -1 if is_new else 1]:
            groups = {GROUP: Reported(kinds, {})}
            members.report(reporter, groups, node.clock.now_ms, is_whole=True)
        if is_new:
            with pytest.raises(NotReadyError):
                await beat(gateway, "b")
            assert members.unsettled_ms(node.clock.now_ms) == Limits().group_settle_ms
            node.clock.now_ms += Limits().group_settle_ms
        await beat(gateway, "b")
        members.report(1, {}, node.clock.now_ms, is_whole=True)  # The first one left.
        with pytest.raises(GroupKindError, match="by queue"):
            members.check_popping(GROUP, node.clock.now_ms)
        assert members.sharing(GROUP, node.clock.now_ms) == ["b"]
        members.leave(GROUP, "b", node.clock.now_ms)
        members.check_popping(GROUP, node.clock.now_ms)


async def test_who_receives_is_a_member_until_its_session_ends(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        node, groups = gateway.node, gateway.node.broker.groups
        members, pop = node.broker.group_members, node.broker.pop
        request = ReceiveRequest(
            group=GROUP, topic="orders", queue_id=-1, client_id="p@1", invisible_ms=30_000
        )
        delete, leave = DeleteGroupRequest(group=GROUP), LeaveGroupRequest(group=GROUP)
        for session_end_ms in (0, 30_000):
            await pop.receive(request)
            described = await groups.describe_group(DescribeGroupRequest(group=GROUP))
            assert list(described.client_ids) == ["p@1"]
            assert list(described.info.topics) == ["orders"]
            with pytest.raises(GroupNotEmptyError):
                await groups.delete_group(delete)
            with pytest.raises(GroupKindError, match="by pop"):
                await beat(gateway, "a")
            if session_end_ms:
                node.clock.now_ms += session_end_ms - 1
                assert list(members.clients_of(GROUP, node.clock.now_ms)) == ["p@1"]
                node.clock.now_ms += 1
            else:
                leave.client_id = "p@1"
                await groups.leave_group(leave)
            assert members.clients_of(GROUP, node.clock.now_ms) == {}
        asked_later = HeartbeatRequest(
            group=GROUP, client_id="p@1", cluster_id="cluster", is_popping=True
        )
        asked_later.topics[:] = ["orders", "elsewhere"]  # As another broker group may have it.
        node.driver.term += 1  # It works on what it received, and asks for no more.
        await groups.heartbeat(asked_later)
        node.clock.now_ms += Limits().group_settle_ms
        with pytest.raises(GroupKindError, match="by pop"):
            await beat(gateway, "a")
        await groups.leave_group(leave)
        await beat(gateway, "a")
        with pytest.raises(GroupKindError, match="by queue"):
            await pop.receive(request)
        now_ms, posing = node.clock.now_ms, Reported({"a": MemberKind.POPPING}, {})
        members.report(9, {GROUP: posing}, now_ms, is_whole=True)
        assert members.sharing(GROUP, now_ms) == ["a"], "no client takes the place of another one"
        assert members.refused_at(9, GROUP, now_ms) == ["a"]


async def test_members_that_a_new_leader_refused_to_name_are_notified_later(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        node, members = gateway.node, gateway.node.broker.group_members
        node.driver.term += 1
        for count in range(1, 3):
            kinds = {f"m@{number}": MemberKind.SHARING for number in range(count)}
            members.report(1, {GROUP: Reported(kinds, {})}, node.clock.now_ms, is_whole=count == 1)
            with pytest.raises(NotReadyError):
                members.sharing(GROUP, node.clock.now_ms)
        generation, _ = members.changed_since(1, 0)
        node.clock.now_ms += Limits().group_settle_ms
        members.report(1, {}, node.clock.now_ms, is_whole=False)
        assert members.changed_since(1, generation)[1] == [GROUP]
        assert members.sharing(GROUP, node.clock.now_ms) == ["m@0", "m@1"]


async def test_no_stranger_changes_how_others_read(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        members = gateway.node.broker.group_members
        client, stranger = await gateway.client(), await gateway.client("127.0.0.2")
        await client.heartbeat("m@1", group=GROUP)
        for client_id in ("m@1", "another", ""):
            query = {"topic": "orders", "consumerGroup": GROUP, "clientId": client_id}
            await stranger.ask(codes.ASSIGNMENT, body=query)
        assert members.sharing(GROUP, 0) == ["m@1"]
        await client.ask(codes.ASSIGNMENT, body=query | {"clientId": "m@1"})
        assert members.popping(GROUP, 0) == ["m@1"]


async def test_a_group_with_too_many_members_keeps_no_other_from_being_reported(
    tmp_path: Path,
) -> None:
    async with gateway_at(tmp_path) as gateway:
        members, limit = gateway.node.broker.group_members, Limits().group_member_count_max
        many = Reported({f"c{n}": MemberKind.SHARING for n in range(limit + 9)}, {})
        last = Reported({"m@1": MemberKind.SHARING}, {"m@1": {"orders": ""}})
        for groups in ({"a": many, "z": last}, {"a": last}, {"a": many}):
            assert not members.report(7, groups, 0, is_whole=len(groups) > 1)
        assert len(members.sharing("a", 0)) == limit
        assert members.sharing("z", 0) == ["m@1"]
        members.report(7, {}, 0, is_whole=True)
        assert members.total_count == 0


async def test_a_report_has_once_what_members_read_and_fits_its_frame(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        reports, tags = gateway.remoting.groups.reports, dict[str, dict[str, str]]()
        kinds = dict.fromkeys((f"c{n}" for n in range(99)), MemberKind.SHARING)
        own = Mock(reported=lambda _: Reported(kinds, tags))
        reports._gateways = (own, GatewayClients())
        for of_all, count in ((True, 1), (False, 9)):
            for n, name in enumerate(kinds):
                tags[name] = {f"{0 if of_all else n}.{i}".ljust(127, "t"): "" for i in range(1_000)}
            row = reports._row(GROUP)
            assert [one.client_id for one in row.members] == [*kinds]
            assert (len(row.readings), row.ByteSize() < 2 << 20) == (count, True)
            readings = {id(one) for one in member_reports._reported(row).filters.values()}
            assert len(readings) == count


@pytest.mark.parametrize("is_away", [False, True])
async def test_a_refused_client_reads_and_moves_nothing_until_it_is_let_in(
    tmp_path: Path, is_away: bool
) -> None:
    """Of a group that others read by pop, whichever node it talks to, and at a new leader."""
    async with pair_at(tmp_path) as (leader, follower):
        node, reports = leader.node, follower.remoting.groups.reports
        members, broker = node.broker.group_members, node.broker
        receive = ReceiveRequest(group=GROUP, topic="orders", queue_id=-1, client_id="p")
        client = await follower.client()
        await client.send()
        queue = {"consumerGroup": GROUP, "topic": "orders", "queueId": "0", "bname": "g0-n1"}
        rows = [GroupOffset(topic="orders", queue_id=0, offset=1, newest_known=0)]
        commit = CommitOffsetsRequest(group=GROUP, offsets=rows, cluster_id="cluster")
        later = RetryLaterRequest(group=GROUP, messages=[FIRST], offsets=rows, cluster_id="cluster")
        consume = CommitConsumedRequest(cluster_id="cluster")
        consume.consumed.group = GROUP
        consume.consumed.offsets.add(topic="orders", queue_id=0, expected=-1, offset=1)
        await broker.pop.receive(receive)
        await client.heartbeat("m@1", GROUP)
        for is_new in (False, True):
            node.driver.term += is_new
            if is_new:
                await reports.round()
                with pytest.raises(NotReadyError):  # The old leader refused it.
                    await beat(leader, "s", is_new=True)
                with pytest.raises(NotReadyError):
                    await broker.pop.receive(receive)
                node.clock.now_ms += Limits().group_settle_ms
                await reports.round()
                with pytest.raises(GroupKindError, match="by pop"):
                    await beat(leader, "s", is_new=True)
                members.leave(GROUP, "s", node.clock.now_ms)
            (warning,) = (await broker.pop.receive(receive)).warnings
            assert "m@1 would read in another way" in warning
            for code in (codes.MEMBERS, codes.COMMIT):
                answer = await client.ask(code, queue | {"commitOffset": "1"})
                assert "by pop" in (answer.remark or "")
            assert (await client.pull(0, 0)).code == ResponseCode.NO_PERMISSION
            for call in (
                broker.groups.commit_offsets(commit),
                broker.consumed.commit_consumed(consume),
                broker.retry.retry_later(later),
            ):
                with pytest.raises(GroupKindError):
                    await call
        if is_away:  # The next leader never hears of the others.
            node.driver.term += 1
            await reports.round()
            node.clock.now_ms += Limits().group_settle_ms
        members.leave(GROUP, "p", node.clock.now_ms)
        await reports.round()
        outcome = await listed(client), (await client.pull(0, 0)).code
        assert outcome == (["m@1"], ResponseCode.PULL_NOT_FOUND)
        assert members.warnings_of(GROUP, node.clock.now_ms) == []
        await beat(leader, "a")


async def test_a_client_over_the_limit_is_refused_until_there_is_room(tmp_path: Path) -> None:
    async with gateway_at(tmp_path, limits=Limits(group_member_count_max=1)) as gateway:
        first, client = await gateway.client(), await gateway.client()
        await client.send()
        await first.heartbeat("a@1", GROUP)
        await client.heartbeat("b@1", GROUP)
        assert (await client.pull(0, 0)).code == ResponseCode.NO_PERMISSION
        assert "b@1" in gateway.node.broker.group_members.warnings_of(GROUP, 0)[0]
        await first.close()
        reports = gateway.remoting.groups.reports
        await eventually(lambda: not reports.is_refused(GROUP, "b@1"), "there is room")
        assert (await listed(client), (await client.pull(0, 0)).code) == (["b@1"], 0)


@pytest.mark.parametrize("kind", ["sharing", "classic", "popping"])
async def test_unlike_filters_are_told_whoever_has_them(tmp_path: Path, kind: str) -> None:
    """And alike ones are not, however they are written, and however long they are."""
    async with gateway_at(tmp_path) as gateway:
        broker, client = gateway.node.broker, await gateway.client()
        long = [f"tag-{number:02}" for number in range(20)]
        cases = [(["y", "x"], "x||y"), (long, "||".join(long[::-1])), (["x"], "y"), ([], "y")]
        for number, (tags, expression) in enumerate(cases):
            fields: dict[str, Any] = {"group": f"g{number}", "client_id": "a", "tags": tags}
            fields["cluster_id"] = "cluster"
            if kind == "popping":
                request = ReceiveRequest(topic="orders", queue_id=-1, **fields)
                await broker.pop.receive(request)
                kinds = {"m@1": MemberKind.POPPING}
                filters = {"m@1": {"orders": comparable(expression.split("||"), "")}}
                groups = {request.group: Reported(kinds, filters)}
                broker.group_members.report(7, groups, gateway.node.clock.now_ms, is_whole=True)
                warnings = (await broker.pop.receive(request)).warnings
            else:
                beat = HeartbeatRequest(topics=["orders"], **fields)
                await broker.groups.heartbeat(beat)
                if kind == "classic":
                    await client.heartbeat("m@1", beat.group, "orders", tags=expression)
                else:
                    beat.client_id, beat.tags[:] = "b", expression.split("||")
                warnings = (await broker.groups.heartbeat(beat)).warnings
            assert ["in unlike ways" in text for text in warnings] == [True] * (number > 1)


@pytest.mark.parametrize("is_away", [False, True])
async def test_two_classic_clients_with_one_id_are_told(tmp_path: Path, is_away: bool) -> None:
    """And one that comes back over another connection, or was alone again, is not."""
    async with pair_at(tmp_path) as (leader, follower):
        members = leader.node.broker.group_members
        main, twin = [await (follower if is_away else leader).client() for _ in range(2)]
        for client, is_told in ((main, 0), (main, 0), (twin, 0), (main, 1), (main, 1), (twin, 1)):
            await client.heartbeat("m@1", GROUP)
            matches = ["two clients" in text for text in members.warnings_of(GROUP, 0)]
            assert matches == [True] * is_told
        await main.close()
        async with asyncio.timeout(PATIENCE_S):
            while members.warnings_of(GROUP, 0):  # Until the node has seen the end.
                await twin.heartbeat("m@1", GROUP)
