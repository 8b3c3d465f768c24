"""QuorumLog driven by RocketMQ's own client for Java: three nodes behind the remoting protocol.

Owns the two halves: nodes as in `own`, and the driver of RocketMQ's brokers as in `rocketmq`.
"""

from dataclasses import replace
from typing import Final

from bench.peers import remote
from bench.peers.java_programs import java_words
from bench.peers.own import OwnPeer
from bench.peers.processes import Processes, RemotePeer
from bench.peers.rocketmq_settings import JAVA_OPTIONS
from deploy.local_process import free_ports

_DRIVER: Final = "driver"
_PROBE_TIMEOUT_S: Final = 120.0


class OwnRemotingPeer(RemotePeer, OwnPeer):
    """Three nodes in raft mode, and a Java process that drives them."""

    facts = replace(
        OwnPeer.facts, name="quorumlog-remoting", client="RocketMQ's (Java), asynchronous"
    )

    def pids(self) -> dict[str, int]:
        """Return the ids of the nodes and of the driver, which is the client."""
        return OwnPeer.pids(self) | RemotePeer.pids(self)

    async def start(self, directory: str, *, topic_count: int = 1) -> None:
        """Start the nodes and the driver, and make the topics."""
        await OwnPeer.start(self, f"{directory}/nodes", topic_count=topic_count)
        await self._connected().admin.create_topic("probe")
        assert self._nodes is not None, "started"
        servers = ";".join(self._nodes.framed_address(node) for node in self._nodes.node_ids)
        self._started = Processes(directory)
        [self._control_port] = free_ports(1)
        arguments = (str(self._control_port), servers)
        words = java_words("rocketmq", directory, JAVA_OPTIONS, "Driver", arguments)
        self._processes.start(_DRIVER, words, {"ROCKETMQ_HOME": directory})
        await self._processes.until_listening(self._control_port, "the driver")
        await remote.ask(self._control_port, {"op": "probe"}, timeout_s=_PROBE_TIMEOUT_S)

    async def stop(self) -> None:
        """End the driver and the nodes."""
        await RemotePeer.stop(self)
        await OwnPeer.stop(self)
