"""`qlog cluster rebalance`: who may lead, which hosts count, and real hand-overs."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.local import LocalCluster
from planning.capacity.leaders import balance
from planning.commands.rebalance import SeenLeaders, appended_sizes
from quorumlog.admin.types import (
    BrokerGroupStatus,
    ClusterStatus,
    MemberStatus,
    NodeDown,
    NodeStatus,
)
from quorumlog.command_errors import CliError
from quorumlog.pb import admin_pb2
from quorumlog.records.values import of_pb
from tests.qlog.running import Qlog


def node(node_id: int, group: str, host: str, **changes: Any) -> NodeStatus:
    pb = admin_pb2.NodeStatusResponse(
        node_id=node_id, role="follower", term=3, last_index=5_000, standing="full"
    )
    member = MemberStatus(node_id, f"{host}:8081", f"{host}:40911", True, True, 0, "")
    return dataclasses.replace(
        of_pb(NodeStatus, pb, broker_group=group), members=(member,), **changes
    )


def status(*nodes: NodeStatus | NodeDown) -> ClusterStatus:
    """Groups as their nodes name them; the members of a leader are all nodes of its group."""
    names = sorted({one.broker_group for one in nodes})
    members = {
        name: tuple(
            member
            for one in nodes
            if isinstance(one, NodeStatus) and one.broker_group == name
            for member in one.members
        )
        for name in names
    }
    seen = [
        dataclasses.replace(one, members=members[one.broker_group])
        if isinstance(one, NodeStatus)
        else one
        for one in nodes
    ]
    groups = tuple(BrokerGroupStatus(name, 0, 3) for name in names)
    return ClusterStatus("c", 0, 3, tuple(seen), groups)


def three_groups(**changes: Any) -> ClusterStatus:
    """Three groups on hosts a, b and c, all led from a; `changes` are of the nodes on b."""
    roles: dict[str, dict[str, Any]] = {"a": {"role": "leader"}, "b": changes, "c": {}}
    spots = itertools.product(range(3), enumerate("abc", 1))
    return status(*(node(10 * at + n, f"g{at}", host, **roles[host]) for at, (n, host) in spots))


def test_leaders_of_one_host_are_spread_over_three() -> None:
    seen = SeenLeaders(three_groups(), {}, None)
    assert seen.hosts == {"a", "b", "c"}
    rows = [seen.row(move) for move in balance(seen.groups, seen.hosts)]
    assert [(row["source"], row["source_node_id"] % 10) for row in rows] == [("a", 1), ("a", 1)]
    assert sorted(row["target"] for row in rows) == ["b", "c"]
    for row in rows:
        assert row["target_node_id"] // 10 == int(row["broker_group"][1:])


@pytest.mark.parametrize(
    "changes", [{"standing": "joining"}, {"is_draining": True}, {"last_index": 3_999}]
)
def test_a_node_that_could_not_lead_is_no_target(changes: dict[str, Any]) -> None:
    seen = SeenLeaders(three_groups(**changes), {}, None)
    assert seen.hosts == {"a", "c"}
    assert {move.target for move in balance(seen.groups, seen.hosts)} == {"c"}
    assert SeenLeaders(three_groups(last_index=4_000), {}, None).hosts == {"a", "b", "c"}


def test_learners_and_nodes_that_are_down_are_no_targets() -> None:
    learner = MemberStatus(2, "b:1", "b:2", False, True, 0, "")
    cluster = status(
        node(1, "g0", "a", role="leader"),
        dataclasses.replace(node(2, "g0", "b"), members=(learner,)),
        NodeDown(3, "c:1", "refused", "g0"),
    )
    assert SeenLeaders(cluster, {}, None).hosts == {"a"}


def test_a_group_without_a_leader_is_left_alone() -> None:
    cluster = status(node(1, "g0", "a", role="leader"), node(2, "g1", "b"))
    seen = SeenLeaders(cluster, {}, None)
    assert [group.leader for group in seen.groups] == ["a", None]
    with pytest.raises(CliError, match="no group has a leader"):
        SeenLeaders(status(node(2, "g1", "b")), {}, None)


def test_a_leader_of_an_older_term_does_not_lead() -> None:
    cluster = status(node(1, "g0", "a", role="leader", term=2), node(2, "g0", "b", role="leader"))
    assert [group.leader for group in SeenLeaders(cluster, {}, None).groups] == ["b"]


def test_hosts_can_be_named_and_a_node_is_on_one() -> None:
    hosts = {"x": (1, 11, 21), "y": (2, 12, 22)}
    assert SeenLeaders(three_groups(), hosts, None).hosts == {"x", "y", "c"}
    with pytest.raises(CliError, match="node 1 is on x and on y"):
        SeenLeaders(three_groups(), {"x": (1,), "y": (1,)}, None)


def test_loads_are_bytes_between_two_looks() -> None:
    before = status(
        node(1, "g0", "a", appended_size_bytes_total=100),
        node(2, "g1", "b", appended_size_bytes_total=100),
    )
    after = status(
        node(1, "g0", "a", appended_size_bytes_total=150),
        node(2, "g1", "b", appended_size_bytes_total=30),  # Started again.
    )
    assert appended_sizes(before, after) == {"g0": 50, "g1": 0}


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Qlog]:
    """Two groups of two nodes: g0 has 1 and 2, g1 has 3 and 4."""
    directory = tmp_path_factory.mktemp("groups")
    settings = {"file_size_bytes": "16MiB"}
    with LocalCluster.create(directory, 2, groups=2, settings=settings) as nodes:
        yield Qlog(nodes)


@pytest.mark.long
def test_leaders_move_only_when_it_is_asked_for(groups: Qlog) -> None:
    hosts = ("--host", "a=1,3", "--host", "b=2,4")
    for node_id in (1, 3):
        groups("cluster", "transfer-leader", node_id, "--broker-group", f"g{node_id // 2}")
    shown = groups.json("cluster", "rebalance", *hosts)
    assert (shown["applied"], shown["hot_ratio_before"], shown["hot_ratio_after"]) == (False, 2, 1)
    [move] = shown["moves"]
    assert (move["source"], move["target"], move["term"]) == ("a", "b", None)
    assert groups.json("cluster", "rebalance", *hosts) == shown
    done = groups.json("cluster", "rebalance", *hosts, "--apply")
    assert done["applied"]
    [made] = done["moves"]
    assert made["term"] > 0
    leaders = {
        one["broker_group"]: one for one in groups.json("cluster", "status")["broker_groups"]
    }
    assert leaders[made["broker_group"]]["leader_id"] == made["target_node_id"]
    assert leaders[made["broker_group"]]["term"] == made["term"]
    again = groups.json("cluster", "rebalance", *hosts, "--apply")
    assert (again["applied"], again["moves"]) == (False, [])
    loaded = groups("cluster", "rebalance", *hosts, "--by", "load", "--interval", "0.1")
    assert loaded.stdout.splitlines()[-1] == "the leaders are balanced: no moves"
