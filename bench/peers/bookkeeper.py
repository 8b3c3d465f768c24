"""Three bookies of Apache BookKeeper, driven by its own client.

Owns the processes: a ZooKeeper for the metadata, which no append touches, three bookies, and the
driver, a small Java program of ours around BookKeeper's client. Each entry goes to all three
bookies; its ack comes when two have it in a journal that is synced.
"""

import asyncio
import os
import time
from typing import Final

from bench.peers import remote
from bench.peers.installed import why_no_jars
from bench.peers.java_programs import java_words, run_java, write_properties
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
from deploy.local_process import free_ports, is_free

_NODE_COUNT: Final = 3
_ACK_COUNT: Final = 2
_METADATA: Final = "zookeeper"
_DRIVER: Final = "driver"
_OPEN_TIMEOUT_S: Final = 600.0
# The heap of the start script, 2 GiB, would be most of this machine's memory three times.
_JAVA_OPTIONS: Final = (
    "-Xms512m", "-Xmx1g", "-XX:MaxDirectMemorySize=2g", "-XX:+UseG1GC",
    "--add-opens=java.base/java.io=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "-Dio.netty.tryReflectionSetAccessible=true",
)  # fmt: skip


def why_missing() -> str | None:
    """Return the reason why there is no BookKeeper; None if there is one."""
    return why_no_jars("bookkeeper", "lib", "classes")


class BookKeeperPeer:
    """A ZooKeeper, three bookies and a driver."""

    facts = PeerFacts(
        name="bookkeeper",
        durability="synced on 2 of 3",
        client="BookKeeper's (Java), asynchronous",
        settings=f"ensemble {_NODE_COUNT}, ack quorum {_ACK_COUNT}, "
        "journalFlushWhenQueueEmpty, wire protocol v2, CRC32C",
    )

    def __init__(self) -> None:
        """Create the peer; no process runs yet."""
        self._processes: Processes | None = None
        self._control_port = 0
        self._topic_count = 0

    def pids(self) -> dict[str, int]:
        """Return the ids of the bookies, ZooKeeper and the driver, which is the client."""
        return self._processes.pids() if self._processes is not None else {}

    async def start(self, directory: str, *, topic_count: int = 1) -> None:
        """Start everything, and make a ledger for each topic."""
        if (why := why_missing()) is not None:
            raise PeerMissingError(why)
        self._processes = Processes(directory)
        self._topic_count = topic_count
        self._control_port, metadata_port, *ports = free_ports(2 + _NODE_COUNT)
        path = os.path.join(directory, "zoo.cfg")
        write_properties(
            path, _zookeeper_properties(metadata_port, os.path.join(directory, _METADATA))
        )
        self._java(_METADATA, "org.apache.zookeeper.server.quorum.QuorumPeerMain", path)
        await asyncio.to_thread(
            self._processes.wait, lambda: not is_free(metadata_port), "ZooKeeper does not listen"
        )
        metadata = f"zk+hierarchical://127.0.0.1:{metadata_port}/ledgers"
        paths = [os.path.join(directory, f"n{n}.conf") for n in range(_NODE_COUNT)]
        for n, path in enumerate(paths):
            write_properties(
                path, _bookie_properties(metadata, ports[n], os.path.join(directory, f"n{n}"))
            )
        # Bookies expect the metadata of a cluster to be there.
        arguments = ["-conf", paths[0], "metaformat", "-nonInteractive", "-force"]
        shell = "org.apache.bookkeeper.bookie.BookieShell"
        await run_java("bookkeeper", directory, shell, arguments)
        for n, path in enumerate(paths):
            self._java(f"n{n}", "org.apache.bookkeeper.server.Main", "--conf", path)
        quorum = (str(_NODE_COUNT), str(_ACK_COUNT))
        self._java(_DRIVER, "Driver", str(self._control_port), metadata, *quorum)
        await self._open()

    def _java(self, name: str, main: str, *arguments: str) -> None:
        assert self._processes is not None, "not started"
        home = self._processes.directory
        words = java_words("bookkeeper", home, _JAVA_OPTIONS, main, arguments)
        self._processes.start(name, words)

    async def _open(self) -> None:
        """Make the ledgers; before all bookies are known this fails, and is tried again."""
        assert self._processes is not None, "not started"
        deadline = time.monotonic() + START_DEADLINE_S
        request = {"op": "open", "count": self._topic_count}
        while True:
            self._processes.check_alive()
            try:
                await remote.ask(self._control_port, request, timeout_s=_OPEN_TIMEOUT_S)
            except PeerFailedError as error:
                if time.monotonic() > deadline:
                    raise PeerFailedError(
                        f"no ledger after {START_DEADLINE_S} s: {error}"
                    ) from error
                await asyncio.sleep(0.1)
            else:
                return

    async def produce(self, load: PeerLoad) -> ProduceResult:
        """Run the load in the driver; the bodies of a batch are entries in a row."""
        return await remote.produce(self._control_port, load)

    async def consume(self) -> ConsumeResult:
        """Read the entries of the first topic's ledgers in the driver."""
        return await remote.consume(self._control_port)

    async def kill_leader(self) -> float:
        """Raise NotOfferedError: no node takes the appends, the client itself sends them to all."""
        raise NotOfferedError("no failover of nodes: the client leads, and two bookies suffice")

    async def restart(self) -> float:
        """Stop the bookies in order and start them; wait until new ledgers can be made."""
        assert self._processes is not None, "not started"
        names = [f"n{n}" for n in range(_NODE_COUNT)]
        await asyncio.to_thread(self._processes.stop, *names)
        moment_s = time.monotonic()
        for name in names:
            self._processes.start_again(name)
        await self._open()
        return moment_s

    async def stop(self) -> None:
        """End all processes."""
        if self._processes is not None:
            self._processes.kill_all()


def _zookeeper_properties(port: int, root: str) -> dict[str, str]:
    return {
        "dataDir": root,
        "clientPort": str(port),
        "clientPortAddress": "127.0.0.1",
        "admin.enableServer": "false",
    }


def _bookie_properties(metadata: str, port: int, root: str) -> dict[str, str]:
    """Return the settings of one bookie."""
    return {
        "bookiePort": str(port),
        "listeningInterface": "lo",
        "allowLoopback": "true",
        "advertisedAddress": "127.0.0.1",
        "metadataServiceUri": metadata,
        "journalDirectories": os.path.join(root, "journal"),
        "ledgerDirectories": os.path.join(root, "ledgers"),
        # Else a journal that has nothing more to write waits for more before it syncs.
        "journalFlushWhenQueueEmpty": "true",
        "httpServerEnabled": "false",
        "diskUsageThreshold": "0.99",
        "diskUsageWarnThreshold": "0.98",
    }
