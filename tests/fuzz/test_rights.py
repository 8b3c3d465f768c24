"""Callers without a right gain nothing: no read, no write, no listing, no crash and no memory."""

import asyncio
import re
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest

from tests.fuzz.rights import (
    ClassicDoor,
    FrameDoor,
    GrpcDoor,
    HttpDoor,
    admin,
    fill,
    fuzz,
    state_of_others,
)
from tests.node.processes import SingleNode
from tests.node.users_files import user_settings
from tests.seeds import FRESH, chosen

_MEMORY_KIB_MAX = 96 << 10
"""That a node may grow by, whatever is sent: its caches fill."""


def memory_kib(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("seed", [1, FRESH])
def test_requests_of_callers_without_a_right_gain_nothing(seed: int | str, tmp_path: Path) -> None:
    random = Random(chosen(seed, "tests/fuzz/test_rights.py"))
    count = 1_000 if seed == 1 else 100_000
    with SingleNode(tmp_path / "n1", **user_settings(tmp_path)) as node:
        addresses, process = node.node_json(), node.process
        assert process is not None
        with grpc.insecure_channel(addresses["address"]) as channel:
            rpc = admin(channel)
            world = fill(rpc)
            before, memory = state_of_others(rpc, world), memory_kib(process.pid)

            framed, http = addresses["framed_address"], addresses["http_address"]

            async def run() -> list[str]:
                async with grpc.aio.insecure_channel(addresses["address"]) as shared:
                    frames = [FrameDoor(framed, world) for _ in range(3)]
                    doors: list[Any] = [*[GrpcDoor(shared, world)] * 5, *frames]
                    doors += [GrpcDoor(shared, world, "rocketmq")] * 4
                    doors += [ClassicDoor(framed, world)] * 8
                    doors += [HttpDoor(http, world)]
                    findings = await fuzz(doors, random, count)
                    for door in frames:
                        door.close()
                    return findings

            findings = asyncio.run(run())
            assert not findings, findings[0]
            # Whole states would be compared by a diff that takes minutes.
            changed = dict(before.items() ^ state_of_others(rpc, world).items())
            assert not changed, list(changed)
        assert memory_kib(process.pid) - memory < _MEMORY_KIB_MAX
        assert '"level": "error"' not in node.log_path.read_text()
