"""RocketMQ's own brokers register at a node, and its client reads their messages by our routes."""

import asyncio
import re
from pathlib import Path

import pytest

from bench.peers import remote
from bench.peers.java_programs import java_words
from bench.peers.peer import PeerFailedError, PeerLoad
from bench.peers.processes import Processes
from bench.peers.rocketmq import RocketMqPeer, why_missing
from deploy.local import LocalCluster
from deploy.local_process import free_ports
from tests import missing
from tests.compat.official.run import broker_addresses
from tests.java import SHORT_LIVED
from tests.patience import PATIENCE_S, eventually

pytestmark = pytest.mark.long
MESSAGE_COUNT = 1_000


def listen_addresses(confs: list[Path]) -> list[str]:
    return [f"127.0.0.1:{re.findall(r'^listenPort=(.*)$', c.read_text(), re.M)[0]}" for c in confs]


async def read_back(directory: Path, name_server: str) -> int:
    """Read everything with RocketMQ's client, which knows one name server."""
    (port,) = free_ports(1)
    processes = Processes(str(directory))
    processes.start(
        "reader",
        java_words("rocketmq", str(directory), SHORT_LIVED, "Driver", (str(port), name_server)),
    )
    try:

        async def is_up() -> bool:
            try:
                await remote.ask(port, {"op": "status"}, timeout_s=PATIENCE_S)
            except PeerFailedError:
                return False
            return True

        await eventually(is_up, "the reader")
        return (await remote.consume(port, timeout_s=PATIENCE_S)).message_count
    finally:
        processes.kill_all()


def test_messages_of_registered_brokers_are_read(tmp_path: Path) -> None:
    why = why_missing()
    if why is not None:
        missing.foreign(why)
    directory = tmp_path / "rocketmq"
    directory.mkdir()
    peer = RocketMqPeer("master_slave")

    async def start() -> None:
        await peer.start(str(directory))
        sent = await peer.produce(PeerLoad(count=MESSAGE_COUNT, in_flight_count=16))
        assert sent.error_count == 0

    try:
        asyncio.run(start())
        confs = sorted(directory.glob("n[0-9].conf"))
        settings = {
            "file_size_bytes": "16MiB",
            "rocketmq_listen": "127.0.0.1:0",
            "rocketmq_brokers": listen_addresses(confs),
        }
        with LocalCluster.create(tmp_path / "c", settings=settings) as cluster:
            node = broker_addresses(cluster)[0]
            for conf in confs:
                text = re.sub(r"^(namesrvAddr=.*)$", rf"\1;{node}", conf.read_text(), flags=re.M)
                conf.write_text(text)
            asyncio.run(peer.restart())
            stored_count = asyncio.run(peer.consume()).message_count
            assert stored_count >= MESSAGE_COUNT
            assert asyncio.run(read_back(directory, node)) == stored_count
    finally:
        asyncio.run(peer.stop())
