"""Users are switched on in a running cluster, node after node, as docs/operations.md says."""

import asyncio
from pathlib import Path

import pytest

import quorumlog
from deploy.local import LocalCluster
from quorumlog.admin.types import NewCredential
from quorumlog.errors import PermissionDeniedError
from quorumlog.user_tokens import new_token
from tests.cluster.conftest import running
from tests.cluster.workload import TOPIC, Workload, prove
from tests.node.users_files import ADMIN_TOKEN, user_settings
from tests.patience import end, eventually

pytestmark = pytest.mark.long
GROUP = f"{TOPIC}-group"


async def roll(cluster: LocalCluster, work: Workload, old: str, new: str) -> None:
    """Restart each node with another setting, the leader too, with messages before and after."""
    for node_id in cluster.node_ids:
        await work.acked(50)
        file = cluster.node_directory(node_id) / "node.toml"
        text = file.read_text()
        assert f'users = "{old}"' in text
        file.write_text(text.replace(f'users = "{old}"', f'users = "{new}"'))
        await asyncio.to_thread(cluster.stop, node_id)
        await asyncio.to_thread(cluster.start, node_id)
        await asyncio.to_thread(cluster.wait_ready)


async def consume(client: quorumlog.Client, found: set[int]) -> None:
    async for message in client.consume(TOPIC, group=GROUP):
        found.add(int(message.body))


@pytest.mark.parametrize("transport", ["framed", "grpc"])
async def test_clients_with_credentials_are_not_interrupted(tmp_path: Path, transport: str) -> None:
    settings = user_settings(tmp_path, "off")
    own = new_token()
    async with (
        running(tmp_path / "c", nodes=3, settings=settings) as (cluster, _),
        quorumlog.connect(cluster.bootstrap, token=own, transport=transport) as client,  # type: ignore[arg-type]
        quorumlog.connect(cluster.bootstrap, token=ADMIN_TOKEN) as admin,
        Workload(client) as work,
    ):
        found: set[int] = set()
        consuming = asyncio.create_task(consume(client, found))
        await roll(cluster, work, "off", "prepare")
        role = f"producer-consumer:{TOPIC}"
        await admin.admin.put_user("orders", roles=[role], add=[NewCredential("t", token=own)])
        assert (await client.admin.who_am_i()).mode == "prepare"
        await roll(cluster, work, "prepare", "on")
        async with quorumlog.connect(cluster.bootstrap) as stranger:
            with pytest.raises(PermissionDeniedError):
                await stranger.admin.describe_topic(TOPIC)
        with pytest.raises(PermissionDeniedError):
            await client.admin.create_topic("other")
        await work.acked(50)
        history = await work.stop()
        await eventually(lambda: history.acked <= found or consuming.done(), "all messages")
        assert not consuming.done(), consuming.exception()
        await end(consuming)
        assert (history.refused, history.unknown) == (set(), set())
        await prove(cluster, admin, history)


async def test_a_busy_follower_refuses_at_once_and_a_new_user_reads_at_once(tmp_path: Path) -> None:
    settings = user_settings(tmp_path)
    async with (
        running(tmp_path / "c", nodes=3, settings=settings, token=ADMIN_TOKEN) as (
            cluster,
            admin,
        ),
        quorumlog.connect(cluster.bootstrap, token=new_token()) as stranger,
        Workload(admin) as work,
    ):
        await work.acked(50)
        for node_id in [*cluster.node_ids] * 30:
            with pytest.raises(PermissionDeniedError, match="token is unknown") as raised:
                await stranger.admin.node_status(node_id)
            assert raised.value.attempts == 1, "it was not told to try again"
        for number in range(20):
            own = new_token()
            async with quorumlog.connect(cluster.bootstrap, token=own) as client:
                assert client._groups is not None
                client._groups.get("").calls._any_at = number
                added = [NewCredential("t", token=own)]
                await admin.admin.put_user(f"new{number}", roles=["reader"], add=added)
                await client.pull(TOPIC, 0, 0, consistency="local")
        await work.stop()
