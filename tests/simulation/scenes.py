"""Scenes of clients in a world: three whole nodes, the SDK on a machine of its own, a death.

Each scene checks what its clients got. They run in a process of their own, since what an
interpreter keeps of a world (mapped files, for one) ends with it:
`python -m tests.simulation.scenes SEED [[SCENE, TRANSPORT], ...]`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio

import quorumlog
from node.services import server
from quorumlog.cluster.transport import Transport
from simulation.cluster import Cluster
from simulation.rpc.substitute import rpc_parts
from simulation.world import World

LIMIT_S = 120
TOPIC = "orders"
PLACES: tuple[tuple[Any, str], ...] = (
    (grpc.aio, "insecure_channel"),
    (grpc.aio, "server"),
    (server, "cut_connection"),
    (server, "traffic_of"),
)
"""Where simulated parts of gRPC stand while a world runs."""
Work = Callable[[quorumlog.Client], Awaitable[None]]


class Scene:
    """A cluster of three and its clients."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cluster = Cluster(world, 3)
        self.cluster.start()
        self._machine = world.add_machine()

    def run(self, work: Work, transport: Transport = "auto") -> None:
        """Run a coroutine with a client to its end. Raises what it raised."""

        async def live() -> int:
            servers = ",".join(self.cluster.servers)
            async with quorumlog.connect(servers, transport=transport) as client:
                await client.admin.create_topic(TOPIC, queue_count=2)
                await work(client)
            return 0

        process = self._machine.run("clients", live)
        assert self.world.run_until(lambda: not process.is_alive, LIMIT_S), "the clients hang"
        if process.error is not None:
            raise process.error
        self.check_nodes()

    def restart_leader(self, after_s: float = 3.0) -> None:
        """Kill the leader now, and start it again later."""
        leader = self.cluster.leader
        assert leader is not None, "nobody leads"
        leader.kill()
        self.world.hub.after(int(after_s * 1_000_000_000), leader.start)

    def check_nodes(self) -> None:
        """Raise if a node ended by itself, or met an error that nobody foresaw."""
        for node in self.cluster.nodes:
            for process in node.processes:
                if process.error is not None:
                    raise process.error
                assert process.exit_code is None, f"{process.name} ended by itself"
        bad = [str(line) for line in self.world.log if line.level in ("error", "critical")]
        assert not bad, bad


def messages(the: Scene, transport: Transport) -> None:
    """Messages survive the death of the leader."""
    bodies = [f"message {number}" for number in range(60)]

    async def work(client: quorumlog.Client) -> None:
        async with client.producer() as producer:
            for at, body in enumerate(bodies):
                if at == len(bodies) // 2:
                    the.restart_leader()
                receipt = await producer.send(TOPIC, body)
                assert len(receipt.synced_by) >= 2
        got = [
            message.body.decode()
            async for message in client.consume(TOPIC, position="first", until="end")
        ]
        assert Counter(got) == Counter(bodies)
        stats = client.stats()
        assert stats.leader_changes >= 1
        assert (stats.framed_connections == 0) is (transport == "grpc")

    the.run(work, transport)


def group(the: Scene, transport: Transport) -> None:
    """Members of a group share the queues, and go on from what was committed."""

    async def work(client: quorumlog.Client) -> None:
        async with client.producer() as producer:
            for number in range(40):
                await producer.send(TOPIC, f"{number}")
        got: list[str] = []
        async with client.group_consumer("readers", TOPIC, auto_commit=False) as member:
            async for message in member:
                got.append(message.body.decode())
                if len(got) == 20:
                    the.restart_leader()
                if len(got) == 40:
                    break
            await member.commit()
        assert Counter(got) == Counter(f"{number}" for number in range(40))
        async with client.group_consumer("readers", TOPIC) as again, client.producer() as more:
            await more.send(TOPIC, "the last")
            async for message in again:
                assert message.body == b"the last", "what was committed came again"
                break

    the.run(work, transport)


def hand_overs(the: Scene, transport: Transport) -> None:
    """Queues pass between members that join and leave, and no message comes to two of them."""

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
                    the.restart_leader()
        await is_read.wait()
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        assert len(got) == len(bodies), f"{len(got) - len(bodies)} came twice"

    the.run(work, transport)


