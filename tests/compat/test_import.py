"""A copy from RocketMQ itself: its own brokers, with messages of its own producer."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bench.peers.installed import why_missing
from bench.peers.peer import PeerLoad
from bench.peers.rocketmq import RocketMqPeer
from deploy.local import LocalCluster
from qlog import main
from qlog.connection import SERVER_VARIABLE
from tests import missing

pytestmark = pytest.mark.long
MESSAGE_COUNT = 2_000


AUTHENTICATION = """
authenticationEnabled=true
authenticationProvider=org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider
authenticationMetadataProvider=\
org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider
initAuthenticationUser={"username":"reader","password":"a-secret"}
innerClientAuthenticationCredentials={"accessKey":"reader","secretKey":"a-secret"}
"""


def copy(cluster: LocalCluster, directory: Path, *more: str) -> dict[str, int]:
    """Run the command; return how many messages of each topic it copied."""
    lines = (directory / "namesrv.conf").read_text().splitlines()
    (port,) = (line.split("=")[1].strip() for line in lines if line.startswith("listenPort"))
    result = CliRunner().invoke(
        main,
        ["rocketmq", "import", f"127.0.0.1:{port}", "-o", "json", *more],
        env={SERVER_VARIABLE: cluster.bootstrap},
    )
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    return {row["topic"]: row["message_count"] for row in report["topics"]}


def authenticate(peer: RocketMqPeer, directory: Path) -> None:
    """Start the brokers again as ones that want a signature of user `reader`."""
    names = ("n0", "n1", "n2")
    assert peer._processes is not None
    peer._processes.stop(*names)
    for name in names:
        with open(directory / f"{name}.conf", "a") as settings:
            settings.write(AUTHENTICATION)
        peer._processes.start_again(name)
    asyncio.run(peer._wait_known())


def test_messages_of_rocketmq_are_copied_once(cluster: LocalCluster, tmp_path: Path) -> None:
    why = why_missing("rocketmq")
    if why is not None:
        missing.foreign(why)
    directory, keys = tmp_path / "rocketmq", tmp_path / "keys"
    os.mkdir(directory)
    peer = RocketMqPeer("master_slave")

    async def produce() -> None:
        sent = await peer.produce(PeerLoad(count=MESSAGE_COUNT, in_flight_count=16))
        assert sent.error_count == 0

    async def start() -> None:
        await peer.start(str(directory))
        await produce()

    try:
        asyncio.run(start())
        assert max(copy(cluster, directory).values()) == MESSAGE_COUNT
        assert not any(copy(cluster, directory).values())
        asyncio.run(produce())
        authenticate(peer, directory)
        keys.write_text("reader a-secret\n")
        copied = copy(cluster, directory, "--source-keys", str(keys))
        assert sum(copied.values()) == MESSAGE_COUNT
    finally:
        asyncio.run(peer.stop())
