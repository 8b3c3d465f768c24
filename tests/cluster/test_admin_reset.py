"""The admin of a cluster whose token is lost is reset on a stopped majority, as docs/users.md says;
a minority with the file gains nothing."""

import asyncio
from pathlib import Path

import pytest

import quorumlog
from deploy.local import LocalCluster
from node.config.users import RESET_FILE
from quorumlog.admin.types import NewCredential
from quorumlog.errors import PermissionDeniedError
from quorumlog.user_tokens import digest_of, first_user_text, new_token
from tests.cluster.conftest import SETTINGS
from tests.node.users_files import ADMIN_TOKEN, user_settings
from tests.patience import eventually
from tests.qlog.running import Qlog

pytestmark = pytest.mark.long


async def reset(cluster: LocalCluster, file: Path, *node_ids: int) -> str:
    """Stop the cluster, put the file into the directories of these nodes, and start it."""
    await asyncio.to_thread(cluster.stop)
    directories = [str(cluster.node_directory(node_id) / "data") for node_id in node_ids]
    words = ("store", "reset-admin", *directories, "--users-file", str(file))
    done = await asyncio.to_thread(Qlog(cluster), *words)
    cluster.start()
    await asyncio.to_thread(cluster.wait_ready)
    return str(done.stdout)


@pytest.mark.parametrize("replication", ["raft", "sync_master"])
async def test_a_majority_resets_the_admin_once(tmp_path: Path, replication: str) -> None:
    token, file = new_token(), tmp_path / "new.json"
    file.write_text(first_user_text("admin", digest_of(token)))
    settings = {**SETTINGS, **user_settings(tmp_path)}
    cluster = LocalCluster.create(
        tmp_path / "c", nodes=3, replication=replication, settings=settings
    )
    left = [cluster.node_directory(node_id) / "data" / RESET_FILE for node_id in (1, 2, 3)]
    try:
        cluster.start()
        await asyncio.to_thread(cluster.wait_ready)
        async with (
            quorumlog.connect(cluster.bootstrap, token=ADMIN_TOKEN) as old,
            quorumlog.connect(cluster.bootstrap, token=token) as new,
        ):
            await old.admin.put_user("app", roles=["reader"])
            assert "1 of 3 voters have it here" in await reset(cluster, file, 1)
            if replication == "raft":
                await old.admin.transfer_leadership(1)
            await old.admin.put_user("app", roles=["operator"])
            with pytest.raises(PermissionDeniedError):
                await new.admin.who_am_i()
            assert [path.exists() for path in left] == [True, False, False]

            assert "after the next start" in await reset(cluster, file, 1, 2)
            await eventually(lambda: not any(path.exists() for path in left), "the reset")
            assert (await new.admin.who_am_i()).name == "admin"
            with pytest.raises(PermissionDeniedError):
                await old.admin.who_am_i()
            lines = [cluster.log_path(node_id).read_text() for node_id in (1, 2)]
            assert all("the admin was reset" in text for text in lines)

            await new.admin.put_user("admin", add=[NewCredential("o", token=ADMIN_TOKEN)])
            await reset(cluster, file, 1, 2, 3)
            await eventually(
                lambda: not any(path.exists() for path in left), "the end of the files"
            )
            (admin,) = [user for user in await new.admin.users() if user.name == "admin"]
            assert [one.id for one in admin.credentials] == ["first", "o"], "a file serves once"
    finally:
        await asyncio.to_thread(cluster.stop)