def pop(the: Scene, transport: Transport) -> None:
    """Popped messages are acknowledged one by one."""

    async def work(client: quorumlog.Client) -> None:
        async with client.producer() as producer:
            for number in range(20):
                await producer.send(TOPIC, f"{number}")
        got: list[str] = []
        async with client.pop_consumer("workers", TOPIC, invisible=20) as consumer:
            while len(got) < 20:
                for message in await consumer.receive(max_count=4, wait=5):
                    await consumer.ack(message)
                    got.append(message.body.decode())
                    if len(got) == 10:
                        the.restart_leader()
            assert await consumer.receive(max_count=4, wait=1) == []
        assert set(got) == {f"{number}" for number in range(20)}

    the.run(work, transport)


def transactions(the: Scene, transport: Transport) -> None:
    """Readers get what was committed, at once or when asked, and nothing else."""

    async def work(client: quorumlog.Client) -> None:
        asked: list[str] = []

        def check(question: Any) -> str:
            body = question.messages[0].body.decode()
            asked.append(body)
            return "commit" if body == "asked for" else "unknown"

        async with client.transactional_producer(
            "senders", check, check_after_ms=1_000
        ) as producer:
            kept = await producer.begin(TOPIC, "kept")
            dropped = await producer.begin(TOPIC, "dropped")
            await producer.begin(TOPIC, "asked for")
            the.restart_leader()
            await kept.commit()
            await dropped.rollback()
            got: list[str] = []
            async for message in client.consume(TOPIC, position="first"):
                got.append(message.body.decode())
                if len(got) == 2:
                    break
        assert sorted(got) == ["asked for", "kept"]
        assert "asked for" in asked

    the.run(work, transport)


def partition(the: Scene, transport: Transport) -> None:
    """Clients leave a leader that is cut off from the others."""

    async def work(client: quorumlog.Client) -> None:
        async with client.producer() as producer:
            await producer.send(TOPIC, "before")
            leader = the.cluster.leader
            assert leader is not None
            for other in the.world.machines:
                if other is not leader.machine:
                    the.world.network.cut(leader.machine.address, other.address)
            receipt = await producer.send(TOPIC, "meanwhile")
            assert leader.number not in receipt.synced_by
            the.world.network.heal()
            await producer.send(TOPIC, "after")

    the.run(work, transport)


def all_kinds(the: Scene, transport: Transport) -> None:
    """Every kind of client takes part, in one history."""

    async def work(client: quorumlog.Client) -> None:
        producer = client.producer()
        for number in range(30):
            await producer.send(TOPIC, f"{number}", key=f"{number}")
        the.restart_leader(1.0)
        async with client.pop_consumer("workers", TOPIC) as consumer:
            await consumer.ack(await consumer.receive(max_count=8, wait=5))
        async with client.group_consumer("readers", TOPIC) as member:
            async for _ in member:
                break
        await producer.send(TOPIC, "last")

    the.run(work, transport)
    the.world.run_s(5)


SCENES: dict[str, Callable[[Scene, Transport], None]] = {
    one.__name__: one
    for one in (messages, group, hand_overs, pop, transactions, partition, all_kinds)
}


def play(name: str, transport: Transport, seed: int) -> dict[str, Any]:
    """Play a scene in a world of its own; return what is known of it."""
    problem = ""
    before = parts()
    with World(seed) as world, rpc_parts(world):
        assert parts() != before, "nothing is simulated"
        try:
            SCENES[name](Scene(world), transport)
        except Exception:  # noqa: BLE001 - whatever it is, it is the result.
            problem = traceback.format_exc()
    assert parts() == before, "something simulated is left"
    hub = world.hub
    return {"problem": problem, "trace": f"{hub.trace_hash:016x}", "event_count": hub.event_count}


def parts() -> list[int]:
    """Return the identities of real parts, where the shipped code and grpcio hold them."""
    held = [vars(owner)[name] for owner, name in PLACES]
    return list(map(id, held))


def main() -> None:
    """Play the scenes that are named."""
    seed, cases = int(sys.argv[1]), json.loads(sys.argv[2])
    print(json.dumps([play(name, transport, seed) for name, transport in cases]))


if __name__ == "__main__":
    main()
