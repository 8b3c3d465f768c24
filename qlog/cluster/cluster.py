"""`qlog cluster`: the status of the nodes, the leader, the members.

Owns the options and the printing; the work is the admin client's.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from qlog import LazyCommand, LazyGroup, names
from qlog.broker_groups import broker_group_option
from qlog.cluster.judgement import Looks
from qlog.cluster.node_rows import (
    SHORT_COLUMNS,
    STATUS_COLUMNS,
    is_down,
    list_rows,
    replication_of,
    status_rows,
    users_of,
    with_roles,
)
from qlog.cluster.top import interval_option, look_twice
from qlog.command_decorators import Printout, TableRows, cluster_command, confirmed, printed
from qlog.connection import ask, server_option
from qlog.output import Row
from qlog.watch import Condition, watched_command
from quorumlog.command_errors import CliError, ExitCode

if TYPE_CHECKING:
    from quorumlog.admin.types import LeaderInfo, MemberStatus
    from quorumlog.client import Client


@click.group(
    cls=LazyGroup,
    lazy={
        "rebalance": LazyCommand(
            "planning.commands.rebalance:rebalance",
            "Spread the leaders over the hosts.",
        ),
        "upgrade": LazyCommand("qlog.cluster.upgrade:upgrade", "Show or end a rolling upgrade."),
    },
)
def cluster() -> None:
    """Show the nodes, move the leadership, change the members."""


def _is_led(status: Any) -> bool:
    groups = status["broker_groups"]
    return bool(groups) and all(one["leader_id"] for one in groups)


@cluster.command()
@watched_command(
    {
        "healthy": Condition("there is no problem", lambda status: status["healthy"]),
        "leader": Condition("each group has one", _is_led),
    }
)
async def status(client: "Client") -> Printout:
    """Ask every node how it is.

    The log is entries with an index each; an entry is a batch of messages. One up to commit_index
    is on a quorum, one up to applied_index can be read. A term is the time of one leader. lag_count
    is how many entries a node has not got of those the leader has. standing is full, or says why a
    node counts for nothing yet: joining (its disk is new or old), recovering (it lost what was not
    synced) or diverged (it has acked other messages).

    \b
    Keys of -o json:
      cluster_id, leader_id, term, healthy, users (null: nodes differ), problems,
        broker_groups, nodes
      broker_groups: broker_group, leader_id, term (the first one's are also
        above)
      nodes: node_id, broker_group, address, role, term, first_index, last_index,
        durable_index, commit_index, applied_index, lag_count, standing, flush,
        disk_state, disk_used_ratio, is_draining, loss_from_index, uptime_ms,
        version, pid, users, detail

    \b
    Examples:
      qlog cluster status
      qlog cluster status -o json | jq .leader_id
      qlog cluster status --until healthy --timeout 5m
      qlog cluster status --server 127.0.0.1:8081,127.0.0.1:8082

    Problems are what 'qlog check' finds, without the lag. Ends with 0 when there is none, and with
    1 when there is one; it is named.
    """
    look = await Looks(client).look()
    statuses, wrong = look.status, look.problems
    rows, modes = status_rows(statuses), users_of(statuses)
    mode = next(iter(modes)) if len(modes) == 1 else None
    summary: dict[str, Any] = {
        "cluster_id": statuses.cluster_id,
        "leader_id": statuses.leader_id or None,
        "term": statuses.term,
        "healthy": not wrong,
        "users": mode,
        "problems": wrong,
        "broker_groups": [
            asdict(one) | {"leader_id": one.leader_id or None} for one in statuses.broker_groups
        ],
    }
    hidden = {"problems"} if len(statuses.broker_groups) > 1 else {"problems", "broker_groups"}
    if mode in (None, "off"):
        hidden.add("users")
    people = with_roles(rows, replication_of(statuses))
    short = [{key: row.get(key) for key in SHORT_COLUMNS} for row in people]
    return Printout(
        {**summary, "nodes": [{key: row.get(key) for key in STATUS_COLUMNS} for row in rows]},
        table=[
            {key: value for key, value in summary.items() if key not in hidden},
            TableRows.of(SHORT_COLUMNS, short),
        ],
        lines=[f"problem: {problem}" for problem in wrong],
        exit_code=ExitCode.FINDINGS if wrong else ExitCode.OK,
    )


@cluster.command("list")
@interval_option
@cluster_command
async def list_nodes(client: "Client", interval: float) -> Printout:
    """List the nodes of all broker groups, with messages per second in and out.

    in_tps is what the node acked as leader, out_tps what it handed out. in_flight_kib is how much
    is not yet committed, space the share of its disk that is in use, activated whether it answers.

    \b
    Keys of -o json:
      cluster_id, broker_group, node_id, address, role, version, in_tps, out_tps,
      in_flight_kib, space, activated

    \b
    Examples:
      qlog cluster list
      qlog cluster list --interval 10 -o json | jq 'map(.in_tps) | add'
    """
    status, before, seconds = await look_twice(client.admin.cluster_status, interval)
    rows = list_rows(status, before, seconds)
    people = with_roles(rows, replication_of(status))
    return Printout(rows, table=[TableRows(tuple(rows[0]), people)] if rows else ())


@cluster.command("transfer-leader")
@click.argument(
    "node_id",
    metavar="[NODE]",
    shell_complete=names.nodes,
    type=click.IntRange(min=1),
    required=False,
)
@broker_group_option
@cluster_command
async def transfer_leader(client: "Client", node_id: int | None, group: str) -> "LeaderInfo":
    """Hand the leadership to a node, or to the best follower. No append is lost by it.

    \b
    Keys of -o json:
      leader_id, term, broker_group

    \b
    Examples:
      qlog cluster transfer-leader
      qlog cluster transfer-leader 2 -o json
    """
    return await client.admin.transfer_leadership(node_id or 0, broker_group=group)


@cluster.command()
@click.argument("node_id", metavar="NODE", shell_complete=names.nodes, type=click.IntRange(min=1))
@click.option("--undo", is_flag=True, help="Let it lead again.")
@cluster_command
async def drain(client: "Client", node_id: int, undo: bool) -> Row:
    """Make a node hand its leadership over and no longer lead, before it is stopped.

    A leader that no other voter can relieve refuses, and continues as before.

    \b
    Keys of -o json:
      node_id, is_draining

    \b
    Examples:
      qlog cluster drain 1
      qlog cluster drain 1 --undo
    """
    await client.admin.drain(node_id, undo=undo)
    return {"node_id": node_id, "is_draining": not undo}


@cluster.command()
@click.option("--accept-loss", is_flag=True, help="Go on with what is left.")
@click.option("--cluster-id", help="The id of the cluster, to confirm; asked for on a terminal.")
@server_option
@printed
def recover(accept_loss: bool, cluster_id: str | None, server: str | None) -> Printout:
    """Let the nodes continue with what is left, after a power loss of a majority with flush=async.

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
    statuses = ask(server, lambda client: client.admin.cluster_status())
    up = [node for node in statuses.nodes if not is_down(node)]
    recovering = [node.node_id for node in up if node.standing == "recovering"]
    if accept_loss and recovering:
        _confirm_cluster(statuses.cluster_id, cluster_id)

        async def accept(client: "Client") -> None:
            for node_id in recovering:
                await client.admin.accept_loss(node_id, confirm_cluster_id=statuses.cluster_id)

        ask(server, accept)
    is_accepted = accept_loss and bool(recovering)
    if not recovering:
        verdict = "no node that answers is recovering; nothing to do"
    elif is_accepted:
        verdict = "the nodes trust their logs; the longest one will lead"
    else:
        verdict = "wait for the missing nodes, or run it with --accept-loss"
    record = {
        "cluster_id": statuses.cluster_id,
        "recovering": recovering,
        "down": [node.node_id for node in statuses.nodes if is_down(node)],
        "accepted": is_accepted,
        "verdict": verdict,
    }
    is_left = recovering and not is_accepted
    return Printout(record, exit_code=ExitCode.FINDINGS if is_left else ExitCode.OK)


