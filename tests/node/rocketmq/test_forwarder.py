"""Calls that are sent on while the leader dies: what may have been done is not done again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import grpc
import pytest

from node.rocketmq import forwarder, hold
from node.rocketmq.callers import CLIENT_HEADER, SERVICE, Caller
from node.rocketmq.calls import ends
from node.rocketmq.clients import GatewayClients
from node.rocketmq.cluster import HERE, Leader
from node.rocketmq.protocol.statuses import CallRefusedError
from node.runtime.accounts import Accounts, Kind, limits_of, on_behalf_of
from quorumlog.pb import rocketmq_pb2 as pb
from quorumlog.pb.rocketmq_pb2 import Code, MessageType
from quorumlog.pb.transaction_pb2 import CheckTransactionsRequest
from tests.node.rocketmq.guards import TOKEN, forwarded, proofs_of
from tests.node.rocketmq.test_service import (
    CLIENT,
    GROUP,
    TOPIC,
    Gateway,
    ack,
    gateway_at,
    hide,
    messages_in,
    send,
    stored_count,
)
from tests.patience import PATIENCE_S, eventually


@pytest.fixture(autouse=True)
def holds_calls_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine needs longer than clients wait."""
    monkeypatch.setattr(hold, "HOLD_S", 15.0)


class Wire:
    """The connection to a leader. It can lose answers, and break as if the leader was killed."""

    def __init__(self, port: int) -> None:
        self._leader_port = port
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.loses_answers = False
        self.is_refusing = self.is_silent = False
        self.connection_count = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        self._writers.append(writer)
        if self.is_refusing:
            writer.transport.abort()
        if self.is_refusing or self.is_silent:
            return
        to_leader = await asyncio.open_connection("127.0.0.1", self._leader_port)
        self._writers.append(to_leader[1])
        for source, target, is_answer in (
            (reader, to_leader[1], False),
            (to_leader[0], writer, True),
        ):
            task = asyncio.create_task(self._pump(source, target, is_answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, is_answer: bool
    ) -> None:
        try:
            while data := await source.read(1 << 16):
                if not (is_answer and self.loses_answers):
                    target.write(data)
        except OSError:
            pass
        target.transport.abort()

    def kill(self) -> None:
        """Break all connections; what comes next finds a leader that answers."""
        self.loses_answers = False
        writers, self._writers = self._writers, []
        for writer in writers:
            writer.transport.abort()

    async def stop(self) -> None:
        self.kill()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Pair(NamedTuple):
    """A gateway that leads, one that sends calls on to it, and what is between them."""

    leader: Gateway
    follower: Gateway
    wire: Wire


@asynccontextmanager
async def pair_at(root: Path) -> AsyncIterator[Pair]:
    async with gateway_at(root / "1") as leader, gateway_at(root / "2") as follower:
        wire = Wire(leader.port)
        server = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        follower.node.driver.lose()
        context = follower.node.broker.context
        identity = context.identity._replace(addresses={2: address})
        context.identity = identity  # type: ignore[misc]
        assert follower.rocketmq._cluster.leader_of("g0") == Leader(False, address)
        try:
            yield Pair(leader, follower, wire)
        finally:
            await wire.stop()
            server.close()
            await server.wait_closed()


async def test_a_send_whose_answer_was_lost_is_not_sent_again(tmp_path: Path) -> None:
    async with pair_at(tmp_path) as pair:
        assert (await pair.follower.send(b"first")).status.code == Code.OK
        pair.wire.loses_answers = True
        sending = asyncio.ensure_future(pair.follower.send(b"second"))
        await eventually(lambda: stored_count(pair.leader) == 2, "the leader stored it")
        pair.wire.kill()
        status = (await sending).status
        assert status.code == Code.MASTER_PERSISTENCE_TIMEOUT
        assert "not known" in status.message
        assert stored_count(pair.leader) == 2, "it is there once"
        # gRPC fails the call before it knows that the connection is gone.
        (channel,) = pair.follower.rocketmq.forwarder._channels.values()
        ready = grpc.ChannelConnectivity.READY
        await eventually(lambda: channel.get_state() is not ready, "the end of the connection")
        assert (await pair.follower.send(b"third")).status.code == Code.OK
        assert stored_count(pair.leader) == 3


async def test_an_ack_whose_answer_was_lost_is_sent_again(tmp_path: Path) -> None:
    async with pair_at(tmp_path) as pair:
        await pair.leader.send(b"first")
        (message,) = messages_in(await pair.follower.receive())
        handle = message.system_properties.receipt_handle
        counters, change = pair.leader.rocketmq.counters, hide(handle, seconds=60)
        for name, request in (("ChangeInvisibleDuration", change), ("AckMessage", ack(handle))):
            pair.wire.loses_answers = True
            calling = asyncio.ensure_future(pair.follower.call(name, request))
            ended = partial(counters.ended.__getitem__, f"MessagingService/{name}")
            await eventually(ended, "it is done")
            pair.wire.kill()
            assert (await calling).status.code == Code.OK
            assert counters.begun[f"MessagingService/{name}"] == 2
        assert pair.leader.node.broker.pop.shared.table.in_flight_count == 0


async def test_a_message_that_is_given_up_is_not_given_up_again(tmp_path: Path) -> None:
    async with pair_at(tmp_path) as pair:
        await pair.leader.send(b"first")
        (message,) = messages_in(await pair.follower.receive())
        request = pb.ForwardMessageToDeadLetterQueueRequest(
            group=GROUP, topic=TOPIC, receipt_handle=message.system_properties.receipt_handle
        )
        pair.wire.loses_answers = True
        name = "ForwardMessageToDeadLetterQueue"
        calling = asyncio.ensure_future(pair.follower.call(name, request))
        shared = pair.leader.node.broker.pop.shared
        await eventually(lambda: shared.dead_total == 1, "it is dead")
        pair.wire.kill()
        assert (await calling).status.code == Code.PROXY_TIMEOUT
        begun = pair.leader.rocketmq.counters.begun
        assert begun[f"MessagingService/{name}"] == 1


@pytest.mark.parametrize("is_silent", [False, True])
async def test_a_send_waits_for_a_leader_that_cannot_be_connected_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_silent: bool
) -> None:
    """Nothing of it was sent, so it is tried again: to the same one, or the next. A machine that is
    cut off does not even refuse a connection."""
    async with pair_at(tmp_path) as pair:
        pair.wire.is_silent, pair.wire.is_refusing = is_silent, not is_silent
        sending = asyncio.ensure_future(pair.follower.send(b"first"))
        count = 1 if is_silent else 6
        await eventually(lambda: pair.wire.connection_count >= count, "one attempt after another")
        assert stored_count(pair.leader) == 0
        pair.follower.node.driver.lead()  # As the next leader.
        assert (await sending).status.code == Code.OK
        assert stored_count(pair.leader) == 0
        pair.follower.node.driver.lose()
        monkeypatch.setattr(hold, "HOLD_S", 0.2)
        status = (await pair.follower.send(b"second")).status
        assert status.code == Code.HA_NOT_AVAILABLE
        assert stored_count(pair.leader) == 0


