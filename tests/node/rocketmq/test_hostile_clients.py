"""The gateway: records of other producers, input without a bound, and leaks."""

import asyncio
import contextvars
import hashlib
import struct
import threading
import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import cast
from unittest.mock import AsyncMock, Mock

import pytest

from node.errors.common import BusyError
from node.errors.pop import StaleHandleError
from node.rocketmq.callers import CLIENT_HEADER, SERVICE
from node.rocketmq.calls.renewals import AT_ONCE, RENEWED_MS, Renewals
from node.rocketmq.clients import (
    ALIVE_S,
    QUESTION_SHARES,
    QUESTION_SIZE_BYTES_MAX,
    SILENT_S_MAX,
    GatewayClients,
)
from node.rocketmq.protocol.messages import (
    PLAIN_SIZE_BYTES_MAX,
    SMALL_SIZE_BYTES_MAX,
    Deliveries,
    from_record,
    timestamp,
)
from node.rocketmq.protocol.statuses import CallRefusedError
from node.rocketmq.telemetry import Telemetry
from node.runtime.accounts import Accounts, Kind, Limit, on_behalf_of
from node.runtime.turn import Turn
from node.users.calling import set_calling
from node.users.guard import Guard
from quorumlog.pb import rocketmq_pb2 as pb
from quorumlog.pb.log_pb2 import AppendRequest
from quorumlog.pb.pop_pb2 import ChangeInvisibleRequest, ChangeInvisibleResponse
from quorumlog.pb.rocketmq_pb2 import Code, Encoding
from quorumlog.records.compression import IS_COMPRESSED, ZLIB, decompress
from store.record.message import decode_message, encode_message
from tests.node.rocketmq.guards import forwarded
from tests.node.rocketmq.test_service import (
    CLIENT,
    HEARTBEAT,
    TOPIC,
    gateway_at,
    messages_in,
)
from tests.patience import PATIENCE_S, eventually

STRANGE = [
    b"__DELIVERY_MS\x01soon\x02",
    b"__DELIVERY_MS\x01" + b"9" * 30 + b"\x02",
    b"__DELIVERY_MS\x015\x02__DELIVERY_NANOS\x01q\x02",
    b"__BORN_NANOS\x01x\x02",
    b"__BORN_NANOS\x0199999999999\x02",
    b"__BORN_NANOS\x01\xd9\xa3\x02",
    b"TAGS\x01\xff\xfe\x02",
    b"name\xff\x01value\x02",
    b"UNIQ_KEY\x01\xed\xa0\x80\x02",
]
"""Properties that a producer of another protocol may write."""


def record_with(properties: bytes) -> bytes:
    """A record of topic orders with these bytes for properties."""
    plain = encode_message("orders", 0, b"strange")
    head = plain[: -len(struct.pack(">H", 0))]
    made = head + struct.pack(">H", len(properties)) + properties
    return struct.pack(">i", len(made)) + made[4:]


@pytest.mark.parametrize("properties", STRANGE)
def test_any_record_becomes_a_message(properties: bytes) -> None:
    message = from_record(decode_message(record_with(properties)), "orders")
    assert message.body == b"strange"
    message.SerializeToString()
    assert 0 <= message.system_properties.born_timestamp.nanos <= 999_999_999


@pytest.mark.parametrize("milliseconds", [-(1 << 63), -1, (1 << 63) - 1])
def test_any_time_becomes_one_that_clients_can_read(milliseconds: int) -> None:
    timestamp(milliseconds).ToJsonString()  # Raises for years that protobuf has not.


