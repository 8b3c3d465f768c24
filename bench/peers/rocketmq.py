"""RocketMQ's own brokers, in DLedger mode or as a master with slaves, driven by its own client.

Owns the processes: a name server, three brokers, and the driver, a small Java program of ours
around RocketMQ's producer and consumer. Settings of the brokers are in `rocketmq_settings`.
"""

import asyncio
import os
import time
from typing import Any, Final

from bench.peers import remote
from bench.peers.installed import why_no_jars
from bench.peers.java_programs import java_words, write_properties
from bench.peers.peer import (
    ConsumeResult,
    NotOfferedError,
    PeerFacts,
    PeerFailedError,
    PeerLoad,
    PeerMissingError,
    ProduceResult,
)
from bench.peers.processes import START_DEADLINE_S, Processes
from bench.peers.rocketmq_settings import (
    JAVA_OPTIONS,
    NODE_COUNT,
    Mode,
    broker_properties,
    choose_ports,
)
from deploy.local_process import free_ports, is_free

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


def why_missing() -> str | None:
    """Return the reason why there is no RocketMQ; None if there is one."""
    return why_no_jars("rocketmq", "lib", "classes")


class RocketMqPeer:
    """A name server, three brokers and a driver."""

    def __init__(self, mode: Mode) -> None:
        """Create the peer; no process runs yet."""
        self.facts = _FACTS[mode]
        self._mode: Mode = mode
        self._processes: Processes | None = None
        self._control_port = 0
        self._brokers: dict[int, str] = {}
        """Names of the processes by their ports."""

    def pids(self) -> dict[str, int]:
        """Return the ids of the brokers, the name server and the driver, which is the client."""
        return self._processes.pids() if self._processes is not None else {}

    async def start(self, directory: str, *, topic_count: int = 1) -> None:
        """Start everything, wait until all brokers are known, and make the topics."""
        why = why_missing()
        if why is not None:
            raise PeerMissingError(why)
        self._processes = Processes(directory)
        self._control_port, name_port = free_ports(2)
        name_server = f"127.0.0.1:{name_port}"
        ports = choose_ports()
        path = os.path.join(directory, "namesrv.conf")
        write_properties(path, {"listenPort": str(name_port)})
        self._java(_NAME_SERVER, "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", path)
        # A broker that does not find it tries again ten seconds later.
        await asyncio.to_thread(
            self._processes.wait, lambda: not is_free(name_port), "the name server does not listen"
        )
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
        assert self._processes is not None, "not started"
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

        await self._until(is_known, "not all brokers are known")

    async def _wait_taken(self) -> None:
        async def is_taken() -> bool:
            await self._ask("probe")
            return True

        await self._until(is_taken, "no append is taken")

    async def _until(self, is_so: Any, what: str) -> None:
        assert self._processes is not None, "not started"
        deadline, said = time.monotonic() + START_DEADLINE_S, ""
        while time.monotonic() < deadline:
            self._processes.check_alive()
            try:
                if await is_so():
                    return
            except PeerFailedError as error:
                said = f": {error}"  # Not up yet; the deadline bounds it.
            await asyncio.sleep(0.1)
        raise PeerFailedError(f"{what} after {START_DEADLINE_S} s{said}")

    async def produce(self, load: PeerLoad) -> ProduceResult:
        """Run the load in the driver."""
        return await remote.produce(self._control_port, load)

    async def consume(self) -> ConsumeResult:
        """Read in the driver, with a lite pull consumer."""
        return await remote.consume(self._control_port)

    async def kill_leader(self) -> float:
        """SIGKILL the master's process, if another one can follow it."""
        if self._mode == "master_slave":
            raise NotOfferedError("no automatic failover: slaves are promoted by hand")
        assert self._processes is not None, "not started"
        address = (await self._ask("status"))["brokers"]["0"]
        return self._processes.kill(self._brokers[int(address.rpartition(":")[2])])

    async def restart(self) -> float:
        """Stop the brokers in order and start them."""
        assert self._processes is not None, "not started"
        names = tuple(self._brokers.values())
        await asyncio.to_thread(self._processes.stop, *names)
        moment_s = time.monotonic()
        for name in names:
            self._processes.start_again(name)
        await self._wait_taken()
        return moment_s

    async def stop(self) -> None:
        """End all processes."""
        if self._processes is not None:
            self._processes.kill_all()
