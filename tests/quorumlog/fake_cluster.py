"""A scripted cluster: real servers of gRPC and frames, one shared log in memory, faults on demand.

Owns the rules that a client may rely on (order, idempotence, offsets), written down as simply as
can be; must not share code with the client. Faults are actions that the next appends meet.
"""
# ruff: noqa: N802 - gRPC names its methods.

import asyncio
import contextlib
import struct
import threading
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

import quorumlog
from quorumlog.errors import ERROR_TRAILER
from quorumlog.pb import (
    admin_pb2,
    common_pb2,
    consumer_pb2,
    log_pb2,
    transaction_pb2,
)
from store.record.message import decode_message
from tests import services
from tests.loopback import HOST
from tests.patience import PATIENCE_S
from tests.quorumlog.fake_frames import FakeFramedPort

STORE_HOST = bytes((127, 0, 0, 1)) + struct.pack(">i", 8081)
CLUSTER_ID = "fake"
SERVES_FRAMES = True
"""Whether new clusters have framed ports; tests of gRPC turn it off."""

Key = tuple[str, int]


@dataclass
class Entry:
    """One batch in the log."""

    request: log_pb2.AppendRequest
    response: log_pb2.AppendResponse


BREAK_BEFORE = "break the stream, the batch is not applied"
BREAK_AFTER = "break the stream, the batch is applied"
HANG_AFTER = "apply the batch and never answer"


def error(
    code: str,
    *,
    retryable: bool = False,
    outcome: int = common_pb2.OUTCOME_NOT_APPLIED,
    **fields: Any,
) -> common_pb2.Error:
    """Make an error as nodes send it."""
    return common_pb2.Error(
        code=code,
        message=f"{code} happened; do something",
        retryable=retryable,
        outcome=outcome,  # type: ignore[arg-type]
        **fields,
    )


