"""Three nodes with users: refusals at each are in one audit, rates hold under each leader."""

import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import quorumlog
from deploy.local import LocalCluster
from node.users.credentials import digest_of
from quorumlog.errors import PermissionDeniedError
from quorumlog.pb import users_pb2
from tests.cluster.conftest import SETTINGS
from tests.node.users_files import ADMIN_TOKEN, user_settings
from tests.patience import eventually

pytestmark = pytest.mark.long
RATE = 20


async def put_user(admin: quorumlog.Client, name: str, role: str, **rates: int) -> str:
    token = users_pb2.Credential(id="t", token_sha256=digest_of(f"qlt_{name:_<43}"))
    request = users_pb2.PutUserRequest(
        name=name,
        roles=users_pb2.RoleNames(roles=[role]),
        rates=users_pb2.Rates(**rates),
        add_credentials=[token],
    )
    await admin.admin._lead(admin.admin._groups.get(""), request)
    return f"qlt_{name:_<43}"


async def rows(admin: quorumlog.Client) -> list[dict[str, Any]]:
    batch = await admin.pull("rmq_sys_audit", 0, 0, max_count=2_048)
    return [json.loads(message.body) for message in batch]


async def seconds_of(client: quorumlog.Client, topic: str) -> float:
    """How long three seconds' worth of messages need."""
    began = time.monotonic()
    async with client.producer(batch_count_max=1) as producer:
        await asyncio.gather(*(producer.send(topic, b"x") for _ in range(3 * RATE)))
    return time.monotonic() - began


async def refused_at(
    client: quorumlog.Client, admin: quorumlog.Client, node_ids: list[int], count: int
) -> None:
    """Have a user refused at each node, and wait until the audit has so many of each."""
    for node_id in node_ids:
        with pytest.raises(PermissionDeniedError):
            await client.admin.node_status(node_id)
    missing = set(node_ids)
    while missing:
        found = Counter(row["node_id"] for row in await rows(admin) if row["user"] == "shop")
        missing = {node_id for node_id in node_ids if found[node_id] < count}


@pytest.mark.parametrize("transport", ["framed", "grpc"])
async def test_audit_and_rates_outlive_their_leader(tmp_path: Path, transport: Any) -> None:
    settings = {**SETTINGS, **user_settings(tmp_path)}
    cluster = LocalCluster.create(tmp_path / "c", settings=settings, nodes=3)
    try:
        cluster.start()
        await asyncio.to_thread(cluster.wait_ready)
        async with quorumlog.connect(cluster.bootstrap, token=ADMIN_TOKEN) as admin:
            await admin.admin.create_topic("shop-user")
            await admin.admin.create_topic("topic")
            await admin.admin.set_topic_rates("topic", messages_per_second=RATE)
            shop = await put_user(
                admin, "shop", "producer-consumer:shop-", messages_per_second=RATE
            )
            async with quorumlog.connect(
                cluster.bootstrap, token=shop, transport=transport, timeout_ms=60_000
            ) as client:
                await refused_at(client, admin, list(cluster.node_ids), 1)
                assert await seconds_of(client, "shop-user") > 1.9
                killed = cluster.leader_id()
                cluster.kill(killed)
                left = [node_id for node_id in cluster.node_ids if node_id != killed]
                await eventually(lambda: cluster.leader_id() in left, "another leader")
                await refused_at(client, admin, left, 2)
                assert await seconds_of(client, "shop-user") > 1.9
                assert await seconds_of(admin, "topic") > 1.9
            changes = {row["call"] for row in await rows(admin) if row["user"] == "admin"}
            assert {"UserService/PutUser", "AdminService/SetTopicRates"} <= changes
    finally:
        await asyncio.to_thread(cluster.stop)
