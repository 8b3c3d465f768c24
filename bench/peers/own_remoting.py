"""QuorumLog driven by RocketMQ's own client for Java: three nodes behind the remoting protocol.

Owns the two halves: nodes as in `own`, and the driver of RocketMQ's brokers as in `rocketmq`.
"""

import asyncio
from typing import Any, Final

from bench.peers import remote
from bench.peers.java_programs import java_words
from bench.peers.own import OwnPeer
from bench.peers.peer import ConsumeResult, PeerFacts, PeerLoad, PeerMissingError, ProduceResult
from bench.peers.processes import Processes
from bench.peers.rocketmq import why_missing
from bench.peers.rocketmq_settings import JAVA_OPTIONS
from deploy.local_process import free_ports, is_free

_DRIVER: Final = "driver"
_MARGIN_S: Final = 120.0


class OwnRemotingPeer(OwnPeer):
    """Three nodes in raft mode, and a Java process that drives them."""

    def __init__(self) -> None:
        """Create the peer; no process runs yet."""
        super().__init__()
        self.facts = PeerFacts(
            name="quorumlog-remoting",
            durability="synced on 2 of 3",
            client="RocketMQ's (Java), asynchronous",
            settings="flush=sync, file_size_bytes=64MiB",
        )
        self._processes: Processes | None = None
        self._control_port = 0

    def pids(self) -> dict[str, int]:
        """Return the ids of the nodes and of the driver, which is the client."""
        found = super().pids()
        return found | (self._processes.pids() if self._processes is not None else {})

    async def start(self, directory: str, *, topic_count: int = 1) -> None:
        """Start the nodes and the driver, and make the topics."""
        why = why_missing()
        if why is not None:
            raise PeerMissingError(why)
        await super().start(f"{directory}/nodes", topic_count=topic_count)
        await self._connected().admin.create_topic("probe")
        assert self._nodes is not None, "started"
        servers = ";".join(self._nodes.framed_address(node) for node in self._nodes.node_ids)
        self._processes = Processes(directory)
        (self._control_port,) = free_ports(1)
        arguments = (str(self._control_port), servers)
        words = java_words("rocketmq", directory, JAVA_OPTIONS, "Driver", arguments)
        self._processes.start(_DRIVER, words, {"ROCKETMQ_HOME": directory})
        port = self._control_port
        await asyncio.to_thread(
            self._processes.wait, lambda: not is_free(port), "the driver does not listen"
        )
        await self._ask("probe")

    async def _ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        return await remote.ask(self._control_port, {"op": op, **arguments}, timeout_s=_MARGIN_S)

    async def produce(self, load: PeerLoad) -> ProduceResult:
        """Run the load in the driver."""
        timeout_s = 10 * _MARGIN_S if load.seconds is None else load.seconds + _MARGIN_S
        return await remote.produce(self._control_port, load, timeout_s=timeout_s)

    async def consume(self) -> ConsumeResult:
        """Read in the driver, with a lite pull consumer."""
        return await remote.consume(self._control_port, timeout_s=_MARGIN_S)

    async def stop(self) -> None:
        """End the driver and the nodes."""
        if self._processes is not None:
            self._processes.kill_all()
        await super().stop()
