"""What is said of nodes: rows, rates, and how `qlog top` draws them."""

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from qlog.cluster.judgement import Look, judged
from qlog.cluster.node_rows import (
    STATUS_COLUMNS,
    TOP_COLUMNS,
    leader_of,
    replication_of,
    status_rows,
    top_rows,
    with_roles,
)
from qlog.cluster.top import duration_text, status_table
from qlog.cluster.upgrade import _group_row, _node_rows
from quorumlog.admin.types import ClusterStatus, NodeDown, NodeStatus
from quorumlog.pb import admin_pb2
from quorumlog.records.values import of_pb


def node(node_id: int, **changes: Any) -> NodeStatus:
    pb = admin_pb2.NodeStatusResponse(
        node_id=node_id,
        role="follower",
        term=7,
        leader_id=1,
        last_index=100,
        commit_index=100,
        applied_index=100,
        standing="full",
        flush="sync",
        disk_state="ok",
        loss_from_index=-1,
        pid=1000 + node_id,
        members=[admin_pb2.MemberStatus(node_id=n, address=f"10.0.0.{n}:8081") for n in (1, 2, 3)],
    )
    return replace(of_pb(NodeStatus, pb, broker_group=""), **changes)


def cluster(*nodes: NodeStatus | NodeDown) -> ClusterStatus:
    return ClusterStatus("c", 1, 7, nodes)


def test_tables_have_the_roles_of_the_mode() -> None:
    for mode, roles in (("raft", ["leader", "follower"]), ("sync_master", ["master", "slave"])):
        status = cluster(
            node(1, role="leader", replication=mode),
            node(2, replication=mode),
            NodeDown(3, "10.0.0.3:8081", "connection refused"),
        )
        rows = with_roles(status_rows(status), replication_of(status))
        assert [row["role"] for row in rows] == [*roles, "down"]
        screen = io.StringIO()
        Console(width=300, file=screen).print(status_table(Look(status, []), None, 1.0, 300))
        assert all(role in screen.getvalue() for role in roles)


def test_rows_are_in_order_with_addresses_and_lag() -> None:
    status = cluster(
        NodeDown(3, "10.0.0.3:8081", "connection refused"),
        node(2, last_index=90),
        node(1, role="leader", loss_from_index=12),
    )
    first, second, third = status_rows(status)
    assert (first["node_id"], first["address"], first["lag_count"]) == (1, "10.0.0.1:8081", 0)
    assert (second["role"], second["lag_count"], second["loss_from_index"]) == (
        "follower",
        10,
        None,
    )
    assert (third["role"], third["detail"]) == ("down", "connection refused")
    assert first["loss_from_index"] == 12
    assert set(first) == set(STATUS_COLUMNS)


def test_an_upgrade_that_has_ended_waits_for_no_node_that_is_away() -> None:
    up = [node(1, role="leader", level=1, level_max=1), node(2, level=1, level_max=1)]
    away = NodeDown(3, "10.0.0.3:8081", "connection refused")
    for level_max, waits_for in ((1, []), (2, ["node 3 to answer"])):
        nodes = _node_rows(cluster(*(replace(one, level_max=level_max) for one in up), away))
        assert _group_row("", nodes)["waits_for"] == waits_for


def test_the_newest_of_two_leaders_counts() -> None:
    status = cluster(node(1, role="leader", term=7), node(2, role="leader", term=8))
    leader = leader_of(status, "")
    assert leader is not None
    assert leader.node_id == 2
    assert leader_of(cluster(node(1)), "") is None


def test_rates_are_of_one_process() -> None:
    before = cluster(
        node(1, appends_total=100, appended_size_bytes_total=0, pulls_total=5),
        node(2, appends_total=900),
        NodeDown(3, "c:1", "away"),
    )
    after = cluster(
        node(1, appends_total=300, appended_size_bytes_total=4_000_000, pulls_total=5),
        node(2, appends_total=1, pid=77),
        node(3, appends_total=5),
    )
    rows = top_rows(after, before, 2.0)
    assert [(r["msgs_per_s"], r["mb_per_s"], r["pulls_per_s"]) for r in rows] == [
        (100.0, 2.0, 0.0),
        (None, None, None),  # Another process: its counts began anew.
        (None, None, None),
    ]
    assert all(tuple(row) == TOP_COLUMNS for row in rows)
    assert top_rows(after, None, 2.0)[0]["msgs_per_s"] is None


def test_the_status_has_all_nodes_and_their_problems() -> None:
    status = cluster(
        node(1, role="leader", uptime_ms=90_061_000, disk_used_ratio=0.41),
        node(2),
        NodeDown(3, "c:1", "[red]away[/red]"),
    )
    screen = Console(file=io.StringIO(), width=80, force_terminal=False)
    screen.print(status_table(Look(status, judged(status, {})), None, 1.0, screen.width))
    assert isinstance(screen.file, io.StringIO)
    text = screen.file.getvalue()
    for expected in ("cluster c", "leader 1", "10.0.0.2:8081", "1d 1h", "41%", "Ctrl-C ends"):
        assert expected in text
    assert max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) < 24, "one screen"
    assert "problem: node 3 does not answer: [red]away[/red]" in text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0s"), (59_999, "59s"), (60_000, "1m 0s"), (3_725_000, "1h 2m"), (90_000_000, "1d 1h")],
)
def test_time_spans_are_short(milliseconds: int, text: str) -> None:
    assert duration_text(milliseconds) == text
