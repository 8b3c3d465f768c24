"""RocketMQ's own brokers, in DLedger mode or as a master with slaves, driven by its own client.

Owns the processes: a name server, three brokers, and the driver, a small Java program of ours
around RocketMQ's producer and consumer. Settings of the brokers are in `rocketmq_settings`.
"""

import os
from typing import Any, Final

from bench.peers import remote
from bench.peers.java_programs import java_words, write_properties
from bench.peers.peer import (
    NotOfferedError,
    PeerFacts,
    PeerFailedError,
)
from bench.peers.processes import Processes, RemotePeer
from bench.peers.rocketmq_settings import (
    JAVA_OPTIONS,
    NODE_COUNT,
    Mode,
    broker_properties,
    choose_ports,
)
from deploy.local_process import free_ports

_DRIVER: Final = "driver"
_NAME_SERVER: Final = "namesrv"
_STATUS_TIMEOUT_S: Final = 40.0
_TOPICS_TIMEOUT_S: Final = 600.0
_QUEUE_COUNT: Final = 4
_FACTS: Final = {
    "dledger": PeerFacts(
        name="rocketmq-dledger",
        durability="in the page cache of 2 of 3",
        client="RocketMQ's (Java), asynchronous",
        settings="enableDLegerCommitLog, enableBatchPush, sendMessageThreadPoolNums=16",
    ),
    "master_slave": PeerFacts(
        name="rocketmq-master-slave",
        durability="synced on the master, received by one slave",
        client="RocketMQ's (Java), asynchronous",
        settings="SYNC_MASTER, SYNC_FLUSH, inSyncReplicas=2, sendMessageThreadPoolNums=16",
    ),
}


class RocketMqPeer(RemotePeer):
    """A name server, three brokers and a driver."""

    def __init__(self, mode: Mode) -> None:
        """Create the peer; no process runs yet."""
        self.facts = _FACTS[mode]
        self._mode: Mode = mode
        super().__init__()
        self._brokers: dict[int, str] = {}
        """Names of the processes by their ports."""

    async def start(self, directory: str, *, topic_count: int = 1) -> None:
        """Start everything, wait until all brokers are known, and make the topics."""
        self._started = Processes(directory)
        self._control_port, name_port = free_ports(2)
        name_server = f"127.0.0.1:{name_port}"
        ports = choose_ports()
        path = os.path.join(directory, "namesrv.conf")
        write_properties(path, {"listenPort": str(name_port)})
        self._java(_NAME_SERVER, "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", path)
        # A broker that does not find it tries again ten seconds later.
        await self._processes.until_listening(name_port, "the name server")
        for n in range(NODE_COUNT):
            name = f"n{n}"
            self._brokers[ports[n].listen] = name
            path = os.path.join(directory, f"{name}.conf")
            root = os.path.join(directory, name)
            write_properties(
                path, broker_properties(self._mode, n, ports, root, name_server, topic_count)
            )
            self._java(name, "org.apache.rocketmq.broker.BrokerStartup", "-c", path)
        self._java(_DRIVER, "Driver", str(self._control_port), name_server)
        await self._wait_known()
        queue_count = _QUEUE_COUNT if topic_count == 1 else 1
        await self._ask(
            "make_topics", _TOPICS_TIMEOUT_S, count=topic_count, queue_count=queue_count
        )
        await self._wait_taken()

    def _java(self, name: str, main: str, *arguments: str) -> None:
        home = self._processes.directory
        words = java_words("rocketmq", home, JAVA_OPTIONS, main, arguments)
        self._processes.start(name, words, {"ROCKETMQ_HOME": home})

    async def _ask(
        self, op: str, timeout_s: float = _STATUS_TIMEOUT_S, **arguments: Any
    ) -> dict[str, Any]:
        return await remote.ask(self._control_port, {"op": op, **arguments}, timeout_s=timeout_s)

    async def _wait_known(self) -> None:
        """Wait until the name server lists three brokers, and one of them as the master."""

        async def is_known() -> bool:
            brokers = (await self._ask("status"))["brokers"]
            return len(brokers) == NODE_COUNT and "0" in brokers

        await self._processes.until(is_known, "not all brokers are known", PeerFailedError)

    async def _wait_taken(self) -> None:
        await self._processes.until(
            lambda: self._ask("probe"), "no append is taken", PeerFailedError
        )

    async def kill_leader(self) -> float:
        """SIGKILL the master's process, if another one can follow it."""
        if self._mode == "master_slave":
            raise NotOfferedError("no automatic failover: slaves are promoted by hand")
        address = (await self._ask("status"))["brokers"]["0"]
        return self._processes.kill(self._brokers[int(address.rpartition(":")[2])])

    async def restart(self) -> float:
        """Stop the brokers in order and start them."""
        moment_s = await self._processes.restart(*self._brokers.values())
        await self._wait_taken()
        return moment_s