async def test_compressed_bodies_of_any_kind_are_delivered_with_those_around_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node decompresses those that are not too large, one at a time, and never on its loop."""
    monkeypatch.setattr("node.rocketmq.protocol.messages.SMALL_SIZE_BYTES_MAX", 0)
    monkeypatch.setattr("node.rocketmq.protocol.messages.PLAIN_SIZE_BYTES_MAX", 10_000)
    lone, done_count, loop_thread = threading.Lock(), 0, threading.current_thread()

    def noted(body: bytes, sys_flag: int, limit: int) -> bytes:
        nonlocal done_count
        assert threading.current_thread() is not loop_thread
        assert lone.acquire(blocking=False), "one at a time"
        try:
            return decompress(body, sys_flag, limit)
        finally:
            done_count += 1
            lone.release()

    monkeypatch.setattr("node.rocketmq.protocol.messages.decompress", noted)
    large, small = zlib.compress(bytes(10_001)), zlib.compress(bytes(10_000))
    given = [
        (small, ZLIB, bytes(10_000), Encoding.IDENTITY),
        (large, ZLIB, large, Encoding.GZIP),
        (b"garbage", ZLIB, b"garbage", Encoding.IDENTITY),
        (b"garbage", 0x700, b"garbage", Encoding.IDENTITY),
        (small, ZLIB, bytes(10_000), Encoding.IDENTITY),
    ]
    async with gateway_at(tmp_path) as gateway:
        records = b"".join(
            encode_message("orders", 0, body, {}, sys_flag=IS_COMPRESSED | kind)
            for body, kind, _, _ in given
        )
        await gateway.node.broker.append(AppendRequest(records=records, record_count=len(given)))
        for elements in await asyncio.gather(gateway.receive(), gateway.receive(group=TOPIC)):
            messages = messages_in(elements)
            assert [(m.body, m.system_properties.body_encoding) for m in messages] == [
                (body, encoding) for _, _, body, encoding in given
            ]
            assert [_is_intact(m) for m in messages] == [True, True, False, False, True]
        assert done_count == 2 * len(given)


async def test_bodies_of_one_address_do_not_keep_those_of_others_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deliveries, accounts, done = Deliveries(), Accounts(), list[str]()
    has_begun, go_on = threading.Event(), threading.Event()

    def held(body: bytes, sys_flag: int, limit: int) -> bytes:
        if limit == PLAIN_SIZE_BYTES_MAX:
            has_begun.set()
            go_on.wait()
        return decompress(body, sys_flag, limit)

    monkeypatch.setattr("node.rocketmq.protocol.messages.decompress", held)

    async def made(size_bytes: int, host: str) -> None:
        body = zlib.compress(bytes(size_bytes))
        record = encode_message("orders", 0, body, {}, sys_flag=IS_COMPRESSED | ZLIB)
        with on_behalf_of(accounts.open(host)):
            message = await deliveries.message(decode_message(record), "orders")
        assert (message.body, _is_intact(message)) == (bytes(size_bytes), True)
        done.append(f"{host} {size_bytes}")

    large, small = SMALL_SIZE_BYTES_MAX + 1, SMALL_SIZE_BYTES_MAX
    many = [asyncio.create_task(made(large, "many")) for _ in range(20)]
    await eventually(has_begun.is_set, "the first large one")
    large_task = asyncio.create_task(made(large, "one"))
    for host in ("one", "many"):
        await asyncio.wait_for(made(small, host), PATIENCE_S)
    go_on.set()
    await asyncio.gather(large_task, *many)
    assert done[:2] == [f"one {small}", f"many {small}"]
    assert done.index(f"one {large}") <= 4, "behind one that is made, and one that waits"
    assert len(done) == 23


def _is_intact(found: pb.Message) -> bool:
    digest = hashlib.md5(found.body, usedforsecurity=False).hexdigest().upper()
    return found.system_properties.body_digest.checksum == digest


def not_foreseen(error: Exception) -> None:
    raise error


async def test_a_stream_that_is_cancelled_leaves_nothing_running() -> None:
    before = asyncio.all_tasks()
    done = asyncio.Event()

    async def requests() -> AsyncIterator[bytes]:
        await done.wait()
        yield b""

    stream = Telemetry(GatewayClients(), lambda asked: asked, not_foreseen).serve("c", requests())
    reading = asyncio.ensure_future(anext(stream))
    await eventually(lambda: len(asyncio.all_tasks() - before) == 3, "it waits")
    reading.cancel()
    await asyncio.wait({reading})
    assert asyncio.all_tasks() == before


async def test_many_messages_are_renewed_together() -> None:
    clients, at_once = GatewayClients(), [0]

    async def change_invisible(_request: ChangeInvisibleRequest) -> ChangeInvisibleResponse:
        at_once.append(at_once[-1] + 1)
        await asyncio.sleep(0)
        at_once.append(at_once[-1] - 1)
        return ChangeInvisibleResponse()

    clients.seen("c")
    renewals = Renewals(clients, change_invisible, Turn())
    renewals.hold("c", "g", "t", map(str, range(2 * AT_ONCE + 1)))
    renewals._round()
    await eventually(lambda: renewals.renewed_total == 2 * AT_ONCE + 1, "all are renewed")
    assert max(at_once) == AT_ONCE
    renewals.stop()


async def test_a_message_that_could_not_be_renewed_once_is_tried_again() -> None:
    clients, change_invisible = GatewayClients(), AsyncMock()
    clients.seen("c")
    renewals = Renewals(clients, change_invisible, Turn())
    renewals.hold("c", "g", "t", ["1"])
    for failure, held_count in ((BusyError("x", 1, 1), 1), (StaleHandleError("1", "gone"), 0)):
        change_invisible.side_effect = failure
        await renewals._change_all([*renewals._held.items()], RENEWED_MS)
        assert len(renewals) == held_count
    assert [call.args[0].handle for call in change_invisible.await_args_list] == ["1", "1"]
    assert renewals.renewed_total == 0
    renewals.stop()


async def test_a_leader_of_a_new_term_renews_no_old_delivery(tmp_path: Path) -> None:
    """Its client may have told the leader in between that the message may come again soon."""
    async with gateway_at(tmp_path) as gateway:
        await gateway.send(b"slow")
        assert len(await gateway.receive(auto_renew=True)) == 3
        assert len(gateway.rocketmq.renewals) == 1
        gateway.node.driver.lose()
        gateway.node.driver.lead()
        assert len(gateway.rocketmq.renewals) == 0
        gateway.node.clock.now_ms += RENEWED_MS
        elements = await gateway.receive(auto_renew=True)
        assert elements[1].message.system_properties.delivery_attempt == 2
        assert len(gateway.rocketmq.renewals) == 1


async def test_questions_that_wait_for_clients_have_a_limit_of_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("node.rocketmq.telemetry.AGAIN_S", 3_600.0)

    clients, streams = GatewayClients(), []
    never = asyncio.Event()

    async def requests(topic: str) -> AsyncIterator[bytes]:
        publishing = pb.Publishing(topics=[pb.Resource(name=topic)])
        yield pb.TelemetryCommand(settings=pb.Settings(publishing=publishing)).SerializeToString()
        await never.wait()

    for number in range(QUESTION_SHARES + 1):
        telemetry = Telemetry(clients, lambda asked: asked, not_foreseen)
        stream = cast(
            "AsyncGenerator[pb.TelemetryCommand]",
            telemetry.serve(f"c{number}", requests(f"t{number}")),
        )
        assert (await anext(stream)).settings.publishing.topics
        streams.append(stream)
    large, small = pb.TelemetryCommand(), pb.TelemetryCommand()
    for command, size in (
        (large, QUESTION_SIZE_BYTES_MAX // QUESTION_SHARES - 200),
        (small, 1_000),
    ):
        command.recover_orphaned_transaction_command.message.body = bytes(size)
    answers = [clients.ask(f"t{number}", large) for number in range(QUESTION_SHARES + 1)]
    assert answers == [True] * QUESTION_SHARES + [False], "all together"
    assert clients.question_size_bytes == QUESTION_SHARES * large.ByteSize()
    assert not clients.ask("t0", small), "who takes none has a share"
    question = await anext(streams[0])
    assert question == large
    assert not clients.ask("t8", large), "it is on its way"
    waiting = asyncio.ensure_future(anext(streams[0]))
    await eventually(lambda: clients.ask("t8", large), "it went out")
    waiting.cancel()
    await asyncio.wait({waiting})
    for stream in streams:
        await stream.aclose()
    assert clients.question_size_bytes == 0, "who goes leaves nothing behind"


def test_a_flood_of_client_ids_makes_room_among_those_of_its_address_only() -> None:
    accounts = Accounts({Kind.MEMBERS: Limit("members", 6, connection_part=1)})
    clients, other, flood = GatewayClients(), accounts.open("10.0.0.1"), accounts.open("10.0.0.2")
    with on_behalf_of(other):
        clients.seen("other")
    with on_behalf_of(flood):
        clients.seen("0").commands = asyncio.Queue()
        for number in range(1, 6):
            clients.seen(str(number))
    assert [one for one in map(str, range(6)) if clients.is_alive(one)] == ["0", "4", "5"]
    assert clients.is_alive("other")
    assert accounts.held(Kind.MEMBERS)[0] == len(clients) == 4
    flood.close()
    for one in ("0", "4", "5", "other"):
        clients.left(one)
    assert accounts.total.is_empty
    assert len(accounts.addresses) == 1


def test_who_has_too_much_elsewhere_makes_nobody_else_leave() -> None:
    accounts = Accounts({Kind.MEMBERS: Limit("members", 16)})
    clients, other = GatewayClients(), accounts.open("10.0.0.1")
    flood = [accounts.open("10.0.0.2") for _ in range(4)]
    with on_behalf_of(other):
        clients.seen("other")
    for account in flood:
        account.take(Kind.MEMBERS, 0, 2)  # As memberships of the classic protocol.
    with on_behalf_of(flood[0]), pytest.raises(BusyError, match="of one connection"):
        clients.seen("stranger")
    with on_behalf_of(accounts.open("10.0.0.2")), pytest.raises(BusyError, match=r"of 10\.0\.0\.2"):
        clients.seen("stranger")
    assert clients.is_alive("other")
    for number in range(3, 7):  # All together have too much now.
        account = accounts.open(f"10.0.0.{number}")
        account.take(Kind.MEMBERS, 0, 1 + (number < 6))
    with on_behalf_of(other):
        clients.seen("2nd")
    assert (len(clients), clients.is_alive("other")) == (1, False)
    with on_behalf_of(accounts.open("10.0.0.9")):
        clients.seen("new")
    assert (len(clients), clients.is_alive("new")) == (1, True), "one makes room"


def test_a_client_id_is_of_one_user() -> None:
    clients, guard = GatewayClients(), Guard("on", lambda: 0)

    def call(name: str) -> None:
        set_calling(guard.by_name(name))
        clients.seen("c")
        clients.check_own("c")

    contexts = {name: contextvars.copy_context() for name in ("shop", "other")}
    contexts["shop"].run(call, "shop")
    with pytest.raises(CallRefusedError, match="another address or user has this id"):
        contexts["other"].run(call, "other")
    contexts["shop"].run(call, "shop")
    clients.left("c")
    contexts["other"].run(call, "other")


async def test_a_client_that_is_alive_keeps_its_id_from_strangers(tmp_path: Path) -> None:
    named = (*CLIENT, (CLIENT_HEADER, "10.0.0.9:77"))
    ended = pb.NotifyClientTerminationRequest()
    async with gateway_at(tmp_path) as gateway:
        clients, read = gateway.rocketmq.clients, pb.TelemetryCommand.FromString
        telemetry = gateway.channel.stream_stream(f"/{SERVICE}/Telemetry", None, read)
        await gateway.call("Heartbeat", HEARTBEAT)
        client = clients.seen("client@1")
        for name, request in (("Heartbeat", HEARTBEAT), ("NotifyClientTermination", ended)):
            answer = await gateway.call(name, request, forwarded(name, request, *named))
            assert answer.status.code == Code.FORBIDDEN
        other = forwarded("Telemetry", pb.TelemetryCommand(), *named)
        (command,) = [one async for one in telemetry(iter(()), metadata=other)]
        assert command.status.code == Code.FORBIDDEN
        assert (clients.seen("client@1"), client.commands) == (client, None)
        client.last_seen_s -= ALIVE_S
        other = forwarded("Heartbeat", HEARTBEAT, *named)
        answer = await gateway.call("Heartbeat", HEARTBEAT, other)
        assert answer.status.code == Code.FORBIDDEN, "its connection may be broken"
        client.last_seen_s -= SILENT_S_MAX
        other = forwarded("Heartbeat", HEARTBEAT, *named)
        assert (await gateway.call("Heartbeat", HEARTBEAT, other)).status.code == Code.OK
        assert clients.seen("client@1").host == "10.0.0.9", "who is silent has no claim"


def test_texts_of_a_client_are_counted() -> None:
    accounts = Accounts({Kind.MEMBERS: Limit("members", 6, 8_000, 1, 1)})
    clients = GatewayClients()
    with on_behalf_of(accounts.open("10.0.0.1")):
        client = clients.seen("c")
        clients.sends_to(client, few := frozenset({"orders"}))
        with pytest.raises(BusyError, match="bytes of members"):
            clients.sends_to(client, frozenset(f"t{n:0120}" for n in range(256)))
    assert client.topics == few
    clients.left("c")
    clients.sends_to(client, few)  # Its stream ends a moment later.
    assert accounts.total.is_empty


async def test_a_client_that_takes_no_settings_is_not_asked_for_more() -> None:
    taken, report = 0, pb.Settings(publishing=pb.Publishing(topics=[pb.Resource(name="orders")]))

    async def requests() -> AsyncIterator[bytes]:
        nonlocal taken
        for taken in range(1, 100):  # noqa: B007
            yield pb.TelemetryCommand(settings=report).SerializeToString()

    stream = Telemetry(GatewayClients(), lambda asked: asked, not_foreseen).serve("c", requests())
    for count in (1, 2, 3):
        assert (await anext(stream)).settings == report
        for _ in range(20):
            await asyncio.sleep(0)
        assert taken == count
    await cast("AsyncGenerator[pb.TelemetryCommand]", stream).aclose()


async def test_messages_that_are_renewed_are_charged_to_their_client() -> None:
    accounts, clients = Accounts({Kind.ROWS: Limit("rows", 8, connection_part=1)}), GatewayClients()
    renewals = Renewals(clients, AsyncMock(), turn := Turn())
    for host in ("10.0.0.1", "10.0.0.2"):
        with on_behalf_of(accounts.open(host)):
            clients.seen(host)
            for _ in range(2):  # A repeated attempt.
                renewals.hold(host, "g", "t", [f"{host}/{n}" for n in range(6)])
    assert (len(renewals), renewals.dropped_total) == (8, 8)
    with on_behalf_of(accounts.open("10.0.0.2")):
        renewals.left("10.0.0.1")
    await eventually(lambda: not turn._left, "nothing of its own")
    assert len(renewals) == 8, "a stranger ends no other client"
    renewals.left("10.0.0.1")
    await eventually(lambda: not turn._left, "its end")
    assert accounts.held(Kind.ROWS)[0] == 4
    renewals.end()
    await eventually(lambda: not turn._left, "the end of all")
    assert accounts.held(Kind.ROWS) == (0, 0)
    renewals.stop()


async def test_silent_clients_are_given_back_though_no_other_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.rocketmq.calls.ends.LOOK_S", 0.01)
    monkeypatch.setattr("node.rocketmq.clients.SILENT_S_MAX", 0.0)
    async with gateway_at(tmp_path) as gateway:
        clients = gateway.rocketmq.clients
        with on_behalf_of(Accounts().open("10.0.0.1")):
            rows = [clients.seen(f"c{number}") for number in range(40)]
        rows[7].commands = asyncio.Queue()
        gateway.rocketmq.end_calls.watch()
        await eventually(lambda: len(clients) == 1, "the one with a stream stays")
        rows[7].commands = None
        await eventually(lambda: len(clients) == 0, "it has gone, too")
        assert all(row.charge is not None and not row.charge.count for row in rows)


async def test_without_room_for_a_question_the_broker_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.rocketmq.calls.ends.LOOK_S", 0.01)
    made = Mock(side_effect=from_record)
    monkeypatch.setattr("node.rocketmq.protocol.messages.from_record", made)
    async with gateway_at(tmp_path) as gateway:
        end_calls, clients = gateway.rocketmq.end_calls, gateway.rocketmq.clients
        node, checks = gateway.node, gateway.node.broker.transactions.checks
        client = clients.seen("c")
        client.commands = asyncio.Queue()
        clients.sends_to(client, frozenset({"orders"}))
        clients.question_size_bytes = QUESTION_SIZE_BYTES_MAX  # Others have all of it.
        with_room = Mock(wraps=clients.with_room)
        monkeypatch.setattr(clients, "with_room", with_room)
        end_calls.watch()
        await gateway.send(b"half", message_type=pb.MessageType.TRANSACTION)
        await eventually(lambda: checks.producers.room.used == 1, "somebody to ask")
        node.clock.now_ms += 6_000
        await checks.round()
        await eventually(lambda: checks.checks_total == 1, "it asks")
        await eventually(lambda: with_room.call_count > 1, "it looks for room again")
        assert client.commands.empty()
        assert checks.producers.size_bytes > 0
        assert not made.called, "a body may become large"
        clients.question_size_bytes = 0
        await eventually(lambda: end_calls.asked_total == 1, "there is room")
        assert client.commands.qsize() == 1
        await eventually(lambda: checks.producers.size_bytes == 0, "it is taken")
