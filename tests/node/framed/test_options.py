"""What the kernel is told about accepted connections, under either loop."""

import socket
from pathlib import Path

import pytest

from tests.node.framed.servers import served
from tests.patience import eventually


@pytest.mark.parametrize("loop", ["calm", "uvloop"])
async def test_answers_leave_at_once(tmp_path: Path, loop: str) -> None:
    async with served(tmp_path) as it:
        client = await it.client()
        made = it.server.connections._connections
        await eventually(lambda: any(one._transport is not None for one in made), "it is made")
        (connection,) = made
        assert connection._transport is not None
        accepted = connection._transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        client.close()
