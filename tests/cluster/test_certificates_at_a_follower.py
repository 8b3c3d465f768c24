"""Users with client certificates at a node that does not lead: their calls are judged by their own
certificate, whether that of the node may do less or everything."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import grpc
import pytest

import quorumlog
from deploy.local import LocalCluster
from node.peers.security.tls import TlsFiles
from node.rocketmq.callers import SERVICE
from quorumlog.admin.types import NewCredential
from quorumlog.cluster.channels import stub
from quorumlog.cluster.tls import ClientTls
from quorumlog.pb import common_pb2, consumer_pb2
from quorumlog.pb import rocketmq_pb2 as pb
from quorumlog.pb.rocketmq_pb2 import Code
from tests.node.framed.clients import COMMIT, FramedClient
from tests.node.peers.certificates import tls_settings
from tests.node.processes import typed_error
from tests.node.rocketmq.remoting import codes
from tests.node.rocketmq.remoting.clients import ClassicClient, send_fields
from tests.node.rocketmq.test_service import message
from tests.node.users_files import ADMIN_TOKEN, user_settings
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.long
TOPICS = ("shop", "hers")


class Follower:
    """A node that does not lead, and what each protocol answers there to a certificate."""

    def __init__(self, cluster: LocalCluster, ca: Path, files: TlsFiles) -> None:
        leader = cluster.leader_id()
        self.node_id = next(node for node in cluster.node_ids if node != leader)
        self.address = cluster.address(self.node_id)
        self.framed = int(cluster.framed_address(self.node_id).rpartition(":")[2])
        pem = (ca, files.key, files.certificate)
        self.credentials = grpc.ssl_channel_credentials(*(path.read_bytes() for path in pem))
        self.context = ssl.create_default_context(cafile=str(ca))
        self.context.load_cert_chain(files.certificate, files.key)

    async def answers(self, name: str) -> list[int | str]:
        """Codes of a commit over gRPC and over frames, and of a send over each of RocketMQ's."""
        commit = consumer_pb2.CommitOffsetsRequest(group=name)
        async with grpc.aio.secure_channel(self.address, self.credentials) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stub(channel, consumer_pb2.DESCRIPTOR).CommitOffsets(commit)
            request = pb.SendMessageRequest(messages=[message(b"x", name)]).SerializeToString()
            send = channel.unary_unary(f"/{SERVICE}/SendMessage")
            metadata = (("x-mq-client-id", "c"),)
            call: Any = send(request, metadata=metadata, timeout=PATIENCE_S)
            sent = pb.SendMessageResponse.FromString(await call).status.code
        framed = await asyncio.to_thread(self._commit, commit.SerializeToString())
        classic = await ClassicClient.connect(self.framed, tls=self.context)
        heard = await classic.ask(codes.SEND, send_fields(name, 0, f"g0-n{self.node_id}"), b"x")
        await classic.close()
        return [typed_error(raised.value).code, framed, sent, heard.code]

    def _commit(self, encoded: bytes) -> str:
        with FramedClient(("127.0.0.1", self.framed), self.context) as client:
            return common_pb2.Error.FromString(client.call(COMMIT, 1, encoded).message).code


async def test_each_protocol_asks_who_calls_and_not_who_forwards(tmp_path: Path) -> None:
    authority, given = tls_settings(tmp_path)
    given |= {**user_settings(tmp_path), "rocketmq": "on"}
    shop, stranger = (authority.files(name) for name in ("shop", "stranger"))
    tls = ClientTls(str(authority.path), str(shop.certificate), str(shop.key)).credentials()
    with LocalCluster.create(tmp_path / "c", 3, settings=given) as cluster:
        async with quorumlog.connect(
            cluster.bootstrap, token=ADMIN_TOKEN, credentials=tls
        ) as admin:
            for name, role in (("shop", "producer-consumer:shop"), ("node", "reader")):
                added = [NewCredential("tls", certificate=f"CN={name}")]
                await admin.admin.put_user(name, roles=[role], add=added)
            for topic in TOPICS:
                await admin.admin.create_topic(topic, queue_count=1)
            await asyncio.to_thread(cluster.wait_ready)
            known = Follower(cluster, authority.path, shop)
            assert await known.answers("shop") == ["node.not_leader"] * 2 + [Code.OK, 0]
            await admin.admin.put_user("node", roles=["admin"])
            refused = ["node.forbidden"] * 2 + [Code.FORBIDDEN, 16]
            assert await known.answers("hers") == refused
            unknown = Follower(cluster, authority.path, stranger)
            for topic in TOPICS:
                nobody = ["node.unauthenticated"] * 2 + [Code.UNAUTHORIZED, 16]
                assert await unknown.answers(topic) == nobody
