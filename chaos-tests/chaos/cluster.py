"""One cluster of a run: nodes, the proxies around them, their shims and disks.

Owns the parts of one cluster and their complete repair. Must not know scenarios or load. Nodes tell
each other and their clients only the addresses of proxies, clients those of gRPC and of frames.
The suite reads the status past the proxies, so it is known while everything is cut.
"""

import json
from pathlib import Path
from typing import Final

from chaos.disks import Ballast, Disks
from chaos.links import CLIENTS, Links, asking
from chaos.profile import ClusterMode, Profile
from chaos.shim import Shim
from chaos.target import Target
from chaos.toxiproxy import HOST, Toxiproxy
from deploy.local import LocalCluster


class ChaosCluster(Target):
    """A cluster with everything around it that can fail."""

    def __init__(
        self,
        directory: Path,
        profile: Profile,
        server: Toxiproxy,
        shim_library: Path | None,
        mode: ClusterMode = ClusterMode.RAFT,
    ) -> None:
        self.links: Final = Links(server)
        self.disks: Final = Disks()
        self._server = server
        local = LocalCluster.create(
            directory,
            profile.node_count,
            flush=profile.flush,
            settings=profile.node_settings(),
            replication=mode.value,
            relay=self.links.relay,
        )
        _lead_askers_through_proxies(local, self.links)
        super().__init__(local, _lead_clients_through_proxies(local, self.links), profile)
        self._ballast: dict[int, Ballast] = {}
        for node in self.node_ids:
            data = self.data_directory(node)
            if profile.disk_size_bytes:
                self.disks.mount(data, profile.disk_size_bytes)
            if shim_library is not None:
                control = local.node_directory(node) / "shim"
                shadow = control.with_name("shadow") if profile.is_shadowed else None
                self.shims[node] = Shim(shim_library, data, control, shadow)

    def fill(self, node: int, left_size_bytes: int = 0) -> int:
        """Fill a node's disk, leaving `left_size_bytes` free; return the bytes written."""
        ballast = self._ballast[node] = Ballast(self.data_directory(node))
        return ballast.take(left_size_bytes)

    def make_room(self, node: int) -> None:
        """Undo `fill`."""
        self._ballast.pop(node).give_back()

    def heal(self) -> None:
        """End every fault, and start stopped nodes. Does not wait."""
        self.links.heal()
        for node in tuple(self._ballast):
            self.make_room(node)
        super().heal()

    def close(self) -> list[str]:
        """Stop all; return the problems of the nodes' ends. The directory stays."""
        self.links.heal()
        for shim in self.shims.values():
            shim.clear()
        for node in tuple(self._ballast):
            self.make_room(node)
        problems = super().close()
        self._server.destroy_all()
        for shim in self.shims.values():
            shim.close()
        return problems

    def remove(self) -> None:
        """Delete the files, too."""
        self.disks.close()
        super().remove()


def _lead_askers_through_proxies(local: LocalCluster, links: Links) -> None:
    """Let nodes without a replica of the name server ask through proxies.

    Each of them asks the replicas of other nodes at their client ports."""
    nodes = {local.address(node): node for node in local.node_ids}
    for node in local.node_ids:
        path = local.node_directory(node) / "node.toml"
        lines = path.read_text("utf-8").splitlines(keepends=True)
        for at, line in enumerate(lines):
            name, _, value = line.partition(" = ")
            if name == "nameserver_servers":
                addresses = [
                    f"{HOST}:{links.relay(asking(node), nodes[one], int(one.rpartition(':')[2]))}"
                    for one in json.loads(value)
                ]
                lines[at] = f"{name} = {json.dumps(addresses)}\n"
        path.write_text("".join(lines), "utf-8")


def _lead_clients_through_proxies(local: LocalCluster, links: Links) -> str:
    """Put proxied addresses into the nodes' settings, which are told to clients; return them.

    A node listens for frames where its proxy leads to, and nowhere else if that port is taken."""
    ports, framed = {}, {}
    for node in local.node_ids:
        port = _port_of(local.address(node))
        ports[port] = links.relay(CLIENTS, node, port)
        framed[node] = links.relay_frames(node, _port_of(local.framed_address(node)))
    for node in local.node_ids:
        path = local.node_directory(node) / "node.toml"
        own = {
            "listen_framed": local.framed_address(node),
            "advertise_framed": f"{HOST}:{framed[node]}",
        }
        head = "".join(f"{name} = {json.dumps(value)}\n" for name, value in own.items())
        text = head + path.read_text("utf-8")
        for port, proxied in ports.items():
            setting = f'\naddress = "{HOST}:{port}"'
            assert setting in text, f"{path} does not say {setting!r}"
            text = text.replace(setting, f'\naddress = "{HOST}:{proxied}"')
        path.write_text(text, "utf-8")
    return ",".join(f"{HOST}:{proxied}" for proxied in ports.values())


def _port_of(address: str) -> int:
    return int(address.rpartition(":")[2])