class Node:
    """One node: a server, and what it answers."""

    def __init__(self, cluster: "FakeCluster", node_id: int) -> None:
        self.cluster, self.node_id = cluster, node_id
        self.port = 0
        self.server: Any = None
        self.framed: FakeFramedPort | None = FakeFramedPort(self) if SERVES_FRAMES else None
        self.advertises = True  # Its framed port.
        self.requests_total = 0
        self.least = 0  # Where the queues of this replica begin, if not earlier.
        self.gate = asyncio.Event()
        self.gate.set()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def min_offset(self, key: Key) -> int:
        return max(self.least, self.cluster.min_offsets.get(key, 0))

    @property
    def is_leader(self) -> bool:
        return self.cluster.leader_id == self.node_id

    async def start(self) -> None:
        self.server = grpc.aio.server(
            options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 16 << 20)]
        )
        services.add(self.server, log_pb2.DESCRIPTOR, self)
        services.add(self.server, consumer_pb2.DESCRIPTOR, self)
        services.add(self.server, transaction_pb2.DESCRIPTOR, self)
        services.add(self.server, admin_pb2.DESCRIPTOR, Admin(self))
        self.port = self.server.add_insecure_port(f"{HOST}:{self.port}")
        await self.server.start()
        if self.framed is not None:
            await self.framed.start()

    async def stop(self) -> None:
        """Cut all connections at once."""
        if self.framed is not None:
            await self.framed.stop()
        if self.server is not None:
            server, self.server = self.server, None
            await server.stop(None)

    def not_leader(self) -> common_pb2.Error:
        leader = self.cluster.nodes.get(self.cluster.hint or self.cluster.leader_id)
        return error(
            "node.not_leader",
            retryable=True,
            leader_id=leader.node_id if leader else 0,
            leader_address=leader.address if leader else "",
        )

    async def check(self, context: Any, *, leader: bool = True) -> None:
        await self.gate.wait()
        if leader and not self.is_leader:
            await abort(context, self.not_leader())

    # LogService.

    async def Route(self, request: Any, context: Any) -> Any:
        await self.gate.wait()
        cluster = self.cluster
        if request.cluster_id not in ("", CLUSTER_ID, cluster.cluster_id):
            await abort(context, error("node.wrong_cluster"))
        response = log_pb2.RouteResponse(
            cluster_id=cluster.cluster_id,
            node_id=self.node_id,
            term=cluster.terms.get(self.node_id, cluster.term),
            leader_id=cluster.beliefs.get(self.node_id, cluster.leader_id),
            batch_size_bytes_max=cluster.batch_size_bytes_max,
            body_size_bytes_max=4 << 20,
            group=cluster.group,
            framed_address=f":{self.framed.port}" if self.framed and self.advertises else "",
        )
        for other in cluster.neighbours:
            route = response.groups.add(group=other.group, kind="raft", term=other.term)
            other.name_nodes(route)
        cluster.name_nodes(response)
        for topic in request.topics:
            if topic in cluster.topics:
                response.topics.add(topic=topic, queue_count=cluster.topics[topic], permission=6)
        return response

    async def AppendStream(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            await self.gate.wait()
            self.requests_total += 1
            action = self.cluster.script.popleft() if self.cluster.script else None
            if callable(action):
                action = await action(self, request)
            if action == BREAK_BEFORE:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "scripted")
            if isinstance(action, common_pb2.Error):
                yield log_pb2.AppendResponse(error=action)
                continue
            if not self.is_leader:
                yield log_pb2.AppendResponse(error=self.not_leader())
                continue
            response = self.cluster.append(request)
            if action == BREAK_AFTER:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "scripted")
            if action == HANG_AFTER:
                await asyncio.Event().wait()
            if self.cluster.append_delay_s:
                await asyncio.sleep(self.cluster.append_delay_s)
            yield response

    async def Pull(self, request: Any, context: Any) -> Any:
        local = request.consistency == common_pb2.CONSISTENCY_LOCAL
        await self.check(context, leader=not local)
        cluster = self.cluster
        cluster.pulls.append(request)
        if request.topic not in cluster.topics:
            await abort(context, error("node.unknown_topic"))
        queue = cluster.queues.setdefault((request.topic, request.queue_id), [])
        least = self.min_offset((request.topic, request.queue_id))
        response = log_pb2.PullResponse(min_offset=least, node_id=self.node_id)
        response.applied_index = len(cluster.entries) - 1
        if request.wait_ms and request.offset >= len(queue):
            cluster.waits_total += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(request.wait_ms / 1000):
                    while request.offset >= len(queue):
                        await cluster.wait_appended()
        response.max_offset = len(queue)
        response.next_offset = request.offset
        response.newest_move = cluster.newest_move
        if request.offset < least:
            response.status = log_pb2.PULL_STATUS_OFFSET_TOO_SMALL
            response.next_offset = least
        elif request.offset > len(queue):
            response.status = log_pb2.PULL_STATUS_OFFSET_TOO_BIG
        elif request.offset == len(queue):
            response.status = log_pb2.PULL_STATUS_NO_NEW_MESSAGE
        else:
            self._fill(request, response, queue)
        return response

    def _fill(self, request: Any, response: Any, queue: list[bytes]) -> None:
        records: list[bytes] = []
        size_bytes, at = 0, request.offset
        while at < len(queue) and len(records) < (request.max_count or 1000):
            record = queue[at]
            if records and size_bytes + len(record) > (request.max_size_bytes or 1 << 20):
                break
            at += 1
            if request.tags and decode_message(record).properties.get("TAGS") not in request.tags:
                continue
            records.append(record)
            size_bytes += len(record)
        response.records = b"".join(records)
        response.record_count = len(records)
        response.next_offset = at
        response.status = (
            log_pb2.PULL_STATUS_FOUND if records else log_pb2.PULL_STATUS_NO_MATCHED_MESSAGE
        )

    async def QueueOffsets(self, request: Any, context: Any) -> Any:
        await self.check(context, leader=request.consistency != common_pb2.CONSISTENCY_LOCAL)
        response = log_pb2.QueueOffsetsResponse()
        for queue in request.queues:
            key = topic, queue_id = queue.topic, queue.queue_id
            response.queues.add(
                topic=topic,
                queue_id=queue_id,
                min_offset=self.min_offset(key),
                max_offset=len(self.cluster.queues.get(key, [])),
            )
        return response

    async def OffsetByTime(self, request: Any, context: Any) -> Any:
        await self.check(context)
        queue = self.cluster.queues.get((request.topic, request.queue_id), [])
        for offset, record in enumerate(queue):
            if decode_message(record).store_unix_ms >= request.unix_ms:
                return log_pb2.OffsetByTimeResponse(offset=offset)
        return log_pb2.OffsetByTimeResponse(offset=len(queue))

    async def GetMessage(self, request: Any, context: Any) -> Any:
        await self.check(context)
        for record in self.cluster.records():
            if decode_message(record).message_id == request.message_id:
                move = self.cluster.newest_move
                return log_pb2.RecordsResponse(records=record, record_count=1, newest_move=move)
        return await abort(context, error("node.message_not_found"))

    async def QueryByKey(self, request: Any, context: Any) -> Any:
        await self.check(context)
        matches = [
            (message.position, record)
            for record in self.cluster.records()
            for message in [decode_message(record)]
            if message.topic == request.topic
            and any(key.endswith(request.key[-2:]) for key in message.keys)
            and (not request.next_position or message.position < request.next_position)
        ]
        # Like an index of hashes, it finds more than was asked for; and two at a time.
        matches.sort()
        records = [record for _, record in matches[-2:]]
        return log_pb2.RecordsResponse(
            records=b"".join(records),
            record_count=len(records),
            next_position=matches[-2][0] if len(matches) > 2 else None,
            newest_move=self.cluster.newest_move,
        )

    # ConsumerService.

    async def Heartbeat(self, request: Any, context: Any) -> Any:
        await self.check(context)
        members = self.cluster.members.setdefault(request.group, [])
        if request.client_id not in members:
            members.append(request.client_id)
        return consumer_pb2.HeartbeatResponse(
            client_ids=sorted(members),
            generation=len(members),
            heartbeat_ms=50,
            session_ms=1000,
            moved=[
                consumer_pb2.GroupOffset(topic=q.topic, queue_id=q.queue_id, move=move)
                for q in request.queues
                if (move := self.cluster.moved.get((q.topic, q.queue_id)))
            ],
        )

    async def LeaveGroup(self, request: Any, context: Any) -> Any:
        await self.check(context)
        members = self.cluster.members.get(request.group, [])
        if request.client_id in members:
            members.remove(request.client_id)
        return consumer_pb2.LeaveGroupResponse()

    async def CommitOffsets(self, request: Any, context: Any) -> Any:
        await self.check(context)
        response = consumer_pb2.CommitOffsetsResponse(index=7)
        for o in request.offsets:
            key = request.group, o.topic, o.queue_id
            stored, newest = self.cluster.offsets.get(key, o.offset), o.newest_known
            move = self.cluster.moved.get(key[1:], 0)
            is_known = stored == o.offset or newest <= stored <= max(o.offset, newest)
            is_moved = o.HasField("move") and move not in (0, o.move)
            if o.HasField("newest_known") and (is_moved or not is_known):
                response.moved.add(topic=o.topic, queue_id=o.queue_id, offset=stored, move=move)
            else:
                self.cluster.offsets[key] = o.offset
        return response

    async def CommitConsumed(self, request: Any, context: Any) -> Any:
        await self.check(context)
        rows = {(request.consumed.group, o.topic, o.queue_id): o for o in request.consumed.offsets}
        if any(
            self.cluster.offsets.get(key, -1) != o.expected
            or (o.HasField("move") and self.cluster.moved.get(key[1:], 0) not in (0, o.move))
            for key, o in rows.items()
        ):
            await abort(context, error("node.conflict"))
        self.cluster.offsets.update({key: o.offset for key, o in rows.items()})
        return transaction_pb2.CommitConsumedResponse(index=7)

    async def FetchOffsets(self, request: Any, context: Any) -> Any:
        await self.check(context)
        response = consumer_pb2.FetchOffsetsResponse()
        stored = {key[1:]: o for key, o in self.cluster.offsets.items() if key[0] == request.group}
        places = [(q.topic, q.queue_id) for q in request.queues] or stored
        for topic, queue_id in places:
            offset = stored.get((topic, queue_id), -1)
            move = self.cluster.moved.get((topic, queue_id), 0)
            response.offsets.add(topic=topic, queue_id=queue_id, offset=offset, move=move)
        return response


