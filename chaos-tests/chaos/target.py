"""The attacked nodes: their status, their processes, and their repair.

Owns signals, exit codes and waiting. Must not know what is between the nodes or under them; a
cluster of a run (cluster.py) adds proxies and disks, a user's one (local_attack.py) has none.
"""

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Final

import psutil

from chaos.ends import KILLED, STOPPED, ProcessEnds
from chaos.errors import NotSoError
from chaos.interceptor import Interceptor
from chaos.profile import Profile
from chaos.shim import Shim
from chaos.usage import Usage
from deploy.local import LINK_FAULTS_FILE, LocalCluster, LocalError, NodeState
from deploy.local_metrics import metric_of
from deploy.local_nodes import ask

READY_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.03


class Target:
    """A cluster that can be attacked. Blocking; call it from a thread."""

    def __init__(self, local: LocalCluster, bootstrap: str, profile: Profile | None = None) -> None:
        self.local: Final = local
        self.profile: Final = profile or Profile()
        self.bootstrap: Final = bootstrap
        """Addresses for clients."""
        self.shims: Final[dict[int, Shim]] = {}
        self.interceptor: Final = Interceptor(local.directory / LINK_FAULTS_FILE)
        self._paused: set[int] = set()
        self._ends: Final = ProcessEnds(local)
        for node in local.node_ids:
            self._ends.watch(node)

    # --- Facts ---

    @property
    def node_ids(self) -> tuple[int, ...]:
        """All nodes."""
        return self.local.node_ids

    def data_directory(self, node: int) -> Path:
        """Return the directory of a node's data."""
        return self.local.node_directory(node) / "data"

    def status(self) -> dict[int, NodeState]:
        """Return the state that every node reports of itself."""
        return {state.node_id: state for state in self.local.status()}

    def leader(self) -> int:
        """Return the node that leads and is ready; 0 if there is none."""
        return self.local.leader_id()

    def is_up(self, node: int) -> bool:
        """Whether a node answers and knows a term."""
        return self.status()[node].term is not None

    def usage(self) -> dict[int, Usage]:
        """Return the resources of the process of each running node."""
        by_node = {}
        for node in self.node_ids:
            process = self.local.process(node)
            if process is not None and process.is_alive:
                with contextlib.suppress(psutil.Error, FileNotFoundError):
                    by_node[node] = Usage.of(process.pid)
        return by_node

    def metric(self, node: int, name: str, **labels: str) -> float:
        """Return a metric of a running node, 0 if not yet there. Raises the errors of
        `metric_of`."""
        return metric_of(self.local, node, name, **labels)

    def pid(self, node: int) -> int:
        """Return the process id of a running node. Raises NotSoError if it does not run."""
        pid = self.status()[node].pid
        if pid is None:
            raise NotSoError(f"node {node} does not run")
        return pid

    # --- Life ---

    def start(self, *nodes: int, failpoints: str = "") -> None:
        """Start nodes, by default all that do not run."""
        for node in nodes or self.node_ids:
            environment = {"QUORUMLOG_FAILPOINTS": failpoints} if failpoints else {}
            if node in self.shims:
                environment |= self.shims[node].environment()
            self._ends.look()  # The start replaces its last process.
            self.local.start(node, environment=environment)
            self._ends.watch(node)

    def kill(self, node: int) -> None:
        """Kill a node by SIGKILL. Raises NotSoError if it was dead before."""
        self._paused.discard(node)
        if not self.local.kill(node):
            raise NotSoError(f"node {node} was dead before it could be killed")
        self._ends.allow(node, KILLED)
        self._ends.look()  # Finds its dumps before its files are changed.

    def stop(self, node: int) -> None:
        """Stop a node by SIGTERM, and wait. Raises NotSoError if it had to be killed."""
        self.let_stop(node)
        if self.local.stop(node):
            raise NotSoError(f"node {node} did not stop in time and was killed")

    def send(self, node: int, number: signal.Signals) -> None:
        """Send any other signal to a node."""
        os.kill(self.pid(node), number)

    def pause(self, node: int) -> None:
        """Stop a node from running, by SIGSTOP."""
        self._paused.add(node)
        self.local.pause(node)

    def resume(self, node: int) -> None:
        """Let a node continue, by SIGCONT."""
        self._paused.discard(node)
        self.local.resume(node)

    def may_end(self, node: int, *codes: int) -> None:
        """Allow a node's process to end with one of these statuses, by a fault that begins now."""
        self._ends.allow(node, *codes)

    def wait_ended(self, node: int, *codes: int, timeout_s: float = READY_TIMEOUT_S) -> int:
        """Wait until a node's process has ended on its own, with one of these statuses; return it.

        Raises NotSoError if it still runs, or ended with another status.
        """
        self._ends.allow(node, *codes)
        deadline = time.monotonic() + timeout_s
        while self.local.is_alive(node):
            if time.monotonic() >= deadline:
                raise NotSoError(f"node {node} still runs after {timeout_s} s")
            time.sleep(_POLL_S)
        self._ends.look()
        code = self.local.exit_code(node)
        assert code is not None, f"node {node} was started here"
        if code not in codes:
            raise NotSoError(f"node {node} ended with {code}, expected {sorted(codes)}")
        return code

    def let_stop(self, *nodes: int) -> None:
        """Allow running nodes, by default all, to stop: they are about to be told to."""
        for node in nodes or self.node_ids:
            if self.local.is_alive(node):
                self._ends.allow(node, STOPPED)

    def unexpected_ends(self) -> list[str]:
        """Return the problems of the ends of processes since the last call (I17)."""
        return self._ends.take()

    def heal(self) -> None:
        """End every fault, and start stopped nodes. Does not wait."""
        self.interceptor.clear()
        for node in tuple(self._paused):
            self.resume(node)
        for shim in self.shims.values():
            shim.clear()
        self.start()

    def close(self) -> list[str]:
        """Stop all; return the problems of the nodes' ends. The directory stays."""
        self.let_stop()
        self.local.stop()
        return self.unexpected_ends()

    def remove(self) -> None:
        """Delete the files, too."""
        shutil.rmtree(self.local.directory)

    def wait_answering(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until the processes of all nodes run and answer, ready or not: the work of a node
        on its directory comes later."""
        deadline = time.monotonic() + timeout_s
        for state in self.local.status():
            directory = self.local.node_directory(state.node_id) / "data"
            while ask(state.http_address, "/status", directory) is None:
                if time.monotonic() >= deadline:
                    raise NotSoError(f"node {state.node_id} does not answer after {timeout_s} s")
                time.sleep(_POLL_S)

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> int:
        """Wait until all nodes are ready and one leads; return the leader."""
        try:
            return self.local.wait_ready(int(timeout_s * 1000), node_ids=self.node_ids)
        except LocalError as error:
            raise NotSoError(str(error)) from error
