"""A send of each protocol is one request, and its messages; a user in debt sends nothing."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from node.config.settings import Settings
from node.config.types import Address
from node.node import Node
from node.replication.raft.assembly import build_raft
from node.rocketmq.callers import SERVICE
from node.users.credentials import digest_of
from quorumlog.pb import log_pb2, rocketmq_pb2, users_pb2
from quorumlog.pb.admin_pb2 import CreateTopicRequest
from store.record.message import encode_message
from tests.node.framed.clients import APPEND, AUTHENTICATE, ERROR, AsyncFramedClient, request
from tests.node.rocketmq.guards import SECRET, headers, signed
from tests.node.rocketmq.remoting import codes
from tests.node.rocketmq.remoting.clients import ClassicClient, entry, send_fields
from tests.node.rocketmq.test_service import message
from tests.node.users_files import user_settings
from tests.node.whole_nodes import Fatal
from tests.patience import PATIENCE_S, eventually
from tests.store.records import messages

COUNT, BODY = 3, b"x" * 1_000
RECORDS = b"".join(encode_message("shop", 0, BODY, {}) for _ in range(COUNT))
Send = Callable[[], Awaitable[str]]


async def over_grpc(node: Node) -> Send:
    channel = grpc.aio.insecure_channel(node.address)
    node.life.push_async_callback(channel.close)
    call: Any = channel.unary_unary("/quorumlog.v1.LogService/Append")
    data = log_pb2.AppendRequest(records=RECORDS, record_count=COUNT).SerializeToString()

    async def send() -> str:
        try:
            await call(data, metadata=[("authorization", "Bearer qlt_shop")], timeout=PATIENCE_S)
        except grpc.RpcError as error:
            return str(error)
        return ""

    return send


async def over_frames(node: Node) -> Send:
    client = await AsyncFramedClient.connect(int(node.framed_address.rpartition(":")[2]))
    node.life.callback(client.close)
    token = users_pb2.AuthenticateRequest(token="qlt_shop").SerializeToString()
    client.send(request(AUTHENTICATE, 1, token))
    await client.read()
    data = log_pb2.AppendRequest(record_count=COUNT).SerializeToString()

    async def send() -> str:
        client.send(request(APPEND, 2, data, RECORDS))
        answer = await client.read()
        return str(answer.error) if answer.flags & ERROR else ""

    return send


async def over_rocketmq(node: Node) -> Send:
    channel = grpc.aio.insecure_channel(node.address)
    node.life.push_async_callback(channel.close)
    read = rocketmq_pb2.SendMessageResponse.FromString
    call: Any = channel.unary_unary(f"/{SERVICE}/SendMessage", None, read)
    messages = [message(BODY, "shop")] * COUNT
    data = rocketmq_pb2.SendMessageRequest(messages=messages).SerializeToString()
    metadata = (("x-mq-client-id", "c"), *headers("shop").items())

    async def send() -> str:
        status = (await call(data, metadata=metadata, timeout=PATIENCE_S)).status
        return "" if status.code == rocketmq_pb2.OK else str(status.message)

    return send


async def over_remoting(node: Node) -> Send:
    client = await ClassicClient.connect(int(node.framed_address.rpartition(":")[2]))
    node.life.push_async_callback(client.close)
    batch = entry(BODY) * COUNT
    fields = signed("shop", send_fields("shop", 0, "g0-n1") | {"m": "true"}, batch)

    async def send() -> str:
        heard = await client.ask(codes.SEND, fields, batch)
        return str(heard.remark) if heard.code else ""

    return send


@asynccontextmanager
async def running(directory: Path, mode: str, *roles: str) -> AsyncIterator[Node]:
    """A node with a topic and the user shop, with rates that only `on` counts."""
    free = Address("127.0.0.1", 0)
    listens = dict.fromkeys(("listen", "peer_listen", "http_listen", "listen_framed"), free)
    files: dict[str, Any] = user_settings(directory / "users")
    paths = {name: Path(text) for name, text in files.items() if name != "users"}
    sizes: dict[str, Any] = {"file_size_bytes": 1 << 20, "batch_size_bytes_max": 1 << 16}
    settings: dict[str, Any] = {**listens, **sizes, **paths, "users": mode}
    fatal: Any = Fatal()
    node = Node(
        Settings(node_id=1, directory=directory / "n", nameserver_listen=None, **settings),
        fatal,
        build_raft,
    )
    try:
        await node.start()
        node.guard.rows._clock_s = lambda: 0.0
        await eventually(lambda: node.broker.context.driver.is_ready, "a leader")
        await node.broker.topics.create_topic(CreateTopicRequest(topic="shop", queue_count=1))
        token = users_pb2.Credential(id="t", token_sha256=digest_of("qlt_shop"))
        some = 1 << 30
        rates = {f"{unit}_per_second": some for unit in ("bytes", "messages", "requests")}
        await node.users.put_user(
            users_pb2.PutUserRequest(
                name="shop",
                roles=users_pb2.RoleNames(roles=roles),
                rates=users_pb2.Rates(**rates, connections=1),
                add_credentials=[token, users_pb2.Credential(id="shop")],
                secrets=[SECRET.encode()],
            )
        )
        yield node
    finally:
        node.hurry.set()
        await node.stop()
    assert fatal.errors == []


PROTOCOLS = [over_grpc, over_frames, over_rocketmq, over_remoting]


@pytest.mark.parametrize("connect", PROTOCOLS)
async def test_a_send_is_one_request_and_its_messages(
    tmp_path: Path, connect: Callable[[Node], Awaitable[Send]]
) -> None:
    async with running(tmp_path, "on", "producer-consumer:shop") as node:
        send = await connect(node)
        assert await send() == ""
        row = node.guard.rows._rows["shop"]
        assert row.meter is not None
        before = [bucket.left for bucket in row.meter._buckets]
        assert await send() == ""
        size, count, calls = (
            was - bucket.left for was, bucket in zip(before, row.meter._buckets, strict=True)
        )
        assert (calls, count, row.connection_count) == (1, COUNT, 1)
        assert 0 <= size - COUNT * len(BODY) < COUNT * 300
        for bucket in row.meter._buckets:
            left, bucket.left = bucket.left, -1
            end = node.replication.store.log.max_position
            assert "are over the limit" in await send()
            assert node.replication.store.log.max_position == end
            bucket.left = left


async def page(node: Node) -> str:
    """Ask for the metrics without a credential; return the first line."""
    address = Address.parse(node.http_address)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: n\r\n\r\n")
    line = await reader.readline()
    writer.close()
    return line.decode()


async def audit(node: Node) -> list[tuple[str, ...]]:
    pull = log_pb2.PullRequest(topic="rmq_sys_audit", max_count=99)
    rows = [json.loads(one.body) for one in messages((await node.broker.pull(pull)).records)]
    return [tuple(map(row.get, ("user", "call", "address", "outcome"))) for row in rows]


async def told(node: Node, *rows: tuple[str, ...]) -> None:
    async def is_written() -> bool:
        return set(rows) <= set(await audit(node))

    await eventually(is_written, f"{rows}")


async def test_before_users_are_on_each_protocol_tells_what_would_be_refused(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, "prepare", "reader") as node:
        for connect in PROTOCOLS:
            send = await connect(node)
            assert [await send(), await send()] == ["", ""]
        assert "200" in await page(node)
        at, no_right, no_user = "127.0.0.1", "prepare.forbidden", "prepare.unauthenticated"
        calls = ("append", "MessagingService/SendMessage", "Remoting/send_message_v2")
        await told(node, ("", "Http/metrics", at, no_user))
        await told(node, *(("shop", call, at, no_right) for call in calls))
        assert len(await audit(node)) == 1 + len(calls) + 1, (
            "with the first user, and each told of once"
        )
        (warning,) = node.guard.warnings()
        assert "would refuse calls of the last 10 minutes: 9 calls, 2 callers" in warning
        assert warning in node.warnings()


async def test_a_refusal_tells_from_where(tmp_path: Path) -> None:
    async with running(tmp_path, "on") as node, grpc.aio.insecure_channel(node.address) as channel:
        assert "401" in await page(node)
        route: Any = channel.unary_unary(f"/{SERVICE}/QueryRoute")
        await route(b"", metadata=(("x-mq-client-id", "c"),), timeout=PATIENCE_S)
        calls = ("Http/metrics", "MessagingService/QueryRoute")
        await told(node, *(("", call, "127.0.0.1", "node.unauthenticated") for call in calls))
