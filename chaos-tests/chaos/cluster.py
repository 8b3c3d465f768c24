"""One cluster under attack: nodes, the proxies around them, their shims and disks.

Owns what belongs together for one cluster, and how all of it is made whole again. Must not know
scenarios or load. Nodes tell each other and their clients only the addresses of proxies; status is
asked past them, so it is known while everything is cut.
"""

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Final

import psutil

from chaos.disks import Ballast, Disks
from chaos.errors import NotSoError
from chaos.links import CLIENTS, Links
from chaos.profile import Mode, Profile
from chaos.shim import Shim
from chaos.toxiproxy import HOST, Toxiproxy
from deploy.local import LocalCluster, LocalError, NodeState

READY_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.03
LINK_FAULTS_VARIABLE: Final = "QUORUMLOG_TEST_LINK_FAULTS"


class ChaosCluster:
    """A cluster that can be attacked. Blocking; call it from a thread."""

    def __init__(
        self,
        directory: Path,
        profile: Profile,
        server: Toxiproxy,
        shim_library: Path | None,
        mode: Mode = Mode.RAFT,
    ) -> None:
        self.directory, self.profile, self.mode = directory, profile, mode
        self.links: Final = Links(server)
        self.disks: Final = Disks()
        self._server = server
        self.local = LocalCluster.create(
            directory,
            profile.node_count,
            flush=profile.flush,
            settings=self._settings(),
            relay=self.links.relay,
        )
        self._lead_clients_through_proxies()
        self.shims: dict[int, Shim] = {}
        for node in self.local.node_ids:
            data = self.data_directory(node)
            if profile.disk_size_bytes:
                self.disks.mount(data, profile.disk_size_bytes)
            if shim_library is not None:
                control = self.local.node_directory(node) / "shim"
                shadow = control.with_name("shadow") if profile.is_shadowed else None
                self.shims[node] = Shim(shim_library, data, control, shadow)
        self._paused: set[int] = set()
        self._ballast: dict[int, Ballast] = {}

    def _settings(self) -> dict[str, object]:
        found = self.profile.node_settings()
        if self.mode is not Mode.RAFT:
            found["replication"] = self.mode.value
        return found

    def _lead_clients_through_proxies(self) -> None:
        """Nodes say to clients what their settings give as each other's addresses."""
        ports = {}
        for node in self.local.node_ids:
            port = int(self.local.address(node).rpartition(":")[2])
            ports[port] = self.links.relay(CLIENTS, node, port)
        for node in self.local.node_ids:
            path = self.local.node_directory(node) / "node.toml"
            text = path.read_text("utf-8")
            for port, proxied in ports.items():
                told = f'\naddress = "{HOST}:{port}"'
                assert told in text, f"{path} does not say {told!r}"
                text = text.replace(told, f'\naddress = "{HOST}:{proxied}"')
            path.write_text(text, "utf-8")
        self.bootstrap = ",".join(f"{HOST}:{proxied}" for proxied in ports.values())

    # --- Facts ---

    @property
    def node_ids(self) -> tuple[int, ...]:
        """All nodes."""
        return self.local.node_ids

    def data_directory(self, node: int) -> Path:
        """Where a node keeps everything."""
        return self.local.node_directory(node) / "data"

    @property
    def link_faults_path(self) -> Path:
        """What the interceptors of all nodes read (node/link_faults.py)."""
        return self.directory / "link-faults.json"

    def status(self) -> dict[int, NodeState]:
        """What every node says of itself."""
        return {state.node_id: state for state in self.local.status()}

    def leader(self) -> int:
        """The node that leads and is ready; 0 if none does."""
        return self.local.leader_id()

    def socket_counts(self) -> dict[int, int]:
        """Sockets of each node that runs, for a look at leaks."""
        found = {}
        for node, state in self.status().items():
            if state.pid is not None:
                with contextlib.suppress(psutil.Error):
                    found[node] = len(psutil.Process(state.pid).net_connections("tcp"))
        return found

    def is_up(self, node: int) -> bool:
        """Whether a node answers and knows a term."""
        return self.status()[node].term is not None

    def pid(self, node: int) -> int:
        """Of a node that runs."""
        pid = self.status()[node].pid
        if pid is None:
            raise NotSoError(f"node {node} does not run")
        return pid

    # --- Life ---

    def environment(self, node: int) -> dict[str, str]:
        """What is added to a node's environment."""
        found = {LINK_FAULTS_VARIABLE: str(self.link_faults_path)}
        if node in self.shims:
            found |= self.shims[node].environment()
        return found

    def start(self, *nodes: int, failpoints: str = "") -> None:
        """Start nodes, by default all that do not run."""
        for node in nodes or self.node_ids:
            extra = {"QUORUMLOG_FAILPOINTS": failpoints} if failpoints else {}
            self.local.start(node, environment={**self.environment(node), **extra})

    def kill(self, node: int) -> None:
        """SIGKILL."""
        self._paused.discard(node)
        if not self.local.kill(node):
            raise NotSoError(f"node {node} was dead before it could be killed")

    def stop(self, node: int) -> None:
        """SIGTERM, and wait."""
        if self.local.stop(node):
            raise NotSoError(f"node {node} did not stop in time and was killed")

    def send(self, node: int, number: signal.Signals) -> None:
        """Any other signal."""
        os.kill(self.pid(node), number)

    def pause(self, node: int) -> None:
        """SIGSTOP."""
        self._paused.add(node)
        self.local.pause(node)

    def resume(self, node: int) -> None:
        """SIGCONT."""
        self._paused.discard(node)
        self.local.resume(node)

    def fill(self, node: int) -> int:
        """Take all room on a node's disk."""
        ballast = self._ballast[node] = Ballast(self.data_directory(node))
        return ballast.take()

    def make_room(self, node: int) -> None:
        """Undo `fill`."""
        self._ballast.pop(node).give_back()

    def wait_ended(self, node: int, timeout_s: float = READY_TIMEOUT_S) -> int:
        """Wait until a node's process has ended by itself; return its exit code."""
        deadline = time.monotonic() + timeout_s
        while self.local.is_alive(node):
            if time.monotonic() >= deadline:
                raise NotSoError(f"node {node} still runs after {timeout_s} s")
            time.sleep(_POLL_S)
        code = self.local.exit_code(node)
        assert code is not None, f"node {node} was started here"
        return code

    def heal(self) -> None:
        """Take every fault away, and start what is down. Nothing is waited for."""
        self.links.heal()
        self.link_faults_path.unlink(missing_ok=True)
        for node in tuple(self._paused):
            self.resume(node)
        for shim in self.shims.values():
            shim.clear()
        for node in tuple(self._ballast):
            self.make_room(node)
        self.start()

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> int:
        """Wait until all nodes are ready and one leads; return it."""
        try:
            return self.local.wait_ready(int(timeout_s * 1000), node_ids=self.node_ids)
        except LocalError as error:
            raise NotSoError(str(error)) from error

    def close(self) -> list[int]:
        """Stop all; return the nodes that had to be killed. The directory stays."""
        self.links.heal()
        for shim in self.shims.values():
            shim.clear()
        for node in tuple(self._ballast):
            self.make_room(node)
        killed = self.local.stop()
        self._server.destroy_all()
        for shim in self.shims.values():
            shim.close()
        return killed

    def remove(self) -> None:
        """Take the files away, too."""
        self.disks.close()
        shutil.rmtree(self.directory)