class Admin:
    """The admin service of a node; as much of it as tests need."""

    def __init__(self, node: Node) -> None:
        self.node = node

    async def CreateTopic(self, request: Any, context: Any) -> Any:
        await self.node.check(context)
        topics = self.node.cluster.topics
        if request.must_be_new and request.topic in topics:
            await abort(context, error("node.topic_exists"))
        count = topics[request.topic] = request.queue_count or 4
        return admin_pb2.TopicInfo(topic=request.topic, queue_count=count, permission=6)

    async def ListTopics(self, request: Any, context: Any) -> Any:
        await self.node.check(context)
        response = admin_pb2.ListTopicsResponse()
        for topic, queue_count in sorted(self.node.cluster.topics.items()):
            response.topics.add(topic=topic, queue_count=queue_count, permission=6)
        return response

    async def NodeStatus(self, request: Any, context: Any) -> Any:
        await self.node.gate.wait()
        cluster = self.node.cluster
        return admin_pb2.NodeStatusResponse(
            cluster_id=CLUSTER_ID,
            node_id=self.node.node_id,
            role="leader" if self.node.is_leader else "follower",
            term=cluster.term,
            leader_id=cluster.leader_id,
            members=[
                admin_pb2.MemberStatus(node_id=node_id, is_voter=True)
                for node_id in cluster.nodes
                if node_id not in cluster.removed
            ],
        )

    async def TransferLeadership(self, request: Any, context: Any) -> Any:
        await self.node.check(context)
        self.node.cluster.elect(request.node_id)
        return admin_pb2.TransferLeadershipResponse(
            leader_id=request.node_id, term=self.node.cluster.term
        )

    async def HaPromote(self, request: Any, context: Any) -> Any:
        """Fail as a node does whose promotion gets no fence."""
        self.node.cluster.promotion_count += 1
        await asyncio.sleep(request.timeout_ms / 1000)
        await abort(
            context,
            error("ha.promotion_timeout", retryable=True, outcome=common_pb2.OUTCOME_UNKNOWN),
        )


