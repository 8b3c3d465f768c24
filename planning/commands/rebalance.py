"""`qlog cluster rebalance`: spread the leaders of all broker groups over the hosts.

Owns the options, what of a cluster's status counts as able to lead, and the printing. Which leaders
move is chosen by `planning.capacity.leaders`; the hand-over is the admin client's.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from planning.capacity.leaders import (
    LeaderMove,
    LedGroup,
    attainable_ratio,
    balance,
    hot_ratio,
    loads_of,
)
from qlog.cluster.node_rows import is_down
from qlog.command_decorators import Printout, cluster_command
from qlog.parsed import Parsed
from quorumlog.command_errors import CliError, ExitCode

if TYPE_CHECKING:
    from quorumlog.admin.types import ClusterStatus, NodeStatus
    from quorumlog.client import Client

LAG_COUNT_MAX: Final = 1_000
"""Entries behind the leader above which a hand-over is refused (raft/config.py)."""


def _host(text: str) -> tuple[str, tuple[int, ...]]:
    """Return a host and the nodes that run on it, of NAME=NODE,NODE,..."""
    match = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]*)=([0-9]{1,9}(?:,[0-9]{1,9})*)", text)
    if match is None:
        raise ValueError(f"{text!r} is no host; use NAME=NODE,NODE,...")
    return match[1], tuple(map(int, match[2].split(",")))


@click.command()
@click.option("--apply", "is_applied", is_flag=True, help="Make the moves; without it, show them.")
@click.option(
    "--by",
    type=click.Choice(["count", "load"]),
    default="count",
    show_default=True,
    help="The load of a broker group: 1, or the bytes that it appends in a second.",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="With --by load: time over which bytes are counted.",
)
@click.option(
    "--host",
    "given_hosts",
    type=Parsed("host", _host),
    multiple=True,
    metavar="NAME=NODE,...",
    help="Nodes that share a host; may be given again.  [default: by the host of their addresses]",
)
@cluster_command
async def rebalance(
    client: "Client",
    is_applied: bool,
    by: str,
    interval: float,
    given_hosts: tuple[tuple[str, tuple[int, ...]], ...],
) -> Printout:
    """Spread the leaders over the hosts.

    Shows the moves after which no host has more than 1.2 times the mean load; --apply makes them in
    order, and stops at the first that fails; applied says whether it made any. A node may lead if
    it answers, is a voter with its whole log, is not draining, and is at most 1,000 entries behind.
    Nothing is moved in a cluster without a hot host. No append is lost by a move; a node with
    another preferred_leader in its settings takes the leadership back later.

    \b
    Keys of -o json:
      applied, hot_ratio_before, hot_ratio_after, hot_above, moves, hosts
      moves: broker_group, source, source_node_id, target, target_node_id, term
      hosts: host, load_before, load_after

    \b
    Examples:
      qlog cluster rebalance
      qlog cluster rebalance --by load --apply
      qlog cluster rebalance --host a=1,4 --host b=2,5 -o json | jq .moves

    hot_above is 1.2, or more where groups are so few or so unequal that no plan could do better.
    Ends with 0, or with 1 when a host stays hot.
    """
    status = await client.admin.cluster_status()
    loads = None
    if by == "load":
        await asyncio.sleep(interval)
        later = await client.admin.cluster_status()
        loads, status = appended_sizes(status, later), later
    seen = SeenLeaders(status, dict(given_hosts), loads)
    ratio = attainable_ratio(seen.groups, seen.hosts)
    moves = balance(seen.groups, seen.hosts, ratio=ratio)
    rows = [seen.row(move) for move in moves]
    if is_applied:
        for row in rows:
            name, target_id = row["broker_group"], row["target_node_id"]
            done = await client.admin.transfer_leadership(target_id, broker_group=name)
            row["term"] = done.term
            click.echo(f"broker group {name}: node {done.leader_id} leads", err=True)
    record = _record(seen, moves, rows, is_applied=is_applied and bool(moves))
    is_hot = record["hot_ratio_after"] > record["hot_above"]
    none = (
        "no move makes the hottest host colder" if is_hot else "the leaders are balanced: no moves"
    )
    return Printout(
        record,
        lines=[] if moves else [none],
        exit_code=ExitCode.FINDINGS if is_hot else ExitCode.OK,
    )


class SeenLeaders:
    """The leaders of a status, in the terms of hosts."""

    def __init__(
        self,
        status: "ClusterStatus",
        given: Mapping[str, tuple[int, ...]],
        loads: Mapping[str, float] | None,
    ) -> None:
        nodes = [node for node in status.nodes if not is_down(node)]
        self._host_of = _hosts_of(nodes, given)
        self._nodes: dict[tuple[str, str], int] = {}
        self.groups: list[LedGroup] = []
        self.hosts: set[str] = set()
        for group in status.broker_groups:
            own = [node for node in nodes if node.broker_group == group.broker_group]
            leader = next((n for n in own if n.role == "leader" and n.term == group.term), None)
            able = [node for node in own if leader is not None and _may_lead(node, leader)]
            for node in able:
                key = group.broker_group, self._host_of[node.node_id]
                # Two copies on one host: the leader, else the first, speaks for it.
                if key not in self._nodes or node is leader:
                    self._nodes[key] = node.node_id
            self.hosts |= {self._host_of[node.node_id] for node in able}
            load = 1.0 if loads is None else loads.get(group.broker_group, 0.0)
            self.groups.append(
                LedGroup(
                    group.broker_group,
                    None if leader is None else self._host_of[leader.node_id],
                    tuple(sorted({self._host_of[node.node_id] for node in able})),
                    load,
                )
            )
        self.hosts |= {group.leader for group in self.groups if group.leader is not None}
        if not self.hosts:
            raise CliError(
                "no group has a leader",
                "there is nothing to spread",
                "see qlog cluster status",
            )

    def row(self, move: LeaderMove) -> dict[str, Any]:
        """Return a move with the nodes that hand over and take over."""
        return {
            "broker_group": move.group,
            "source": move.source,
            "source_node_id": self._nodes[move.group, move.source],
            "target": move.target,
            "target_node_id": self._nodes[move.group, move.target],
            "term": None,
        }


def _may_lead(node: "NodeStatus", leader: "NodeStatus") -> bool:
    """Whether a hand-over to the node would be taken, or it leads."""
    if node is leader:
        return True
    is_voter = any(one.is_voter and one.node_id == node.node_id for one in leader.members)
    is_whole = node.standing == "full" and not node.is_draining
    return is_voter and is_whole and leader.last_index - node.last_index <= LAG_COUNT_MAX


def _hosts_of(
    nodes: "Sequence[NodeStatus]", given: Mapping[str, tuple[int, ...]]
) -> dict[int, str]:
    """Return the host of each node. Raises CliError for a node that is on two."""
    named: dict[int, str] = {}
    for name, node_ids in given.items():
        for node_id in node_ids:
            if node_id in named:
                raise CliError(
                    f"node {node_id} is on {named[node_id]} and on {name}",
                    "a node runs on one host",
                    "name it once with --host",
                    ExitCode.USAGE,
                )
            named[node_id] = name
    addresses = {one.node_id: one.address for node in nodes for one in node.members}
    return {
        node.node_id: named.get(node.node_id)
        or addresses.get(node.node_id, "").rpartition(":")[0]
        or f"node-{node.node_id}"
        for node in nodes
    }


def appended_sizes(before: "ClusterStatus", after: "ClusterStatus") -> dict[str, float]:
    """Return the bytes that each group has appended between two looks, by its nodes' counters."""
    then = {
        node.node_id: node.appended_size_bytes_total for node in before.nodes if not is_down(node)
    }
    sizes: dict[str, float] = {}
    for node in after.nodes:
        if not is_down(node):
            grown = node.appended_size_bytes_total - then.get(node.node_id, 0)
            # A node that was started again counts from 0.
            sizes[node.broker_group] = sizes.get(node.broker_group, 0.0) + max(grown, 0)
    return sizes


def _record(
    seen: SeenLeaders,
    moves: Sequence[LeaderMove],
    rows: Sequence[Mapping[str, Any]],
    *,
    is_applied: bool,
) -> dict[str, Any]:
    before = loads_of(seen.groups, seen.hosts)
    targets = {move.group: move.target for move in moves}
    moved = [
        LedGroup(one.name, targets.get(one.name, one.leader), one.candidates, one.load)
        for one in seen.groups
    ]
    after = loads_of(moved, seen.hosts)
    return {
        "applied": is_applied,
        "hot_ratio_before": round(hot_ratio(before), 3),
        "hot_ratio_after": round(hot_ratio(after), 3),
        "hot_above": round(attainable_ratio(seen.groups, seen.hosts), 3),
        "moves": list(rows),
        "hosts": [
            {"host": host, "load_before": before[host], "load_after": after[host]}
            for host in sorted(seen.hosts)
        ],
    }
