"""Users of RocketMQ's protocols at a node that does not lead: the leader asks whose call it is."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

import quorumlog
from deploy.local import LocalCluster
from node.rocketmq.callers import SERVICE
from quorumlog.pb import rocketmq_pb2 as pb
from quorumlog.pb.rocketmq_pb2 import Code, MessageType
from quorumlog.pb.users_pb2 import Credential, PutUserRequest, RoleNames, User
from tests.node.rocketmq.guards import SECRET, headers, signed
from tests.node.rocketmq.remoting import codes
from tests.node.rocketmq.remoting.clients import ClassicClient, send_fields
from tests.node.rocketmq.test_service import message
from tests.node.users_files import ADMIN_TOKEN, user_settings
from tests.patience import PATIENCE_S

SETTINGS = {"file_size_bytes": "16MiB"}


async def put_user(
    cluster: LocalCluster,
    name: str,
    *roles: str,
    credentials: grpc.ChannelCredentials | None = None,
) -> None:
    """Make a user whose access key has its name."""
    put = PutUserRequest(
        name=name,
        roles=RoleNames(roles=roles),
        add_credentials=[Credential(id=name)],
        secrets=[SECRET.encode()],
    )
    address = cluster.address(cluster.leader_id())
    secure = credentials and grpc.aio.secure_channel(address, credentials)
    async with secure or grpc.aio.insecure_channel(address) as channel:
        method = channel.unary_unary(
            "/quorumlog.v1.UserService/PutUser",
            PutUserRequest.SerializeToString,
            User.FromString,
        )
        call: Any = method(put, metadata=(("authorization", f"Bearer {ADMIN_TOKEN}"),))
        await call


async def ask(channel: grpc.aio.Channel, user: str, topic: str, **system: Any) -> Any:
    """Send a message as a user; return the status."""
    request = pb.SendMessageRequest(messages=[message(b"x", topic, **system)])
    method = channel.unary_unary(f"/{SERVICE}/SendMessage", None, pb.SendMessageResponse.FromString)
    metadata = (("x-mq-client-id", user), *headers(user).items())
    call: Any = method(request.SerializeToString(), metadata=metadata, timeout=PATIENCE_S)
    return (await call).status


async def speak(cluster: LocalCluster) -> None:
    await put_user(cluster, "shop", "producer-consumer:shop")
    async with quorumlog.connect(cluster.bootstrap, token=ADMIN_TOKEN) as admin:
        for topic in ("shop", "hers"):
            await admin.admin.create_topic(topic, queue_count=1)
    follower = next(node for node in cluster.node_ids if node != cluster.leader_id())
    async with grpc.aio.insecure_channel(cluster.address(follower)) as channel:
        sent = await ask(channel, "shop", "shop")
        assert sent.code == Code.OK, sent
        refused = await ask(channel, "shop", "hers")
        assert refused.code == Code.FORBIDDEN
        assert "user 'shop' lacks Pub on Topic:hers" in refused.message
        assert (await ask(channel, "stranger", "shop")).code == Code.UNAUTHORIZED
        await hear_of_an_orphan(channel)
    host, _, port = cluster.framed_address(follower).rpartition(":")
    client = await ClassicClient.connect(int(port), host)
    name = f"g0-n{follower}"
    for topic, code in (("shop", 0), ("hers", 16)):
        fields = signed("shop", send_fields(topic, 0, name), b"x")
        heard = await client.ask(codes.SEND, fields, b"x")
        assert heard.code == code, heard
    await client.close()


async def hear_of_an_orphan(channel: grpc.aio.Channel) -> None:
    """A half message is sent, and its producer hears of it over the node where it is."""
    metadata = (("x-mq-client-id", "shop"), *headers("shop").items())
    method = channel.stream_stream(f"/{SERVICE}/Telemetry", None, pb.TelemetryCommand.FromString)
    stream: Any = method(metadata=metadata, timeout=PATIENCE_S)
    publishing = pb.Publishing(topics=[pb.Resource(name="shop")])
    settings = pb.TelemetryCommand(settings=pb.Settings(publishing=publishing))
    await stream.write(settings.SerializeToString())
    kind, pause = MessageType.TRANSACTION, Duration(seconds=1)
    sent = await ask(
        channel, "shop", "shop", message_type=kind, orphaned_transaction_recovery_duration=pause
    )
    assert sent.code == Code.OK, sent
    while not (await stream.read()).HasField("recover_orphaned_transaction_command"):
        pass
    stream.cancel()


def test_clients_with_keys_at_a_follower(tmp_path: Path) -> None:
    settings = {**SETTINGS, **user_settings(tmp_path / "users")}
    with LocalCluster.create(tmp_path / "c", settings=settings) as cluster:
        cluster.wait_ready()
        asyncio.run(speak(cluster))
