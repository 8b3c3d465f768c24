"""The methods of the protocol over a real broker and real gRPC: each refusal has its code."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from node.config.types import Address
from node.rocketmq import hold
from node.rocketmq.callers import SERVICE
from node.rocketmq.calls.renewals import RENEWED_MS
from node.rocketmq.cluster import GroupNode, Share
from node.rocketmq.routes import Routes, endpoints_of
from node.rocketmq.service import RocketMq
from node.runtime.accounts import Accounts
from node.services.calls import ServedCalls
from node.services.server import GrpcServer
from node.users.guard import Guard
from quorumlog.pb import rocketmq_pb2 as pb
from quorumlog.pb.pop_pb2 import DescribePopRequest
from quorumlog.pb.rocketmq_pb2 import ClientType, Code, FilterType, MessageType
from tests.node.broker_fakes import Fixture, node_at
from tests.node.rocketmq.guards import guard_of, proofs_of
from tests.patience import PATIENCE_S

TOPIC = pb.Resource(name="orders")
GROUP = pb.Resource(name="readers")
QUEUE = pb.MessageQueue(topic=TOPIC)
CLIENT = (("x-mq-client-id", "client@1"),)
HANDLE = "2.g0.none"
HEARTBEAT = pb.HeartbeatRequest(client_type=ClientType.PUSH_CONSUMER, group=GROUP)


class Gateway(NamedTuple):
    """A gateway and a connection to it."""

    node: Fixture
    rocketmq: RocketMq
    channel: grpc.aio.Channel
    port: int
    accounts: Accounts

    async def call(self, name: str, request: Any, metadata: Any = CLIENT) -> Any:
        """Call a unary method."""
        read = getattr(pb, f"{name}Response").FromString
        method = self.channel.unary_unary(f"/{SERVICE}/{name}", _written, read)
        return await method(request, metadata=metadata, timeout=PATIENCE_S)

    async def receive(
        self, timeout_s: float = PATIENCE_S, metadata: Any = CLIENT, **fields: Any
    ) -> list[Any]:
        """Call ReceiveMessage and return all elements; `metadata` may make that of a request."""
        fields.setdefault("group", GROUP)
        fields.setdefault("message_queue", QUEUE)
        fields.setdefault("batch_size", 32)
        fields.setdefault("invisible_duration", Duration(seconds=30))
        fields.setdefault("long_polling_timeout", Duration())
        read = pb.ReceiveMessageResponse.FromString
        method = self.channel.unary_stream(f"/{SERVICE}/ReceiveMessage", _written, read)
        request = pb.ReceiveMessageRequest(**fields)
        shown = metadata(request) if callable(metadata) else metadata
        return [e async for e in method(request, metadata=shown, timeout=timeout_s)]

    async def send(self, body: bytes = b"x", **system: Any) -> Any:
        """Send one message to topic orders."""
        return await self.call("SendMessage", send(body, **system))


def _written(request: Any) -> bytes:
    return bytes(request.SerializeToString())


def message(body: bytes = b"x", topic: str = "orders", **system: Any) -> pb.Message:
    system.setdefault("message_id", "01" * 17)
    properties = pb.SystemProperties(**system)
    return pb.Message(topic=pb.Resource(name=topic), system_properties=properties, body=body)


@asynccontextmanager
async def gateway_at(root: Path, guard: Guard | None = None) -> AsyncIterator[Gateway]:
    """A gateway over one node with topic orders."""
    sizes: dict[str, Any] = {"batch_size_bytes_max": 1 << 18, "body_size_bytes_max": 1 << 16}
    async with node_at(root, file_size_bytes=1 << 20, **sizes) as node:
        calls = ServedCalls(on_fatal=_raise)
        node.broker.has_users = guard is not None
        rocketmq = RocketMq(node.broker, calls, None, lambda _node: True, proofs_of(), guard)
        accounts = Accounts()
        server = GrpcServer(accounts)
        port = server.bind(Address("127.0.0.1", 0))
        await server.start({}, [rocketmq.handler()])
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield Gateway(node, rocketmq, channel, port, accounts)
        finally:
            await server.stop(0)
            await rocketmq.stop()


def stored_count(gateway: Gateway) -> int:
    """Return the number of messages of topic orders."""
    store = gateway.node.log.store
    return sum(hi - lo for lo, hi in (store.reads.queue_range("orders", q) for q in range(4)))


def messages_in(elements: list[Any]) -> list[Any]:
    return [element.message for element in elements if element.HasField("message")]


def _raise(error: BaseException) -> None:
    raise error


def send(body: bytes = b"x", topic: str = "orders", **system: Any) -> pb.SendMessageRequest:
    return pb.SendMessageRequest(messages=[message(body, topic, **system)])


def half(seconds: int, nanos: int) -> pb.SendMessageRequest:
    """A half message with this time until its producer is asked."""
    pause, kind = Duration(seconds=seconds, nanos=nanos), MessageType.TRANSACTION
    return send(message_type=kind, orphaned_transaction_recovery_duration=pause)


def ack(*handles: str) -> pb.AckMessageRequest:
    entries = [pb.AckMessageEntry(receipt_handle=handle) for handle in handles]
    return pb.AckMessageRequest(group=GROUP, topic=TOPIC, entries=entries)


def hide(handle: str = HANDLE, **time: int) -> pb.ChangeInvisibleDurationRequest:
    """A change of the invisible time of a message to seconds and nanos, or without one."""
    change = pb.ChangeInvisibleDurationRequest(group=GROUP, topic=TOPIC, receipt_handle=handle)
    if time:
        change.invisible_duration.MergeFrom(Duration(**time))
    return change


def end(transaction_id: str) -> pb.EndTransactionRequest:
    commit = pb.TransactionResolution.COMMIT
    return pb.EndTransactionRequest(topic=TOPIC, transaction_id=transaction_id, resolution=commit)


NONE, LONG, FAR = pb.Resource(name="none"), "x" * 20_000, Timestamp(seconds=1 << 62)
NOWHERE = pb.Endpoints(addresses=[pb.Address(host="", port=1)])
SYSTEM = pb.HeartbeatRequest(
    client_type=ClientType.PRODUCER, group=pb.Resource(name="CID_RMQ_SYS_A")
)
DEAD = pb.ForwardMessageToDeadLetterQueueRequest(group=GROUP, topic=TOPIC, receipt_handle=HANDLE)
REFUSED: list[tuple[Any, Code]] = [
    (pb.QueryRouteRequest(topic=pb.Resource(name="a b")), Code.ILLEGAL_TOPIC),
    (pb.QueryRouteRequest(topic=NONE), Code.TOPIC_NOT_FOUND),
    (pb.QueryRouteRequest(topic=TOPIC, endpoints=NOWHERE), Code.ILLEGAL_ACCESS_POINT),
    (pb.QueryAssignmentRequest(topic=TOPIC), Code.ILLEGAL_CONSUMER_GROUP),
    (pb.QueryAssignmentRequest(topic=NONE, group=GROUP), Code.TOPIC_NOT_FOUND),
    (pb.HeartbeatRequest(), Code.UNRECOGNIZED_CLIENT_TYPE),
    (SYSTEM, Code.ILLEGAL_CONSUMER_GROUP),
    (pb.SendMessageRequest(), Code.MESSAGE_CORRUPTED),
    (pb.SendMessageRequest(messages=[message(), message(topic="other")]), Code.MESSAGE_CORRUPTED),
    (send(topic="none"), Code.TOPIC_NOT_FOUND),
    (send(topic="rmq_sys_quorumlog"), Code.ILLEGAL_TOPIC),
    (send(topic="%RETRY%readers"), Code.ILLEGAL_TOPIC),
    (send(bytes(1 << 17)), Code.MESSAGE_BODY_TOO_LARGE),
    (send(tag=LONG), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    (send(message_group="g" * 64), Code.ILLEGAL_MESSAGE_GROUP),
    (send(born_timestamp=FAR), Code.BAD_REQUEST),
    (send(delivery_timestamp=FAR), Code.ILLEGAL_DELIVERY_TIME),
    (send(delivery_timestamp=Timestamp(seconds=4_000_000_000)), Code.ILLEGAL_DELIVERY_TIME),
    (half(7_200, 0), Code.BAD_REQUEST),
    (half(3_600, 1_000_000), Code.BAD_REQUEST),
    (half(1, -1), Code.BAD_REQUEST),
    (half(0, -(10**6)), Code.BAD_REQUEST),
    (half(1, 10**9), Code.BAD_REQUEST),
    (ack(), Code.BAD_REQUEST),
    (ack(*[HANDLE] * 1_025), Code.BAD_REQUEST),
    (ack("never"), Code.INVALID_RECEIPT_HANDLE),
    (ack(HANDLE), Code.INVALID_RECEIPT_HANDLE),
    (hide(), Code.INVALID_RECEIPT_HANDLE),
    (hide(seconds=13 * 3_600), Code.ILLEGAL_INVISIBLE_TIME),
    (hide(seconds=1, nanos=-1), Code.ILLEGAL_INVISIBLE_TIME),
    (hide(seconds=-1, nanos=1), Code.ILLEGAL_INVISIBLE_TIME),
    (hide(seconds=1, nanos=10**9), Code.ILLEGAL_INVISIBLE_TIME),
    (DEAD, Code.INVALID_RECEIPT_HANDLE),
    (pb.EndTransactionRequest(topic=TOPIC), Code.INVALID_TRANSACTION_ID),
    (end("2.g0.12345"), Code.INVALID_TRANSACTION_ID),
    (end("2.g0." + "9" * 30), Code.INVALID_TRANSACTION_ID),
    (pb.RecallMessageRequest(topic=TOPIC), Code.BAD_REQUEST),
    (pb.RecallMessageRequest(topic=TOPIC, recall_handle="2.g0.zz.id"), Code.BAD_REQUEST),
]


async def test_every_refusal_has_its_code(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        for request, code in REFUSED:
            name = type(request).__name__.removesuffix("Request")
            status = (await gateway.call(name, request)).status
            assert status.code == code, f"{name}: {Code.Name(status.code)} {status.message}"
            assert status.message
        assert stored_count(gateway) == 0
        assert (await gateway.send()).status.code == Code.OK, "the gateway goes on"


async def test_receives_that_cannot_be(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        sql = pb.FilterExpression(type=FilterType.SQL, expression="a >")
        tag = pb.FilterExpression(type=FilterType.TAG, expression=" || ")
        long = pb.FilterExpression(expression=LONG)
        for fields, code in (
            ({"group": pb.Resource(name="")}, Code.ILLEGAL_CONSUMER_GROUP),
            ({"message_queue": pb.MessageQueue(topic=NONE)}, Code.TOPIC_NOT_FOUND),
            ({"message_queue": pb.MessageQueue()}, Code.ILLEGAL_TOPIC),
            ({"filter_expression": sql}, Code.ILLEGAL_FILTER_EXPRESSION),
            ({"filter_expression": tag}, Code.ILLEGAL_FILTER_EXPRESSION),
            ({"filter_expression": long}, Code.ILLEGAL_FILTER_EXPRESSION),
            ({"invisible_duration": Duration()}, Code.ILLEGAL_INVISIBLE_TIME),
            ({"invisible_duration": Duration(seconds=50_000)}, Code.ILLEGAL_INVISIBLE_TIME),
        ):
            elements = await gateway.receive(**fields)
            assert [e.status.code for e in elements] == [code], f"{fields}: {elements}"


async def test_receivers_may_filter_by_properties(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        for number in range(6):
            request = send(b"%d" % number)
            request.messages[0].user_properties["a"] = str(number)
            await gateway.call("SendMessage", request)
        sql = pb.FilterExpression(type=FilterType.SQL, expression="a > 3 OR a = 1")
        elements = await gateway.receive(filter_expression=sql)
        bodies = [message.body for message in messages_in(elements)]
        assert sorted(bodies) == [b"1", b"4", b"5"]


async def test_a_delivery_has_all_that_clients_need_in_order(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        sent = (await gateway.send(b"body", tag="red")).entries[0]
        assert sent.status.code == Code.OK
        assert sent.message_id == "01" * 17
        assert sent.transaction_id
        elements = await gateway.receive()
        kinds = [element.WhichOneof("content") for element in elements]
        assert kinds == ["status", "message", "delivery_timestamp"]
        system = elements[1].message.system_properties
        assert system.delivery_attempt == 1
        assert system.receipt_handle
        assert system.body_digest.checksum
        assert system.body_encoding
        nothing = await gateway.receive()
        assert nothing[0].status.code == Code.MESSAGE_NOT_FOUND
        done = ack(system.receipt_handle)
        done.entries[0].message_id = "m"
        for _ in range(2):  # Clients repeat an ack whose answer was lost.
            answer = await gateway.call("AckMessage", done)
            assert answer.status.code == Code.OK
            assert answer.entries[0].message_id == "m"
        answer = await gateway.call("AckMessage", ack(system.receipt_handle, HANDLE))
        assert answer.status.code == Code.MULTIPLE_RESULTS
        codes = [entry.status.code for entry in answer.entries]
        assert codes == [Code.OK, Code.INVALID_RECEIPT_HANDLE]


async def test_after_the_last_attempt_a_message_is_a_dead_letter(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        await gateway.send(b"poison")
        attempts = []
        while True:
            elements = await gateway.receive()
            if elements[0].status.code == Code.MESSAGE_NOT_FOUND:
                break
            system = elements[1].message.system_properties
            attempts.append(system.delivery_attempt)
            await gateway.call("ChangeInvisibleDuration", hide(system.receipt_handle))
        assert attempts == list(range(1, 18))
        queue = pb.MessageQueue(topic=pb.Resource(name="%DLQ%readers"))
        undertakers, wait = pb.Resource(name="undertakers"), Duration(seconds=1)
        fields: dict[str, Any] = {"message_queue": queue, "group": undertakers}
        fields["long_polling_timeout"] = wait
        while not (dead := messages_in(await gateway.receive(**fields))):
            pass  # It is moved beside.
        origin = dead[0].system_properties.dead_letter_queue
        assert (dead[0].body, origin.topic, origin.message_id) == (b"poison", "orders", "01" * 17)


async def test_a_push_consumer_that_ends_gives_its_messages_back(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        await gateway.send()
        push: dict[str, Any] = {"auto_renew": True, "attempt_id": "attempt-1"}
        first = await gateway.receive(**push)
        again = await gateway.receive(**push)
        handles = {e[1].message.system_properties.receipt_handle for e in (first, again)}
        assert len(handles) == 1, "the same attempt gets the same messages"
        assert len(gateway.rocketmq.renewals) == 1
        assert (await gateway.receive())[0].status.code == Code.MESSAGE_NOT_FOUND
        foreign = ack(*handles)
        foreign.group.name = "others"
        (entry,) = (await gateway.call("AckMessage", foreign)).entries
        assert entry.status.code == Code.INVALID_RECEIPT_HANDLE
        assert "it is not one of group 'others'" in entry.status.message
        change = pb.ChangeInvisibleDurationRequest(
            group=foreign.group, topic=TOPIC, receipt_handle=foreign.entries[0].receipt_handle
        )
        change.invisible_duration.FromSeconds(10)
        await gateway.call("ChangeInvisibleDuration", change)
        assert len(gateway.rocketmq.renewals) == 1, "another group ends nothing"
        end = pb.NotifyClientTerminationRequest(group=GROUP)
        assert (await gateway.call("NotifyClientTermination", end)).status.code == Code.OK
        assert len(gateway.rocketmq.renewals) == 0
        elements = await gateway.receive(long_polling_timeout=Duration(seconds=20))
        assert elements[1].message.system_properties.delivery_attempt == 2


async def test_deliveries_of_a_live_push_consumer_are_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.rocketmq.calls.renewals.EVERY_S", 0.05)
    async with gateway_at(tmp_path) as gateway:
        clock = gateway.node.clock
        await gateway.send()
        await gateway.receive(auto_renew=True)
        described = DescribePopRequest(group="readers")
        visible = []
        for _ in range(3):
            clock.now_ms += RENEWED_MS // 2
            before = gateway.rocketmq.renewals.renewed_total
            async with asyncio.timeout(PATIENCE_S):
                while gateway.rocketmq.renewals.renewed_total == before:
                    await gateway.call("Heartbeat", HEARTBEAT)
            pop = await gateway.node.broker.pop.describe_pop(described)
            visible.append(pop.queues[0].first_visible_unix_ms)
        assert visible == sorted(set(visible)), "later each time"
        assert (await gateway.receive())[0].status.code == Code.MESSAGE_NOT_FOUND


async def test_without_a_client_id_or_a_key_nobody_is_served(tmp_path: Path) -> None:
    async with gateway_at(tmp_path, guard_of({"ak": ("admin",)})) as gateway:
        request = pb.QueryRouteRequest(topic=TOPIC)
        answer = await gateway.call("QueryRoute", request, metadata=())
        assert answer.status.code == Code.CLIENT_ID_REQUIRED
        answer = await gateway.call("QueryRoute", request)
        assert answer.status.code == Code.UNAUTHORIZED


async def test_a_stream_of_telemetry_ends_with_ok_when_the_client_is_done(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        method = gateway.channel.stream_stream(f"/{SERVICE}/Telemetry")
        stream: Any = method(metadata=CLIENT, timeout=PATIENCE_S)
        settings = pb.Settings(publishing=pb.Publishing(topics=[TOPIC]))
        await stream.write(pb.TelemetryCommand(settings=settings).SerializeToString())
        answer = pb.TelemetryCommand.FromString(await stream.read())
        assert answer.status.code == Code.OK
        assert answer.settings.publishing.max_body_size > 0
        assert list(gateway.rocketmq.clients.producer_topics({"orders"})) == ["orders"]
        await stream.write(b"\xff no command")
        bad = pb.Settings()
        await stream.write(pb.TelemetryCommand(settings=bad).SerializeToString())
        answer = pb.TelemetryCommand.FromString(await stream.read())
        assert answer.status.code == Code.BAD_REQUEST
        failed = gateway.rocketmq.counters.failed
        assert failed["MessagingService/Telemetry", "BAD_REQUEST"] == 1
        await stream.done_writing()
        rest = 0
        while await stream.read() is not grpc.aio.EOF:
            rest += 1
        assert rest <= 1, "the settings once more, at most"
        assert await stream.code() is grpc.StatusCode.OK
        assert list(gateway.rocketmq.clients.producer_topics({"orders"})) == []


async def test_bytes_that_are_no_request_are_told(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        method = gateway.channel.unary_unary(f"/{SERVICE}/SendMessage")
        data = await method(b"\xff\xff\xff", metadata=CLIENT, timeout=PATIENCE_S)
        answer = pb.SendMessageResponse.FromString(data)
        assert answer.status.code == Code.BAD_REQUEST
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await gateway.channel.unary_unary(f"/{SERVICE}/PullMessage")(b"", metadata=CLIENT)
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_without_a_leader_a_call_is_held_then_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway_at(tmp_path) as gateway:
        driver = gateway.node.driver
        driver.lose(leader_id=0)
        sending = asyncio.create_task(gateway.send())
        done, _ = await asyncio.wait({sending}, timeout=0.3)
        assert not done, "it waits for an election"
        driver.lead()
        assert (await sending).status.code == Code.OK
        driver.lose(leader_id=0)
        monkeypatch.setattr(hold, "HOLD_S", 0.2)
        assert (await gateway.send()).status.code == Code.HA_NOT_AVAILABLE


def test_endpoints_name_other_nodes_only_where_all_are_ipv4() -> None:
    def addresses(*given: str) -> list[str]:
        endpoints = endpoints_of(given[0], given[1:])
        return [f"{address.host}:{address.port}" for address in endpoints.addresses]

    assert addresses("127.0.0.1:1", "127.0.0.2:2") == ["127.0.0.1:1", "127.0.0.2:2"]
    assert addresses("127.0.0.1:1", "two.example:2") == ["127.0.0.1:1"]
    assert addresses("one.example:1", "127.0.0.2:2") == ["one.example:1"]


@pytest.mark.parametrize(
    ("language", "count"), [("JAVA", 3), ("GO", 3), ("PYTHON", 3), ("NODE_JS", 1)]
)
def test_a_broker_lists_its_own_address_first_and_then_its_group(language: str, count: int) -> None:
    places = tuple(GroupNode(n, f"127.0.0.{n}:8081", n == 2) for n in (1, 2, 3))
    cluster = SimpleNamespace(shares=lambda _: [Share("g0", 4, 6, "MIXED", places)])
    routes = Routes(cluster)  # type: ignore[arg-type]  # The one method that it uses.
    queues = routes.query_route(pb.QueryRouteRequest(topic=TOPIC), language).message_queues
    first = {q.broker.name: q.broker.endpoints.addresses[0].host for q in queues}
    assert first == {f"g0.{n}": f"127.0.0.{n}" for n in (1, 2, 3)}
    assert {len(q.broker.endpoints.addresses) for q in queues} == {count}
    request = pb.QueryAssignmentRequest(topic=TOPIC, group=GROUP)
    assignments = routes.query_assignment(request, language).assignments
    assert {len(a.message_queue.broker.endpoints.addresses) for a in assignments} == {count}
