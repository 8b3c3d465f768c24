"""Members of a group that join and leave in a world: three whole nodes, and a death of the leader.

A run has a process of its own, since what an interpreter keeps of a world (mapped files, for one)
ends with it: `python -m tests.simulation.hand_overs TRANSPORT`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from typing import Any, cast

import quorumlog
from quorumlog.cluster.transport import Transport
from simulation.cluster import Cluster
from simulation.rpc.substitute import rpc_parts
from simulation.world import World

SEED = 4
LIMIT_S = 120
RESTARTED_AFTER_NS = 3_000_000_000


def pass_queues(world: World, transport: Transport) -> None:
    """Queues pass between members that join and leave, and no message comes to two of them."""
    cluster = Cluster(world, 3)
    cluster.start()

    def restart_leader() -> None:
        leader = cluster.leader
        assert leader is not None, "nobody leads"
        leader.kill()
        world.hub.after(RESTARTED_AFTER_NS, leader.start)

    async def live() -> int:
        async with quorumlog.connect(",".join(cluster.servers), transport=transport) as client:
            await work(client)
        return 0

    async def work(client: quorumlog.Client) -> None:
        got, bodies = list[bytes](), [b"%d" % number for number in range(300)]
        is_read = asyncio.Event()

        async def read(leaves_at: int) -> None:
            stays = leaves_at == sys.maxsize
            async with client.group_consumer("readers", "many", auto_commit=not stays) as member:
                async for message in member:
                    got.append(message.body)
                    await asyncio.sleep(0.07)  # It is in hand meanwhile.
                    if stays:
                        await member.commit()
                    if len(set(got)) == len(bodies):
                        is_read.set()
                    if len(got) >= leaves_at:
                        break

        await client.admin.create_topic("many", queue_count=7)
        reading = [asyncio.create_task(read(sys.maxsize))]
        async with client.producer() as producer:
            for number, body in enumerate(bodies):
                await producer.enqueue("many", body, queue_id=number % 7)
                await asyncio.sleep(0.08)
                if number % 60 == 10:  # One that stays, and one that leaves.
                    reading += [asyncio.create_task(read(n)) for n in (sys.maxsize, number + 40)]
                if number == len(bodies) // 2:
                    restart_leader()
        await is_read.wait()
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        assert len(got) == len(bodies), f"{len(got) - len(bodies)} came twice"

    clients = world.add_machine().run("clients", live)
    assert world.run_until(lambda: not clients.is_alive, LIMIT_S), "the clients hang"
    for process in (clients, *(process for node in cluster.nodes for process in node.processes)):
        if process.error is not None:
            raise process.error
        assert process is clients or process.exit_code is None, f"{process.name} ended by itself"
    bad = [str(line) for line in world.log if line.level in ("error", "critical")]
    assert not bad, bad


def play(transport: Transport) -> dict[str, Any]:
    """Play it in a world of its own; return what is known of it."""
    problem = ""
    with World(SEED) as world, rpc_parts(world):
        try:
            pass_queues(world, transport)
        except Exception:  # noqa: BLE001 - whatever it is, it is the result.
            problem = traceback.format_exc()
    hub = world.hub
    return {"problem": problem, "trace": f"{hub.trace_hash:016x}", "event_count": hub.event_count}


if __name__ == "__main__":
    print(json.dumps([play(cast(Transport, sys.argv[1]))]))