def _confirm_cluster(expected: str, given: str | None) -> None:
    """Ask for the cluster id, so that a typing mistake, or another cluster, loses no data."""
    if given is None and sys.stdin.isatty():
        given = click.prompt(
            "Acked records may be lost. To continue, type the cluster id", err=True
        )
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
@cluster_command
async def list_members(client: "Client", group: str) -> list[Row]:
    """List the members as the leader sees them.

    match_index is how far the leader knows a member's log to be equal to its own.

    \b
    Keys of -o json:
      node_id, address, peer_address, is_voter, is_connected, match_index,
      progress

    \b
    Examples:
      qlog cluster members list
      qlog cluster members list -o jsonl
    """
    return _member_rows((await client.admin.node_status(broker_group=group)).members)


@members.command()
@click.argument("node_id", metavar="NODE", shell_complete=names.nodes, type=click.IntRange(min=1))
@click.option("--address", required=True, help="HOST:PORT of its client service.")
@click.option("--peer-address", required=True, help="HOST:PORT at which the other nodes reach it.")
@broker_group_option
@cluster_command
async def add(
    client: "Client", node_id: int, address: str, peer_address: str, group: str
) -> list[Row]:
    """Add a node as a learner: it gets the log, and counts toward no quorum until promoted.

    \b
    Keys of -o json:
      node_id, address, peer_address, is_voter, is_connected, match_index,
      progress

    \b
    Examples:
      qlog cluster members add 4 --address log4:8081 --peer-address log4:9091
    """
    members = await client.admin.add_learner(
        node_id, address=address, peer_address=peer_address, broker_group=group
    )
    return _member_rows(members)


@members.command()
@click.argument("node_id", metavar="NODE", shell_complete=names.nodes, type=click.IntRange(min=1))
@cluster_command
async def promote(client: "Client", node_id: int) -> list[Row]:
    """Make a learner that has caught up a voter.

    \b
    Keys of -o json:
      node_id, address, peer_address, is_voter, is_connected, match_index,
      progress

    \b
    Examples:
      qlog cluster members promote 4
    """
    return _member_rows(await client.admin.promote(node_id))


@members.command()
@click.argument("node_id", metavar="NODE", shell_complete=names.nodes, type=click.IntRange(min=1))
@confirmed("Remove node {node_id} from the cluster?")
@cluster_command
async def remove(client: "Client", node_id: int) -> list[Row]:
    """Remove a member. Its data stays where it is; to come back, it joins again.

    \b
    Keys of -o json:
      node_id, address, peer_address, is_voter, is_connected, match_index,
      progress

    \b
    Examples:
      qlog cluster members remove 4
      qlog cluster members remove 4 --yes -o json
    """
    return _member_rows(await client.admin.remove_member(node_id))


def _member_rows(members: "Sequence[MemberStatus]") -> list[Row]:
    return [
        asdict(member) | {"match_index": member.match_index if member.match_index >= 0 else None}
        for member in sorted(members, key=lambda member: member.node_id)
    ]
