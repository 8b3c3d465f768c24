"""`qlog ha`: a master-slave group: its master, its replicas, its losses; and promoting.

Owns the options, the rows and the judgement whether all is well.
"""

from typing import TYPE_CHECKING, Any

import click

from qlog import names
from qlog.cluster.node_rows import is_down
from qlog.command_decorators import Printout, TableRows, cluster_command
from quorumlog.command_errors import ExitCode

if TYPE_CHECKING:
    from quorumlog.admin.types import HaGroup, HaPromotion
    from quorumlog.client import Client

_NODE_COLUMNS = (
    "node_id", "role", "mode", "epoch", "standing", "end_log_position", "confirm_log_position",
    "acked_log_position", "lag_size_bytes", "is_in_sync", "is_connected", "losses", "detail",
)  # fmt: skip
_LOSS_COLUMNS = (
    "node_id", "epoch", "first_log_position", "end_log_position", "size_bytes", "record_count",
    "acked_record_count", "is_exact", "unix_ms", "file",
)  # fmt: skip


@click.group()
def ha() -> None:
    """Show a master-slave group, and choose its master by hand."""


@ha.command()
@cluster_command
async def status(client: "Client") -> Printout:
    """Show the master, what each replica holds, and what was lost by changes of masters.

    An epoch is the time of one master; a later one has a higher number. copies is on how many nodes
    an append is synced before it is acked: 1 under async_master. A log position is a byte of the
    log. Readers see the log up to confirm_log_position. A replica is in sync when it counts as a
    copy and holds all that readers see. A loss is always the end of a log: the bytes are in the
    file that it names, which 'qlog store inspect' opens.

    \b
    Keys of -o json:
      broker_group, master_id, epoch, mode, copies, node_count, in_sync (node
      ids), healthy, problems, nodes, losses
      nodes: node_id, role, mode, epoch, standing, end_log_position,
        confirm_log_position, acked_log_position, lag_size_bytes, is_in_sync,
        is_connected, losses (how many), detail
      losses: node_id, epoch, first_log_position, end_log_position, size_bytes,
        record_count, acked_record_count, is_exact, unix_ms, file

    \b
    Examples:
      qlog ha status
      qlog ha status -o json | jq .losses

    Ends with 0 when all is well, and with 1 when there is a problem; it is named.
    """
    group = await client.admin.ha_group()
    nodes, losses, wrong = _node_rows(group), _loss_rows(group), _problems(group)
    summary = _summary(group) | {"healthy": not wrong, "problems": wrong}
    required = f"{summary['copies']} before an ack, {len(summary['in_sync'])} in sync"
    return Printout(
        {**summary, "nodes": nodes, "losses": losses},
        table=[
            {key: value for key, value in summary.items() if key != "problems"}
            | ({"copies": required} if summary["copies"] else {}),
            TableRows(_NODE_COLUMNS, nodes),
            *([TableRows(_LOSS_COLUMNS, losses)] if losses else []),
        ],
        lines=[f"problem: {problem}" for problem in wrong],
        exit_code=ExitCode.FINDINGS if wrong else ExitCode.OK,
    )


@ha.command()
@click.argument("node_id", metavar="NODE", shell_complete=names.nodes, type=click.IntRange(min=1))
@cluster_command
async def promote(client: "Client", node_id: int) -> "HaPromotion":
    """Make a node the master by hand: no controller and no name server is needed.

    An epoch is the time of one master. The node binds a new one on enough replicas that none of an
    older epoch can acknowledge anything any more, takes the longest log among them, and then
    serves. With sync_master nothing acknowledged is lost, whichever node is named. The old master
    finds out and becomes a slave.

    \b
    Keys of -o json:
      master_id, epoch, start_log_position

    \b
    Examples:
      qlog ha promote 2
      qlog ha promote 2 -o json | jq .epoch
    """
    return await client.admin.ha_promote(node_id)


def _summary(group: "HaGroup") -> dict[str, Any]:
    up = [node for node in group.nodes if not is_down(node)]
    newest = max(up, key=lambda node: node.epoch, default=None)
    master = group.master
    mode = (master or newest).mode if newest else None
    return {
        "broker_group": newest.broker_group if newest else None,
        "master_id": master.node_id if master else None,
        "epoch": newest.epoch if newest else None,
        "mode": mode,
        "copies": 1 if mode == "async" else newest.copies if newest else None,
        "node_count": len(newest.node_ids) if newest else None,
        "in_sync": list(master.in_sync) if master else [],
    }


def _node_rows(group: "HaGroup") -> list[dict[str, Any]]:
    master = group.master
    seen = {one.node_id: one for one in master.replicas} if master else {}
    rows = []
    for node in group.nodes:
        row: dict[str, Any] = dict.fromkeys(_NODE_COLUMNS)
        row["node_id"] = node.node_id
        if is_down(node):
            row |= {"role": "down", "detail": node.error}
        else:
            row |= {key: getattr(node, key) for key in _NODE_COLUMNS if hasattr(node, key)}
            row["losses"] = len(node.losses)
        replica = seen.get(node.node_id)
        if replica is not None:
            is_known = replica.acked_log_position >= 0
            row["acked_log_position"] = replica.acked_log_position if is_known else None
            row["lag_size_bytes"] = replica.lag_size_bytes if is_known else None
            row["is_in_sync"], row["is_connected"] = replica.is_in_sync, replica.is_connected
        elif master is not None and master.node_id == node.node_id:
            row |= {"acked_log_position": master.durable_log_position, "lag_size_bytes": 0}
            row |= {"is_in_sync": True, "is_connected": True}
        rows.append(row)
    return rows


def _loss_rows(group: "HaGroup") -> list[dict[str, Any]]:
    rows = []
    for node in group.nodes:
        for loss in () if is_down(node) else node.losses:
            row = {key: getattr(loss, key) for key in _LOSS_COLUMNS if hasattr(loss, key)}
            row["size_bytes"] = loss.end_log_position - loss.first_log_position
            row["node_id"] = node.node_id
            for key in ("record_count", "acked_record_count"):
                row[key] = row[key] if row[key] >= 0 else None
            row["file"] = row["file"] or None
            rows.append({key: row[key] for key in _LOSS_COLUMNS})
    return sorted(rows, key=lambda row: row["unix_ms"])


def _problems(group: "HaGroup") -> list[str]:
    """Return the problems for a person to solve; known losses are shown, but are none of them."""
    texts, master = [], group.master
    if master is None:
        texts.append("no node is master: run 'qlog ha promote NODE'")
    elif master.mode == "sync" and len(master.in_sync) < master.copies:
        texts.append(
            f"{len(master.in_sync)} of {master.copies} copies are in sync: appends wait for more"
        )
    for node in group.nodes:
        if is_down(node):
            texts.append(f"node {node.node_id} does not answer: {node.error}")
        elif node.detail:
            texts.append(f"node {node.node_id}: {node.detail}")
    return texts
