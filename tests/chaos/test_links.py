"""Faults on the links of clients hit gRPC and frames, and each trial has one transport."""

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import chaos.scenarios  # noqa: F401  Registers them.
import pytest
from chaos import cluster
from chaos.campaign import Campaign
from chaos.links import CLIENTS, Links, asking
from chaos.page import page
from chaos.profile import ScenarioOptions
from chaos.scenario import SCENARIOS
from chaos.summary import CampaignSummary
from chaos.toxiproxy import BOTH, DOWNSTREAM
from chaos.trial import TrialResult

from deploy.local import LocalCluster
from quorumlog.cluster.transport import TRANSPORTS, Transport

LINK = (CLIENTS, 1)


class _Server:
    """Proxies that do nothing, and remember what was done to them."""

    def __init__(self) -> None:
        self.made: dict[str, _Proxy] = {}

    def create(self, name: str, port: int) -> "_Proxy":
        proxy = self.made[name] = _Proxy(name, port, 50_000 + len(self.made))
        return proxy

    def byte_counts(self) -> dict[tuple[str, str], tuple[int, int]]:
        return {(name, stream): (1, 0) for name in self.made for stream in BOTH}


class _Proxy:
    def __init__(self, name: str, upstream: int, port: int) -> None:
        self.name, self.upstream, self.port = name, upstream, port
        self.toxics: set[tuple[str, str]] = set()
        self.is_enabled = True

    def add(self, kind: str, stream: str, **_: int) -> None:
        self.toxics.add((kind, stream))

    def remove(self, kind: str, stream: str) -> None:
        self.toxics.discard((kind, stream))

    def disable(self) -> None:
        self.is_enabled = False

    def enable(self) -> None:
        self.is_enabled = True


def made_links(directory: Path) -> tuple[_Server, Links, LocalCluster]:
    server = _Server()
    links = Links(server)  # type: ignore[arg-type]
    local = LocalCluster.create(directory, 2, relay=links.relay)
    cluster._lead_clients_through_proxies(local, links)
    return server, links, local


def test_nodes_tell_clients_of_proxies_before_both_ports(tmp_path: Path) -> None:
    server, links, local = made_links(tmp_path / "c")
    for node in local.node_ids:
        text = (local.node_directory(node) / "node.toml").read_text("utf-8")
        settings: dict[str, Any] = tomllib.loads(text)
        of_grpc, of_frames = (server.made[f"{kind}>{node}"] for kind in ("clients", "framed"))
        assert settings["peers"][str(node)]["address"] == f"127.0.0.1:{of_grpc.port}"
        assert settings["advertise_framed"] == f"127.0.0.1:{of_frames.port}"
        assert settings["listen_framed"] == f"127.0.0.1:{of_frames.upstream}"
        assert settings["listen"] == f"127.0.0.1:{of_grpc.upstream}"
        assert links.ports((CLIENTS, node)) == [of_grpc.port, of_frames.port]


def test_every_fault_on_the_link_of_clients_hits_both_proxies(tmp_path: Path) -> None:
    server, links, _ = made_links(tmp_path / "c")
    hit = [server.made["clients>1"], server.made["framed>1"]]
    others = [proxy for proxy in server.made.values() if proxy not in hit]

    def toxics(*expected: tuple[str, str]) -> bool:
        assert not any(proxy.toxics for proxy in others)
        return all(proxy.toxics == set(expected) for proxy in hit)

    links.cut([LINK])
    assert toxics(*(("timeout", stream) for stream in BOTH))
    links.join([LINK])
    assert toxics()
    links.add([LINK], "latency", latency=1)
    assert toxics(*(("latency", stream) for stream in BOTH))
    links.remove([LINK], "latency")
    links.add_one_way(LINK, "limit_data", DOWNSTREAM, bytes=1)
    assert toxics(("limit_data", DOWNSTREAM))
    links.refuse([LINK])
    assert [proxy.is_enabled for proxy in hit] == [False, False]
    assert all(proxy.is_enabled for proxy in others)
    links.accept([LINK])
    assert [proxy.is_enabled for proxy in hit] == [True, True]


def test_each_asker_of_the_name_server_has_proxies_of_its_own(tmp_path: Path) -> None:
    links = Links(_Server())  # type: ignore[arg-type]
    local = LocalCluster.create(tmp_path / "c", 5, replication="sync_master", relay=links.relay)
    cluster._lead_askers_through_proxies(local, links)
    for node in (4, 5):
        assert links.to_nameserver(node) == [(asking(node), one) for one in (1, 2, 3)]
        settings = tomllib.loads((local.node_directory(node) / "node.toml").read_text("utf-8"))
        ports = [links.ports((asking(node), one)) for one in (1, 2, 3)]
        assert settings["nameserver_servers"] == [f"127.0.0.1:{port}" for (port,) in ports]
    assert not links.to_nameserver(1, 2, 3)
    # They are no links between nodes, nor of clients.
    assert all(pair[0] > 0 for pair in links.all_pairs())
    assert all(pair[0] >= CLIENTS for pair in links.all_pairs(with_clients=True))
    assert all(pair[0] > 0 for pair in links.between([4], [1, 2, 3]))


@pytest.mark.parametrize(
    ("transport", "names"),
    [("auto", {"clients>1", "framed>1"}), ("framed", {"framed>1"}), ("grpc", {"clients>1"})],
)
def test_a_proof_asks_the_proxies_of_the_transport_in_use(
    tmp_path: Path, transport: Transport, names: set[str]
) -> None:
    _, links, _ = made_links(tmp_path / "c")
    assert {name for name, _ in links.swallowed([LINK], transport)} == names
    assert {name for name, _ in links.swallowed([(1, 2)], transport)} == {"1>2"}


def test_the_transport_is_drawn_from_the_seed_unless_it_is_named() -> None:
    drawn = [ScenarioOptions(0).transport_of(seed) for seed in range(300)]
    assert drawn == [ScenarioOptions(7).transport_of(seed) for seed in range(300)]
    assert set(drawn) == set(TRANSPORTS)
    assert min(Counter(drawn).values()) > 60
    named = ScenarioOptions(0, transport="grpc")
    assert {named.transport_of(seed) for seed in range(9)} == {"grpc"}


def test_the_report_and_the_command_that_repeats_a_failure_name_the_transport(
    tmp_path: Path,
) -> None:
    result = TrialResult(SCENARIOS["clients-cut"], 5, "framed", verdict="failed", why="planted")
    campaign = Campaign(ScenarioOptions(0), tmp_path, print)
    assert "--transport framed --seed 5 clients-cut" in campaign._explained(result)
    summary = CampaignSummary([result], seed=0, mode="raft", version="-", took_s=1.0)
    assert ("transport of clients", "framed 1") in summary.rows()
    assert summary.to_json()["transports"] == {"framed": 1}
    assert "transport framed" in page(summary, [result])
