"""How long the event loop of each node stands still, seen from outside.

Owns the measurement: a framed call that needs no leader, every few ms, on a connection to each
node. On a machine of two cores a node also waits for its turn, so an answer that took long counts
by the time that the node's loop, its main thread, worked meanwhile.

As a program: `python -m tests.cluster.stand_stills SECONDS PORT:PID...` prints, for each node, the
longest stand-still and the longest answer, in ms.
"""

import asyncio
import json
import struct
import sys
from pathlib import Path
from typing import Final

from tests.node.framed.clients import request

PAUSE_S: Final = 0.005
NO_METHOD: Final = 99
"""Refused at once, so that nothing but the loop can make the node late."""


def worked_ms(pid: int) -> float:
    """Return the time for which the main thread of a process has worked."""
    line = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text("ascii")
    return int(line.split()[0]) / 1e6


async def measured(port: int, pid: int, seconds: float) -> tuple[float, float]:
    """Return the longest stand-still of a node and its longest answer, in ms."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    still_ms = answer_ms = 0.0
    now_s = asyncio.get_running_loop().time
    end_s, opaque = now_s() + seconds, 0
    while now_s() < end_s:
        opaque += 1
        began_s, worked_before_ms = now_s(), worked_ms(pid)
        writer.write(request(NO_METHOD, opaque))
        (size_bytes,) = struct.unpack(">I", await reader.readexactly(4))
        await reader.readexactly(size_bytes)
        took_ms = 1e3 * (now_s() - began_s)
        answer_ms = max(answer_ms, took_ms)
        still_ms = max(still_ms, min(took_ms, worked_ms(pid) - worked_before_ms))
        await asyncio.sleep(PAUSE_S)
    writer.close()
    await writer.wait_closed()
    return still_ms, answer_ms


async def _main(seconds: float, nodes: list[str]) -> None:
    pairs = (map(int, node.split(":")) for node in nodes)
    figures = await asyncio.gather(*(measured(port, pid, seconds) for port, pid in pairs))
    print(json.dumps(figures))


if __name__ == "__main__":
    asyncio.run(_main(float(sys.argv[1]), sys.argv[2:]))
