"""A local cluster whose nodes run on other hosts: its settings and addresses, before a start."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from deploy.local import LocalCluster, LocalError
from deploy.local_nodes import NodeHost

HOSTS = [NodeHost(f"host-{n}", f"console-{n}", ("nsenter", f"--net=/n{n}", "--")) for n in (1, 2)]


def settings_of(cluster: LocalCluster, node_id: int) -> dict[str, Any]:
    return tomllib.loads((cluster.node_directory(node_id) / "node.toml").read_text())


def test_nodes_of_other_hosts_listen_to_them_and_prove_a_secret(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path / "c", 2, hosts=HOSTS)
    for node_id in cluster.node_ids:
        settings = settings_of(cluster, node_id)
        listens = [settings[name] for name in ("listen", "peer_listen", "http_listen")]
        assert [address.partition(":")[0] for address in listens] == ["0.0.0.0"] * 3
        assert Path(settings["secret_file"]).stat().st_mode & 0o077 == 0
        peers = settings["peers"].items()
        assert {n: one["peer_address"].partition(":")[0] for n, one in peers} == {
            "1": "host-1",
            "2": "host-2",
        }
    assert cluster.address(2).startswith("host-2:")
    assert cluster.framed_address(2).startswith("host-2:")
    assert [state.http_address.partition(":")[0] for state in cluster.status()] == [
        "console-1",
        "console-2",
    ]


def test_a_node_of_another_host_is_not_started_on_this_one(tmp_path: Path) -> None:
    LocalCluster.create(tmp_path / "c", 2, hosts=HOSTS)
    with pytest.raises(LocalError, match="node 2 runs on host host-2") as caught:
        LocalCluster.open(tmp_path / "c").start(2)
    assert caught.value.code == "local.other_host"


def test_each_node_has_a_host(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="2 hosts for 3 nodes"):
        LocalCluster.create(tmp_path / "c", 3, hosts=HOSTS)
