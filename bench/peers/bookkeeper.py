"""Three bookies of Apache BookKeeper, driven by its own client.

Owns the processes: a ZooKeeper for the metadata, which no append touches, three bookies, and the
driver, a small Java program of ours around BookKeeper's client. Each entry goes to all three
bookies; its ack comes when two have it in a journal that is synced.
"""

import os
from typing import Final

from bench.peers import remote
from bench.peers.java_programs import java_words, run_java, write_properties
from bench.peers.peer import (
    NotOfferedError,
    PeerFacts,
    PeerFailedError,
)
from bench.peers.processes import Processes, RemotePeer
from deploy.local_process import free_ports

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


class BookKeeperPeer(RemotePeer):
    """A ZooKeeper, three bookies and a driver."""

    facts = PeerFacts(
        name="bookkeeper",
        durability="synced on 2 of 3",
        client="BookKeeper's (Java), asynchronous",
        settings=f"ensemble {_NODE_COUNT}, ack quorum {_ACK_COUNT}, "
        "journalFlushWhenQueueEmpty, wire protocol v2, CRC32C",
    )

    _topic_count = 0

    async def start(self, directory: str, *, topic_count: int = 1) -> None:
        """Start everything, and make a ledger for each topic."""
        self._started = Processes(directory)
        self._topic_count = topic_count
        self._control_port, metadata_port, *ports = free_ports(2 + _NODE_COUNT)
        path = os.path.join(directory, "zoo.cfg")
        write_properties(
            path,
            {
                "dataDir": os.path.join(directory, _METADATA),
                "clientPort": str(metadata_port),
                "clientPortAddress": "127.0.0.1",
                "admin.enableServer": "false",
            },
        )
        self._java(_METADATA, "org.apache.zookeeper.server.quorum.QuorumPeerMain", path)
        await self._processes.until_listening(metadata_port, "ZooKeeper")
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
        home = self._processes.directory
        words = java_words("bookkeeper", home, _JAVA_OPTIONS, main, arguments)
        self._processes.start(name, words)

    async def _open(self) -> None:
        """Make the ledgers; before all bookies are known this fails, and is tried again."""
        request = {"op": "open", "count": self._topic_count}
        await self._processes.until(
            lambda: remote.ask(self._control_port, request, timeout_s=_OPEN_TIMEOUT_S),
            "no ledger",
            PeerFailedError,
        )

    async def kill_leader(self) -> float:
        """Raise NotOfferedError: no node takes the appends, the client itself sends them to all."""
        raise NotOfferedError("no failover of nodes: the client leads, and two bookies suffice")

    async def restart(self) -> float:
        """Stop the bookies in order and start them; wait until new ledgers can be made."""
        moment_s = await self._processes.restart(*(f"n{n}" for n in range(_NODE_COUNT)))
        await self._open()
        return moment_s


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