async def test_calls_of_one_address_leave_room_on_the_connection_to_the_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarder, "CALLS_OF_HOST_MAX", 2)
    async with pair_at(tmp_path) as pair:
        pair.leader.node.driver.is_holding = True
        sends = [asyncio.ensure_future(pair.follower.send(b"x")) for _ in range(2)]
        await eventually(lambda: len(pair.leader.node.driver.pending) == 2, "they are on the way")
        status = (await pair.follower.send(b"one more")).status
        assert (status.code, "limit" in status.message) == (Code.TOO_MANY_REQUESTS, True)
        (key,) = pair.follower.rocketmq.forwarder._under_way
        assert key[1] == "127.0.0.1", "others have a count of their own"
        pair.leader.node.driver.release()
        assert [(await send).status.code for send in sends] == [Code.OK] * 2
        assert not pair.follower.rocketmq.forwarder._under_way


def test_calls_of_one_address_leave_room_at_a_leader_that_takes_few() -> None:
    unused: Any = None
    node_forwarder = forwarder.Forwarder(unused, None, unused)
    sent = Caller("SendMessage", b"x", {}, 0, 0, "10.0.0.9:77", "c")
    refused = pytest.raises(CallRefusedError, match="2 calls of one")
    rooms = [node_forwarder._room(sent, "leader") for _ in range(3)]
    with on_behalf_of(Accounts(limits_of(48)).open("10.0.0.9")), refused:
        for room in rooms:
            room.__enter__()