class FakeCluster:
    """Nodes and the one log that they all share."""

    def __init__(self, count: int, *, group: str = "", first_id: int = 1) -> None:
        self.group = group
        self.cluster_id = CLUSTER_ID
        self.neighbours: list[FakeCluster] = []  # Groups that nodes tell of.
        self.nodes = {i: Node(self, i) for i in range(first_id, first_id + count)}
        self.batch_size_bytes_max = 4 << 20
        self.leader_id, self.term = first_id, 1
        self.hint = 0  # Whom nodes name that do not lead, if not the leader.
        self.beliefs: dict[int, int] = {}  # Who leads, as single nodes have it.
        self.terms: dict[int, int] = {}
        self.topics: dict[str, int] = {"orders": 4}
        self.script: deque[Any] = deque()  # What the next appends meet; None: nothing special.
        self.append_delay_s = 0.0
        self.pulls: list[Any] = []  # All that were asked.
        self.promotion_count = 0
        self.entries: list[Entry] = []
        self.producers: dict[int, dict[int, Entry]] = {}
        self.queues: dict[Key, list[bytes]] = {}
        self.min_offsets: dict[Key, int] = {}
        self.members: dict[str, list[str]] = {}
        self.removed: set[int] = set()  # Routes still name them, and the leader's members do not.
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.moved: dict[tuple[str, int], int] = {}
        self.position = 0
        self.waits_total = 0  # Pulls that found nothing at first.
        self.now_unix_ms = 1_700_000_000_000
        self._appended = asyncio.Event()

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self.nodes.values())

    @property
    def newest_move(self) -> int:
        return max(self.moved.values(), default=0)

    async def start(self) -> None:
        for node in self.nodes.values():
            await node.start()

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.stop()

    def name_nodes(self, route: Any) -> None:
        for node in self.nodes.values():
            route.nodes.add(node_id=node.node_id, address=node.address)

    def elect(self, node_id: int) -> None:
        self.term += 1
        self.leader_id = node_id
        self.beliefs.clear()

    def records(self) -> list[bytes]:
        return [record for queue in self.queues.values() for record in queue]

    def bodies(self) -> list[bytes]:
        """All bodies, in the order of the log."""
        return [m.body for e in self.entries for m in decode_all(e.request.records)]

    async def wait_appended(self) -> None:
        self._appended.clear()
        await self._appended.wait()

    def append(self, request: log_pb2.AppendRequest) -> log_pb2.AppendResponse:
        window: dict[int, Entry] = {}
        if request.producer_id:
            is_named = request.producer_id in self.producers
            if not is_named and request.sequence:
                return log_pb2.AppendResponse(error=error("node.unknown_producer"))
            window = self.producers.setdefault(request.producer_id, {})
            if request.sequence in window:
                again = log_pb2.AppendResponse()
                again.CopyFrom(window[request.sequence].response)
                again.is_duplicate = True
                return again
            if request.sequence != len(window):
                return log_pb2.AppendResponse(error=error("node.out_of_sequence", retryable=True))
        messages = decode_all(request.records)
        for message in messages:
            if message.topic not in self.topics:
                return log_pb2.AppendResponse(error=error("node.unknown_topic"))
            if message.queue_id >= self.topics[message.topic]:
                return log_pb2.AppendResponse(error=error("node.unknown_queue"))
        response = self._store(request, len(messages))
        entry = Entry(request, response)
        self.entries.append(entry)
        if request.producer_id:
            window[request.sequence] = entry
        self._appended.set()
        return response

    def _store(self, request: log_pb2.AppendRequest, count: int) -> log_pb2.AppendResponse:
        assert count == request.record_count, (count, request.record_count)
        self.now_unix_ms += 1
        self.position += 48
        response = log_pb2.AppendResponse(
            term=self.term,
            index=len(self.entries),
            position=self.position,
            store_unix_ms=self.now_unix_ms,
            durability=common_pb2.DURABILITY_QUORUM_DISK,
            synced_by=[1, 2],
            store_host=STORE_HOST,
            record_count=count,
            commit_us=123,
        )
        ranges: dict[Key, Any] = {}
        at, records = 0, bytearray(request.records)
        while at < len(records):
            message = decode_message(records, at)
            key = (message.topic, message.queue_id)
            queue = self.queues.setdefault(key, [])
            if key not in ranges:
                ranges[key] = response.queues.add(
                    topic=key[0], queue_id=key[1], first_offset=len(queue)
                )
            ranges[key].count += 1
            struct.pack_into(">qq", records, at + 20, len(queue), self.position)
            struct.pack_into(">q", records, at + 56, self.now_unix_ms)
            records[at + 64 : at + 72] = STORE_HOST
            queue.append(bytes(records[at : at + message.size_bytes]))
            self.position += message.size_bytes
            at += message.size_bytes
        return response


