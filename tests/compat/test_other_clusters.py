"""The official clients against several broker groups, and against nodes that trust few."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

import quorumlog
from deploy.local import LocalCluster
from node.rocketmq.callers import SERVICE
from qlog.server.authority import Authority
from quorumlog.pb.rocketmq_pb2 import QueryRouteRequest, QueryRouteResponse, Resource
from tests.cluster.test_rocketmq_users import put_user
from tests.compat.drivers import CallFailedError, Client, body_of
from tests.compat.test_clients import receive
from tests.node.rocketmq.guards import SECRET
from tests.node.users_files import ADMIN_TOKEN, user_settings
from tests.patience import PATIENCE_S, wait_for

pytestmark = pytest.mark.long

SETTINGS: dict[str, object] = {"file_size_bytes": "16MiB"}
KEY = "shop"


async def create_topic(
    cluster: LocalCluster, credentials: grpc.ChannelCredentials | None = None, token: str = ""
) -> None:
    """Make a topic in every group."""
    how: dict[str, Any] = {"credentials": credentials, "token": token}
    async with quorumlog.connect(cluster.bootstrap, **how) as client:
        await client.admin.create_topic("orders", queue_count=2)


def wait_for_route(address: str, groups: set[str]) -> None:
    """Return once a node knows that these broker groups share the topic."""
    with grpc.insecure_channel(address) as channel:
        ask = channel.unary_unary(f"/{SERVICE}/QueryRoute")
        request = QueryRouteRequest(topic=Resource(name="orders")).SerializeToString()

        def is_shared() -> bool:
            data = ask(request, metadata=(("x-mq-client-id", "test"),), timeout=PATIENCE_S)
            queues = QueryRouteResponse.FromString(data).message_queues
            return {queue.broker.name.split(".")[0] for queue in queues} == groups

        wait_for(f"the groups of the topic at {address}", is_shared)


def test_ordered_messages_over_two_groups(tmp_path: Path) -> None:
    """A message group has one queue in the whole cluster, whichever node a client writes to."""
    with LocalCluster.create(tmp_path / "c", 1, groups=2, settings=SETTINGS) as cluster:
        asyncio.run(create_topic(cluster))
        for node in cluster.node_ids:  # Until both know both, they choose among other queues.
            wait_for_route(cluster.address(node), {"g0", "g1"})
        sent: dict[str, list[bytes]] = {}
        with (
            Client("python", cluster.address(1), tmp_path / "one") as first,
            Client("node", cluster.address(2), tmp_path / "two") as second,
        ):
            for client in (first, second):
                client.call("producer", topics=["orders"])
            for number in range(40):
                group, body = f"g{number % 4}", b"%d" % number
                (first, second)[number // 4 % 2].call(
                    "send", topic="orders", body=body, group=group
                )
                sent.setdefault(group, []).append(body)
            first.call("simple", group="readers", topic="orders")
            bodies: dict[str, list[bytes]] = {}
            for message in receive(first, 40):
                bodies.setdefault(message["group"], []).append(body_of(message))
        assert bodies == sent


def test_nodes_that_demand_tls_and_a_key(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.files("node")
    settings = (
        SETTINGS
        | user_settings(tmp_path / "users")
        | {
            "tls_certificate_file": str(files.certificate),
            "tls_key_file": str(files.key),
            "tls_ca_file": str(authority.path),
        }
    )
    with LocalCluster.create(tmp_path / "c", settings=settings) as cluster:
        trusted = grpc.ssl_channel_credentials(authority.path.read_bytes())
        cluster.wait_ready()
        roles = [f"producer-consumer:{prefix}" for prefix in ("orders", "readers-")]
        asyncio.run(put_user(cluster, KEY, *roles, credentials=trusted))
        asyncio.run(create_topic(cluster, trusted, ADMIN_TOKEN))
        ours: dict[str, Any] = {"key": KEY, "authority": authority.path}
        for language in ("python", "node"):
            home = tmp_path / language
            with Client(language, cluster.address(1), home, secret=SECRET, **ours) as client:
                client.call("producer", topics=["orders"])
                # Not all of them are for the leader: nodes trust each other, too.
                for number in range(6):
                    client.call("send", topic="orders", body=b"%d" % number)
                client.call("simple", group="readers-" + language, topic="orders")
                assert len(receive(client, 6 if language == "python" else 12)) >= 6
        home = tmp_path / "stranger"
        with Client("python", cluster.address(1), home, secret="another", **ours) as stranger:
            stranger.call("producer", topics=["orders"])
            with pytest.raises(CallFailedError):
                stranger.call("send", topic="orders", body=b"x")
