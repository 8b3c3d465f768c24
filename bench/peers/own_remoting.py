"""QuorumLog driven by RocketMQ's own client for Java: three nodes behind the remoting protocol.

Owns the two halves: nodes as in `own`, and the driver of RocketMQ's brokers as in `rocketmq`.
"""

import asyncio
from dataclasses import replace
from typing import Final

from bench.peers import remote
from bench.peers.java_programs import java_words
from bench.peers.own import OwnPeer
from bench.peers.peer import ConsumeResult, PeerLoad, PeerMissingError, ProduceResult
from bench.peers.processes import Processes
from bench.peers.rocketmq import why_missing
from bench.peers.rocketmq_settings import JAVA_OPTIONS
from deploy.local_process import free_ports, is_free

_DRIVER: Final = "driver"
_PROBE_TIMEOUT_S: Final = 120.0


class OwnRemotingPeer(OwnPeer):
    """Three nodes in raft mode, and a Java process that drives them."""

    facts = replace(
        OwnPeer.facts, name="quorumlog-remoting", client="RocketMQ's (Java), asynchronous"
    )

    def __init__(self) -> None:
        """Create the peer; no process runs yet."""
        super().__init__()
        self._processes: Processes | None = None
        self._control_port = 0

    def pids(self) -> dict[str, int]:
        """Return the ids of the nodes and of the driver, which is the client."""
        own_pids = super().pids()
        return own_pids | (self._processes.pids() if self._processes is not None else {})

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
        (port,) = free_ports(1)
        self._control_port = port
        words = java_words("rocketmq", directory, JAVA_OPTIONS, "Driver", (str(port), servers))
        self._processes.start(_DRIVER, words, {"ROCKETMQ_HOME": directory})
        await asyncio.to_thread(
            self._processes.wait, lambda: not is_free(port), "the driver does not listen"
        )
        await remote.ask(port, {"op": "probe"}, timeout_s=_PROBE_TIMEOUT_S)

    async def produce(self, load: PeerLoad) -> ProduceResult:
        """Run the load in the driver."""
        return await remote.produce(self._control_port, load)

    async def consume(self) -> ConsumeResult:
        """Read in the driver, with a lite pull consumer."""
        return await remote.consume(self._control_port)

    async def stop(self) -> None:
        """End the driver and the nodes."""
        if self._processes is not None:
            self._processes.kill_all()
        await super().stop()
