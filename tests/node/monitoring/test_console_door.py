"""The port of a node's console: a process for as long as browsers call, and again after its end."""

import asyncio
import http.client
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.config.types import Address
from node.monitoring.console_door import ConsoleDoor
from tests.node.processes import SingleNode
from tests.patience import PATIENCE_S


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SingleNode]:
    with SingleNode(tmp_path_factory.mktemp("node") / "n1", console="off") as node:
        yield node


def page(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", "/nodes")
    try:
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def process_of(door: ConsoleDoor) -> asyncio.subprocess.Process:
    assert door.process is not None
    return door.process


async def test_a_console_begins_with_a_browser_and_ends_when_idle_or_with_its_node(
    node: SingleNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.monitoring.console_door._PAUSE_S", 0.0)
    door = ConsoleDoor("read", node.node_json()["address"], {}, idle_ms=500)
    port = door.open(Address("127.0.0.1", 0))
    try:
        for _ in range(2):
            assert "read only" in await asyncio.to_thread(page, port)
            process = process_of(door)
            await asyncio.wait_for(process.wait(), PATIENCE_S)
            assert process.returncode == os.EX_OK
        assert await asyncio.to_thread(page, port)
        process = process_of(door)
    finally:
        await door.close()
    assert not is_alive(process.pid)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.to_thread(page, port)