def decode_all(records: bytes) -> list[Any]:
    """Decode records with the store's codec."""
    messages, at = [], 0
    while at < len(records):
        message = decode_message(records, at)
        messages.append(message)
        at += message.size_bytes
    return messages


async def abort(context: Any, described: common_pb2.Error) -> None:
    """Fail a unary call as nodes do."""
    await context.abort(
        grpc.StatusCode.UNAVAILABLE,
        described.message,
        ((ERROR_TRAILER, described.SerializeToString()),),
    )


@asynccontextmanager
async def fake_cluster(count: int = 3) -> AsyncIterator[FakeCluster]:
    """Run a cluster of fakes; node 1 leads."""
    cluster = FakeCluster(count)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()


def connect(cluster: FakeCluster, **options: Any) -> quorumlog.Client:
    """Make a client with the addresses of all nodes."""
    return quorumlog.connect(cluster.bootstrap, **options)


@contextmanager
def threaded_cluster(count: int = 3) -> Iterator[FakeCluster]:
    """Run a cluster of fakes on a thread of its own."""
    loop, context = asyncio.new_event_loop(), fake_cluster(count)

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE_S)

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield run(context.__aenter__())
        run(context.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@asynccontextmanager
async def producing(
    count: int = 3, **options: Any
) -> AsyncIterator[tuple[FakeCluster, quorumlog.Producer]]:
    """Run a cluster of fakes, and a producer of a client with these options."""
    async with fake_cluster(count) as cluster, connect(cluster) as client:
        yield cluster, client.producer(**options)


async def fill(client: quorumlog.Client, lo: int, hi: int, *, queue_count: int = 4) -> None:
    """Send numbers in turn to the queues, each with a tag that says `even` or `odd`."""
    producer = client.producer(batch_count_max=7)
    for i in range(lo, hi):
        tag = "odd" if i % 2 else "even"
        await producer.enqueue("orders", b"%03d" % i, queue_id=i % queue_count, tag=tag)
    await producer.close()


@asynccontextmanager
async def filled(
    count: int, *, queue_count: int = 4
) -> AsyncIterator[tuple[FakeCluster, quorumlog.Client]]:
    """Run a cluster of fakes with so many messages, and a client."""
    async with fake_cluster() as cluster, connect(cluster) as client:
        await fill(client, 0, count, queue_count=queue_count)
        yield cluster, client


def port_of(cluster: FakeCluster) -> FakeFramedPort:
    """The framed port of the leader."""
    port = cluster.nodes[1].framed
    assert port is not None
    return port


def learned(client: quorumlog.Client, cluster: FakeCluster) -> Any:
    """What the client knows of the framed port of the leader."""
    address = cluster.nodes[1].address
    port = client._cluster.home.router.channels.get(address).framed
    assert port is not None
    return port
