"""A dictionary that PySyncObj replicates over three processes; a message is a key of its own.

Owns the driving of PySyncObj. There is no client: the load runs inside of the leader's process,
which is to its advantage, or inside of a follower's if the leader is to be killed.
"""

import asyncio
import time
from typing import Final

from bench.peers import remote
from bench.peers.own_python import python_words
from bench.peers.peer import ConsumeResult, PeerFacts, PeerFailedError, PeerLoad, ProduceResult
from bench.peers.processes import START_DEADLINE_S, Processes
from deploy.local_process import free_ports

_NODE_COUNT: Final = 3
_STATUS_TIMEOUT_S: Final = 10.0
_MARGIN_S: Final = 120.0


class PySyncObjPeer:
    """Three processes of `bench.peers.pysyncobj_node`."""

    facts = PeerFacts(
        name="pysyncobj",
        durability="in the page cache of 2 of 3 (a journal that it does not sync)",
        client="in the leader's process (Python); reads are of its own memory",
        settings="journalFile, fullDumpFile, autoTickPeriod=0.001, appendEntriesUseBatch=False, "
        "1 MiB for batches and buffers, elections after 1.5 to 3 s",
        # Values, and the journal's copies of the commands.
        memory_share=2.5 * _NODE_COUNT,
    )

    def __init__(self) -> None:
        """Create the peer; no process runs yet."""
        self._processes: Processes | None = None
        self._control_ports: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._leader = ""

    def pids(self) -> dict[str, int]:
        """Return the process ids of the nodes, one of which is the client too."""
        return self._processes.pids() if self._processes is not None else {}

    async def start(self, directory: str, *, topic_count: int = 1) -> None:
        """Start the nodes; a topic is a prefix of keys."""
        ports = free_ports(2 * _NODE_COUNT)
        addresses = [f"127.0.0.1:{port}" for port in ports[_NODE_COUNT:]]
        self._processes = Processes(directory)
        for n, address in enumerate(addresses):
            name = f"n{n}"
            self._control_ports[name], self._names[address] = ports[n], name
            others = [other for other in addresses if other != address]
            words = python_words("bench.peers.pysyncobj_node")
            self._processes.start(name, [*words, str(ports[n]), address, directory, *others])
        await self._find_leader()

    async def _find_leader(self) -> None:
        """Wait until all nodes report that they are ready and name one leader."""
        assert self._processes is not None, "not started"
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            self._processes.check_alive()
            found = [await self._status(name) for name in self._processes.pids()]
            leaders = set(found)
            if len(leaders) == 1 and None not in leaders:
                self._leader = self._names[str(leaders.pop())]
                return
            if time.monotonic() > deadline:
                raise PeerFailedError(f"PySyncObj elected no leader within {START_DEADLINE_S} s")
            await asyncio.sleep(0.05)

    async def _status(self, name: str) -> str | None:
        """Return the leader's address as a node knows it; None while that node is not ready."""
        try:
            found = await remote.ask(
                self._control_ports[name], {"op": "status"}, timeout_s=_STATUS_TIMEOUT_S
            )
        except PeerFailedError:
            return None  # Not up yet; the caller has a deadline.
        return found["leader"] if found["is_ready"] else None

    async def produce(self, load: PeerLoad) -> ProduceResult:
        """Run the load in the leader's process, or in another one if errors are expected."""
        assert self._processes is not None, "not started"
        name = self._leader
        if load.tolerates_errors:
            name = next(other for other in self._processes.pids() if other != self._leader)
        timeout_s = (load.seconds or 0.0) + _MARGIN_S if load.count is None else 10 * _MARGIN_S
        return await remote.produce(self._control_ports[name], load, timeout_s=timeout_s)

    async def consume(self) -> ConsumeResult:
        """Read in the leader's process."""
        return await remote.consume(self._control_ports[self._leader], timeout_s=_MARGIN_S)

    async def kill_leader(self) -> float:
        """SIGKILL the leader's process."""
        assert self._processes is not None, "not started"
        return self._processes.kill(self._leader)

    async def restart(self) -> float:
        """End all nodes with SIGTERM, as PySyncObj has no orderly stop, and start them."""
        assert self._processes is not None, "not started"
        names = tuple(self._processes.pids())
        await asyncio.to_thread(self._processes.stop)
        moment_s = time.monotonic()
        for name in names:
            self._processes.start_again(name)
        await self._find_leader()
        return moment_s

    async def stop(self) -> None:
        """End the nodes."""
        if self._processes is not None:
            self._processes.kill_all()
