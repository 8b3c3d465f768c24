"""A send of each protocol is one request, and its messages; a user in debt sends nothing."""

from collections.abc import Awaitable, Callable
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


@pytest.mark.parametrize("connect", [over_grpc, over_frames, over_rocketmq, over_remoting])
async def test_a_send_is_one_request_and_its_messages(
    tmp_path: Path, connect: Callable[[Node], Awaitable[Send]]
) -> None:
    free = Address("127.0.0.1", 0)
    listens = dict.fromkeys(("listen", "peer_listen", "http_listen", "listen_framed"), free)
    files: dict[str, Any] = user_settings(tmp_path / "users")
    paths = {name: Path(text) for name, text in files.items() if name != "users"}
    sizes: dict[str, Any] = {"file_size_bytes": 1 << 20, "batch_size_bytes_max": 1 << 16}
    settings: dict[str, Any] = {**listens, **sizes, **paths, "users": "on"}
    fatal: Any = Fatal()
    node = Node(
        Settings(node_id=1, directory=tmp_path / "n", nameserver_listen=None, **settings),
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
                roles=users_pb2.RoleNames(roles=["producer-consumer:shop"]),
                rates=users_pb2.Rates(**rates, connections=1),
                add_credentials=[token, users_pb2.Credential(id="shop")],
                secrets=[SECRET.encode()],
            )
        )
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
    finally:
        node.hurry.set()
        await node.stop()
    assert fatal.errors == []
