"""A real three-node cluster for the tests of users: processes, files, kill and restart.

Owns the life of the processes, an `async with` long; must not know the inside of a node: it starts
`qlog local` clusters. Everything is on loopback, on ports that are free, in one directory.

    async with quorumlog.testing.cluster() as cluster:
        async with cluster.client() as client:
            await client.admin.create_topic("orders")
            await client.producer().send("orders", b"hello")
            await cluster.kill(await cluster.leader_id())
"""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from quorumlog.arguments import checked, checked_call
from quorumlog.client import Client, connect
from quorumlog.errors import InvalidRequestError, QuorumlogError

if TYPE_CHECKING:
    from deploy.local import LocalCluster


@checked
class Cluster:
    """A running cluster. Nodes are named by their ids, from 1."""

    def __init__(self, local: "LocalCluster") -> None:
        self._local = local
        self.bootstrap: Final = local.bootstrap
        """Addresses of all nodes, for `quorumlog.connect` and for `qlog --server`."""
        self.cluster_id: Final = local.cluster_id
        self.node_ids: Final = local.node_ids
        """Ids of all nodes, running or not."""
        self.groups: Final = local.groups
        """The nodes of each broker group, by its name."""
        self.directory: Final = local.directory
        """Directory with `node-N/`: the settings, the log lines and the data of a node."""

    def address(self, node_id: int) -> str:
        """Return host:port of a node's client service."""
        return self._local.address(self._named(node_id))

    def client(self, **options: Any) -> Client:
        """Make a client of the cluster; `options` are those of `quorumlog.connect`."""
        return connect(self.bootstrap, cluster_id=self.cluster_id, **options)

    async def leader_id(self, group: str | None = None) -> int:
        """Return the leader of the first broker group, or of this one; 0: there is none."""
        if group is not None and group not in self.groups:
            names = ", ".join(self.groups)
            raise InvalidRequestError(f"there is no broker group {group!r}; use one of {names}")
        return await asyncio.to_thread(self._local.leader_id, group)

    async def wait_ready(self, timeout_ms: int = 120_000) -> int:
        """Wait until all running nodes are ready and one leads; return the leader."""
        with _told():
            return await asyncio.to_thread(self._local.wait_ready, timeout_ms)

    async def kill(self, node_id: int) -> None:
        """End a node as a crash would (SIGKILL). Its files stay."""
        await asyncio.to_thread(self._local.kill, self._named(node_id))

    async def stop(self, node_id: int) -> None:
        """Stop a node gracefully: it hands leadership over first."""
        await asyncio.to_thread(self._local.stop, self._named(node_id))

    async def restart(self, node_id: int, *, wait: bool = True) -> None:
        """Start a node, after stopping it if it runs, and wait until it is ready."""
        with _told():
            await asyncio.to_thread(self._local.restart, self._named(node_id))
        if wait:
            await self.wait_ready()

    def pause(self, node_id: int) -> None:
        """Stop a node from running (SIGSTOP); its connections stay open."""
        self._local.pause(self._named(node_id))

    def resume(self, node_id: int) -> None:
        """Let a paused node run again."""
        self._local.resume(self._named(node_id))

    def _named(self, node_id: int) -> int:
        """Return the id of a node. Raises InvalidRequestError if the cluster has no such node."""
        if node_id not in self.node_ids:
            node_ids = ", ".join(map(str, self.node_ids))
            raise InvalidRequestError(f"there is no node {node_id}; use one of {node_ids}")
        return node_id


@contextmanager
def _told() -> Iterator[None]:
    """Translate errors of the processes and their directory into errors of the client."""
    from deploy.local import LocalError

    try:
        yield
    except LocalError as error:
        raise QuorumlogError(str(error), code=error.code) from error
    except OSError as error:
        text = f"the cluster's directory cannot be used ({error}); use another one"
        raise InvalidRequestError(text, code="local.directory") from error


@checked_call
@asynccontextmanager
async def cluster(
    nodes: int = 3,
    *,
    groups: int = 1,
    directory: str | Path | None = None,
    flush: Literal["sync", "async"] = "sync",
    settings: Mapping[str, object] | None = None,
) -> AsyncIterator[Cluster]:
    """Run a cluster of child processes, ready when the block begins, killed when it ends.

    Each of the `groups` has `nodes` nodes. Without a `directory` a temporary one is used, and
    removed. `settings` are those of a node (`qlog config show`). The start takes about two
    seconds. Raises QuorumlogError with a code of `local.` for a cluster that cannot be started.
    """
    from deploy.local import LocalCluster

    home = Path(directory) if directory is not None else Path(tempfile.mkdtemp(prefix="quorumlog-"))
    try:
        with _told():
            local = LocalCluster.create(home, nodes, groups=groups, flush=flush, settings=settings)
        try:
            with _told():
                await asyncio.to_thread(local.start)
                await asyncio.to_thread(local.wait_ready)
            yield Cluster(local)
        finally:
            # A graceful stop of all would take longer, and a kill leaves in the files what a
            # crash leaves, which is all that was promised.
            for node_id in local.node_ids:
                await asyncio.to_thread(local.kill, node_id)
    finally:
        if directory is None:
            await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)
