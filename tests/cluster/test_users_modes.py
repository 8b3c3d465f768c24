"""Nodes that differ in their settings of users: each says so, where an operator looks."""

import asyncio
from pathlib import Path

import pytest

import quorumlog
from deploy.local import LocalCluster
from qlog.cluster.judgement import Looks
from quorumlog.admin.types import NewCredential
from tests.cluster.conftest import SETTINGS
from tests.node.users_files import ADMIN_TOKEN, user_settings
from tests.patience import eventually

pytestmark = pytest.mark.long
NOT_PREPARED = "users = on here, and off at the leader, node {}: no user is known; set users ="
OTHER_KEY = "the key of users_key_file does not open the secrets of 1 of 1 access keys"


async def again(cluster: LocalCluster, node_id: int, **changes: str) -> None:
    """Start a node again with other settings."""
    file = cluster.node_directory(node_id) / "node.toml"
    lines = [line for line in file.read_text().splitlines() if line.split(" =")[0] not in changes]
    tops = [f'{name} = "{value}"' for name, value in changes.items()]
    file.write_text("\n".join([*tops, *lines]))
    await asyncio.to_thread(cluster.stop, node_id)
    cluster.start(node_id)


async def test_nodes_that_differ_in_users_say_so(tmp_path: Path) -> None:
    settings = {**SETTINGS, **user_settings(tmp_path, "off")}
    other_key = tmp_path / "other.key"
    other_key.write_text("7" * 64)
    other_key.chmod(0o600)
    with LocalCluster.create(tmp_path / "c", nodes=3, settings=settings) as cluster:
        await asyncio.to_thread(cluster.wait_ready)
        async with quorumlog.connect(cluster.bootstrap, token=ADMIN_TOKEN) as client:
            looks = Looks(client)

            async def shown(text: str) -> None:
                async def is_shown() -> bool:
                    return any(text in problem for problem in (await looks.look()).problems)

                await eventually(is_shown, text)

            leader = (await client.admin.cluster_status()).leader_id
            on, last = (node_id for node_id in cluster.node_ids if node_id != leader)
            await again(cluster, on, users="on")
            text = NOT_PREPARED.format(leader)
            await shown(f"node {on} answers without a status: {text}")
            await eventually(lambda: text in cluster.log_path(on).read_text(), "its log")
            state = next(one for one in cluster.status() if one.node_id == on)
            assert not state.is_ready

            await again(cluster, last, users="prepare", users_key_file=str(other_key))
            await asyncio.to_thread(cluster.wait_ready, node_ids=(leader, last))
            await client.admin.transfer_leadership(last)
            await shown(f"users: off at node {leader}, on at node {on}, prepare at node {last}")
            key = NewCredential("key", secret="a secret of it")
            await client.admin.put_user("app", add=[key])
            await shown(f"node {on}: {OTHER_KEY}")
            await eventually(lambda: OTHER_KEY in cluster.log_path(on).read_text(), "its log")
