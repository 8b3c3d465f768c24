"""`qlog cluster`: the status of the nodes, the leader, the members.

Owns the options and the printing; the work is the admin client's.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from qlog.broker_groups import broker_group_option, shown_rows
from qlog.cluster.node_rows import (
    LIST_COLUMNS,
    SHORT_COLUMNS,
    STATUS_COLUMNS,
    is_up,
    list_rows,
    problems,
    status_rows,
)
from qlog.cluster.rebalance import rebalance
from qlog.connection import ask, confirm, connected, run, server_option
from qlog.output import Format, output_option, print_record, print_rows
from quorumlog.command_errors import CliError, ExitCode

if TYPE_CHECKING:
    from quorumlog.admin.types import ClusterStatus, MemberStatus

_MEMBER_COLUMNS = (
    "node_id", "address", "peer_address", "is_voter", "is_connected", "match_index", "progress",
)  # fmt: skip


@click.group()
def cluster() -> None:
    """Show the nodes, move the leadership, change the members."""


async def _status(server: str | None) -> "ClusterStatus":
    async with connected(server) as client:
        return await client.admin.cluster_status()


@cluster.command()
@server_option
@output_option
def status(server: str | None, output: Format) -> int:
    """Ask every node how it is.

    lag_count is how many entries a node has not got of those the leader has.

    \b
    Keys of -o json:
      cluster_id, leader_id, term, healthy, problems, groups, nodes
      groups: group, leader_id, term (the first one's are also above)
      nodes: node_id, group, address, role, term, first_index, last_index, durable_index,
        commit_index, applied_index, lag_count, standing, flush, disk_state, disk_used_ratio,
        is_draining, loss_from_index, uptime_ms, version, pid, detail

    \b
    Examples:
      qlog cluster status
      qlog cluster status -o json | jq .leader_id
      qlog cluster status --server 127.0.0.1:8081,127.0.0.1:8082

    Ends with 0 when all is well, and with 1 when there is a problem; it is named.
    """
    found = run(_status(server))
    rows = status_rows(found)
    wrong = problems(found, rows)
    summary: dict[str, Any] = {
        "cluster_id": found.cluster_id,
        "leader_id": found.leader_id or None,
        "term": found.term,
        "healthy": not wrong,
        "problems": wrong,
        "groups": [
            {"group": one.group, "leader_id": one.leader_id or None, "term": one.term}
            for one in found.groups
        ],
    }
    match output:
        case Format.TABLE:
            hidden = {"problems"} if len(found.groups) > 1 else {"problems", "groups"}
            print_record({k: v for k, v in summary.items() if k not in hidden}, output)
            click.echo()
            short = shown_rows([{key: row.get(key) for key in SHORT_COLUMNS} for row in rows])
            print_rows(short, output, columns=tuple(short[0]) if short else SHORT_COLUMNS)
            for problem in wrong:
                click.echo(f"problem: {problem}")
        case Format.JSON | Format.JSONL:
            nodes = [{key: row.get(key) for key in STATUS_COLUMNS} for row in rows]
            print_record({**summary, "nodes": nodes}, output)
    return ExitCode.FINDINGS if wrong else ExitCode.OK


@cluster.command("list")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks; rates are over this time.",
)
@server_option
@output_option
def list_nodes(interval: float, server: str | None, output: Format) -> int:
    """List the nodes of all broker groups, with messages per second in and out.

    \b
    Keys of -o json:
      cluster_id, group (the broker group), node_id, address, role, version, in_tps, out_tps,
      in_flight_kib, space, activated

    \b
    Examples:
      qlog cluster list
      qlog cluster list --interval 10 -o json | jq 'map(.in_tps) | add'
    """

    async def act() -> "tuple[ClusterStatus, ClusterStatus, float]":
        async with connected(server) as client:
            before, began = await client.admin.cluster_status(), time.monotonic()
            await asyncio.sleep(interval)
            return await client.admin.cluster_status(), before, time.monotonic() - began

    rows = list_rows(*run(act()))
    print_rows(rows, output, columns=LIST_COLUMNS)
    return ExitCode.OK


@cluster.command("transfer-leader")
@click.argument("node_id", metavar="[NODE]", type=click.IntRange(min=1), required=False)
@broker_group_option
@server_option
@output_option
def transfer_leader(node_id: int | None, group: str, server: str | None, output: Format) -> int:
    """Hand the leadership to a node, or to the best follower. No append is lost by it.

    \b
    Keys of -o json:
      leader_id, term, group

    \b
    Examples:
      qlog cluster transfer-leader
      qlog cluster transfer-leader 2 -o json
    """

    async def act() -> dict[str, object]:
        async with connected(server) as client:
            found = await client.admin.transfer_leadership(node_id or 0, group=group)
            return {"leader_id": found.leader_id, "term": found.term, "group": found.group}

    print_record(run(act()), output)
    return ExitCode.OK


cluster.add_command(rebalance)


@cluster.command()
@click.argument("node_id", metavar="NODE", type=click.IntRange(min=1))
@click.option("--undo", is_flag=True, help="Take appends again.")
@server_option
@output_option
def drain(node_id: int, undo: bool, server: str | None, output: Format) -> int:
    """Make a node hand its leadership over and lead no more, before it is stopped.

    A leader that no other voter can relieve refuses, and goes on as before.

    \b
    Keys of -o json:
      node_id, is_draining

    \b
    Examples:
      qlog cluster drain 1
      qlog cluster drain 1 --undo
    """

    ask(server, lambda client: client.admin.drain(node_id, undo=undo))
    print_record({"node_id": node_id, "is_draining": not undo}, output)
    return ExitCode.OK


@cluster.command()
@click.option("--accept-loss", is_flag=True, help="Go on with what is left.")
@click.option("--cluster-id", help="The id of the cluster, to confirm; asked for on a terminal.")
@server_option
@output_option
def recover(accept_loss: bool, cluster_id: str | None, server: str | None, output: Format) -> int:
    """Let the nodes go on with what is left, after a power loss of a majority with flush=async.

    Such nodes are `recovering`: none trusts its log, and together they have no leader. They elect
    the longest log by themselves once all of them are back. If one will never come back, this makes
    the nodes that answer trust their logs. Acked records may be missing then; `qlog cluster status`
    shows from which index on. Without --accept-loss it only shows the nodes.

    \b
    Keys of -o json:
      cluster_id, recovering (node ids), down (node ids), accepted, verdict

    \b
    Examples:
      qlog cluster recover
      qlog cluster recover --accept-loss
      qlog cluster recover --accept-loss --cluster-id c0ffee -o json

    Ends with 0 when no node is recovering any more, and with 1 when one is.
    """
    found = run(_status(server))
    recovering = [n.node_id for n in found.nodes if is_up(n) and n.standing == "recovering"]
    if accept_loss and recovering:
        _confirm_cluster(found.cluster_id, cluster_id)

        async def act() -> None:
            async with connected(server) as client:
                for node_id in recovering:
                    await client.admin.accept_loss(node_id, confirm_cluster_id=found.cluster_id)

        run(act())
    is_accepted = accept_loss and bool(recovering)
    if not recovering:
        verdict = "no node that answers is recovering; nothing to do"
    elif is_accepted:
        verdict = "the nodes trust their logs; the longest one will lead"
    else:
        verdict = "wait for the missing nodes, or run it with --accept-loss"
    record = {
        "cluster_id": found.cluster_id,
        "recovering": recovering,
        "down": [n.node_id for n in found.nodes if not is_up(n)],
        "accepted": is_accepted,
        "verdict": verdict,
    }
    print_record(record, output)
    return ExitCode.FINDINGS if recovering and not is_accepted else ExitCode.OK


def _confirm_cluster(expected: str, given: str | None) -> None:
    """Ask for the cluster id, so that a typing mistake, or another cluster, loses no data."""
    if given is None and sys.stdin.isatty():
        given = click.prompt("Acked records may be lost. To go on, type the cluster id", err=True)
    if given != expected:
        raise CliError(
            "nothing was changed" if given is None else f"{given!r} is not this cluster",
            f"losing data must be confirmed with the id of the cluster, {expected}",
            f"if you are sure, add --cluster-id {expected}",
        )


@cluster.group()
def members() -> None:
    """List, add, promote and remove members, one at a time."""


@members.command("list")
@broker_group_option
@server_option
@output_option
def list_members(group: str, server: str | None, output: Format) -> int:
    """List the members as the leader sees them.

    match_index is how far the leader knows a member's log to be equal to its own.

    \b
    Keys of -o json:
      node_id, address, peer_address, is_voter, is_connected, match_index, progress

    \b
    Examples:
      qlog cluster members list
      qlog cluster members list -o jsonl
    """

    async def act() -> "Sequence[MemberStatus]":
        async with connected(server) as client:
            return (await client.admin.node_status(group=group)).members

    _print_members(run(act()), output)
    return ExitCode.OK


@members.command()
@click.argument("node_id", metavar="NODE", type=click.IntRange(min=1))
@click.option("--address", required=True, help="HOST:PORT of its client service.")
@click.option("--peer-address", required=True, help="HOST:PORT of its peer link.")
@broker_group_option
@server_option
@output_option
def add(
    node_id: int, address: str, peer_address: str, group: str, server: str | None, output: Format
) -> int:
    """Add a node as a learner: it gets the log, and counts for no quorum until promoted.

    \b
    Keys of -o json:
      node_id, address, peer_address, is_voter, is_connected, match_index, progress

    \b
    Examples:
      qlog cluster members add 4 --address 127.0.0.1:8084 --peer-address 127.0.0.1:40914
    """

    _print_members(
        ask(
            server,
            lambda client: client.admin.add_learner(
                node_id, address=address, peer_address=peer_address, group=group
            ),
        ),
        output,
    )
    return ExitCode.OK


@members.command()
@click.argument("node_id", metavar="NODE", type=click.IntRange(min=1))
@server_option
@output_option
def promote(node_id: int, server: str | None, output: Format) -> int:
    """Make a learner that has caught up a voter.

    \b
    Keys of -o json:
      node_id, address, peer_address, is_voter, is_connected, match_index, progress

    \b
    Examples:
      qlog cluster members promote 4
    """

    _print_members(ask(server, lambda client: client.admin.promote(node_id)), output)
    return ExitCode.OK


@members.command()
@click.argument("node_id", metavar="NODE", type=click.IntRange(min=1))
@click.option("--yes", is_flag=True, help="Do not ask.")
@server_option
@output_option
def remove(node_id: int, yes: bool, server: str | None, output: Format) -> int:
    """Remove a member. Its data stays where it is; to come back, it joins anew.

    \b
    Keys of -o json:
      node_id, address, peer_address, is_voter, is_connected, match_index, progress

    \b
    Examples:
      qlog cluster members remove 4
      qlog cluster members remove 4 --yes -o json
    """
    confirm(f"Remove node {node_id} from the cluster?", is_confirmed=yes)

    _print_members(ask(server, lambda client: client.admin.remove_member(node_id)), output)
    return ExitCode.OK


def _print_members(members: "Sequence[MemberStatus]", output: Format) -> None:
    rows = [
        {key: getattr(member, key) for key in _MEMBER_COLUMNS}
        | {"match_index": member.match_index if member.match_index >= 0 else None}
        for member in sorted(members, key=lambda member: member.node_id)
    ]
    print_rows(rows, output, columns=_MEMBER_COLUMNS)
