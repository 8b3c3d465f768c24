"""The cluster that a benchmark starts for itself, in a directory that is removed afterwards.

Owns the choice of the directory; the processes are deploy.local's.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

from bench.report import directory_kind
from deploy.local import LocalCluster
from deploy.local_nodes import Relay

TMPFS = "/dev/shm"
NODE_COUNT = 3
# A node makes the next two files ahead and fills them with zeros. With larger files three nodes
# would do so for most of a run: 1.5 GiB before the first message needs any of it.
FILE_SIZE_BYTES = 64 << 20
_SETTINGS = {"file_size_bytes": FILE_SIZE_BYTES}


@dataclass(frozen=True, slots=True)
class OwnCluster:
    """Running nodes of ours."""

    directory: str
    nodes: LocalCluster

    @property
    def bootstrap(self) -> str:
        """Addresses of all nodes."""
        return self.nodes.bootstrap

    @property
    def directory_kind(self) -> str:
        """Kind of the file system of the data: tmpfs or disk."""
        return directory_kind(self.directory)

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the running nodes, by name."""
        states = self.nodes.status()
        return {f"node {state.node_id}": state.pid for state in states if state.pid is not None}


def parent_of_data(given: str | None = None) -> str:
    """Return the given directory, else /dev/shm if it can be written, else the temporary one."""
    return given or (TMPFS if os.access(TMPFS, os.W_OK) else tempfile.gettempdir())


@contextmanager
def directory_made(directory: str | None) -> Iterator[None]:
    """Make the directory if it is not there; one that is empty afterwards is removed again."""
    is_new = directory is not None and not os.path.isdir(directory)
    if directory is not None and is_new:
        os.makedirs(directory)
    try:
        yield
    finally:
        if directory is not None and is_new:
            with suppress(OSError):
                os.rmdir(directory)


@contextmanager
def own_cluster(
    directory: str | None,
    *,
    flush: Literal["sync", "async"],
    replication: Literal["raft", "sync_master", "async_master"] = "raft",
    relay: Relay | None = None,
) -> Iterator[OwnCluster]:
    """Run three nodes in a new directory below that of `parent_of_data`.

    Afterwards it is removed, unless the run failed and the place was given: logs may explain it. A
    place that was not there is removed, too.
    """
    with directory_made(directory):
        root = tempfile.mkdtemp(prefix="qlog-bench-", dir=parent_of_data(directory))
        is_kept = directory is not None
        try:
            nodes = LocalCluster.create(
                root,
                NODE_COUNT,
                flush=flush,
                replication=replication,
                settings=_SETTINGS,
                relay=relay,
            )
            with nodes:
                yield OwnCluster(root, nodes)
            is_kept = False
        finally:
            if not is_kept:
                shutil.rmtree(root)
