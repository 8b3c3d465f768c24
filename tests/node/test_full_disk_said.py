"""A single node whose disk has no room: its log and the clients that wait say so at once."""

import asyncio
import os
from pathlib import Path

import pytest

import quorumlog
from deploy.local_process import spawn
from quorumlog.cluster import full_disks
from tests.node.processes import SingleNode, arguments
from tests.patience import PATIENCE_S, end, eventually


async def test_a_start_and_a_first_append_without_room_name_the_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full_disks, "INTERVAL_S", 1e9)
    node = SingleNode(tmp_path / "n")
    words = arguments(node.directory, disk_reserve_bytes="1000TiB")
    node.process = spawn("node", words, log=node.log_path, environment=dict(os.environ))
    try:
        await eventually((node.directory / "node.json").exists, "the node listens")
        await eventually(lambda: "its log has no room" in node.log_path.read_text(), "its log")
        at = node.node_json()["address"]
        for _ in range(2):
            caplog.clear()
            async with quorumlog.connect(at, timeout_ms=int(1000 * PATIENCE_S)) as client:
                sending = asyncio.create_task(client.producer().send("orders", b"x"))
                await eventually(lambda: "a disk is full" in caplog.text, "its own warning")
                assert f"{at} cannot lead: " in caplog.text
                assert "are free on its disk; free space" in caplog.text
                assert not sending.done()
                await end(sending)
    finally:
        node.stop()