async def test_what_a_node_asks_takes_no_call_of_the_clients_it_forwards() -> None:
    held = asyncio.Event()

    async def ask(_request: bytes, _context: object) -> AsyncIterator[bytes]:
        yield b""
        await held.wait()

    async def answer(request: bytes, _context: object) -> bytes:
        return request

    questions = {"CheckTransactions": grpc.unary_stream_rpc_method_handler(ask)}
    sends = {"SendMessage": grpc.unary_unary_rpc_method_handler(answer)}
    leader = grpc.aio.server(options=[("grpc.max_concurrent_streams", 2)])
    for service, methods in (("quorumlog.v1.TransactionService", questions), (SERVICE, sends)):
        handler = grpc.method_handlers_generic_handler(service, methods)
        leader.add_generic_rpc_handlers((handler,))
    address = f"127.0.0.1:{leader.add_insecure_port('127.0.0.1:0')}"
    await leader.start()
    cluster: Any = SimpleNamespace(
        leader_of=lambda _group: Leader(False, address), node_at=lambda _address: 2
    )
    node_forwarder = forwarder.Forwarder(cluster, None, proofs_of(b""))
    streams = [node_forwarder.questions(address, CheckTransactionsRequest()) for _ in range(2)]
    try:
        for question in streams:
            await anext(question)
        deadline_s = asyncio.get_running_loop().time() + PATIENCE_S
        call = Caller("SendMessage", b"x", {}, 0, deadline_s, "10.0.0.9:77", "c")
        assert await node_forwarder._unary(call, None, address) == b"x"
    finally:
        held.set()
        await node_forwarder.stop()
        await leader.stop(0)


def test_each_address_has_its_producers_asked_whatever_others_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ends, "TOPIC_COUNT_MAX", 4)
    clients, accounts, names = GatewayClients(), Accounts(), "abcdefghx"
    hosts = {"10.0.0.1": "abcdx", "10.0.0.2": "efgh", "10.0.0.3": "x", "10.0.0.4": "z"}
    for host, topics in hosts.items():
        with on_behalf_of(accounts.open(host)):
            client = clients.seen(host)
            client.commands = asyncio.Queue()
            clients.sends_to(client, frozenset(topics))
    cluster: Any = SimpleNamespace(
        topic_names=lambda: names,
        groups_of=lambda found: [("g0", topic) for topic in found],
        leader_of=lambda _group: HERE,
    )
    unused: Any = None
    asker = ends.EndCalls(cluster, clients, unused, unused, unused)
    wanted = {topic for _, topic in asker._wanted()}
    assert len(wanted) == 4
    assert "x" in wanted
    assert "z" not in wanted, "there is no such topic"
    assert wanted & set("efgh")
    for host in hosts:
        clients.left(host)
    assert not asker._wanted()
    assert not clients._topics_of_host


async def test_only_a_node_names_the_client_that_pays_for_a_call(tmp_path: Path) -> None:
    named = (*CLIENT, (CLIENT_HEADER, "10.0.0.9:77"))
    half = send(message_type=MessageType.TRANSACTION)
    async with pair_at(tmp_path) as pair:
        leader = pair.leader
        right, wrong = (
            forwarded("SendMessage", half, *named, token=token) for token in (TOKEN, bytes(16))
        )

        def held(kind: Kind) -> dict[str, int]:
            return {host: one.counts[kind] for host, one in leader.accounts.addresses.items()}

        for metadata in (named, wrong, right):
            answer = await leader.call("SendMessage", half, metadata)
            assert answer.status.code == Code.OK
        assert held(Kind.TRANSACTIONS) == {"127.0.0.1": 2, "10.0.0.9": 1}
        await leader.send()
        await leader.receive(metadata=lambda given: forwarded("ReceiveMessage", given, *named))
        assert held(Kind.DELIVERIES) == {"127.0.0.1": 0, "10.0.0.9": 1}
        await pair.follower.call("SendMessage", half, wrong)
        stranger, client = leader.accounts._remotes.items()
        assert (stranger[0], client[0].rpartition(":")[0]) == ("10.0.0.9:77", "127.0.0.1")
        assert client[1].counts[Kind.TRANSACTIONS] == 1
