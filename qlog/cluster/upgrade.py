"""`qlog cluster upgrade`: which node has which build, and the end of an upgrade.

Owns the options and the printing; the nodes decide whether an upgrade may end.
"""

from typing import TYPE_CHECKING, Any

import click

from qlog.cluster.node_rows import (
    groups_of,
    is_down,
    replication_of,
    status_rows,
    with_roles,
)
from qlog.command_decorators import Printout, TableRows, cluster_command
from qlog.connection import confirm
from quorumlog.command_errors import CliError, ExitCode

if TYPE_CHECKING:
    from quorumlog.admin.types import ClusterStatus
    from quorumlog.client import Client

_COLUMNS = ("broker_group", "node_id", "address", "role", "version", "level", "level_max")


@click.group()
def upgrade() -> None:
    """Show which nodes have the new build, and end a rolling upgrade.

    A broker group works at a level that all its builds have. Until an upgrade is finalized, each
    node may go back to the build before.
    """


@upgrade.command()
@cluster_command
async def status(client: "Client") -> Printout:
    """Show the build of each node, and what the end of the upgrade waits for.

    \b
    Keys of -o json:
      broker_groups, nodes
      broker_groups: broker_group, level, level_max (that finalize sets),
        waits_for
      nodes: broker_group, node_id, address, role, version, level, level_max

    \b
    Examples:
      qlog cluster upgrade status
      qlog cluster upgrade status -o json | jq '.broker_groups[].waits_for'
    """
    cluster = await client.admin.cluster_status()
    nodes = _node_rows(cluster)
    groups = [_group_row(name, nodes) for name in groups_of(cluster)]
    return Printout(
        {"broker_groups": groups, "nodes": nodes},
        table=[TableRows.of(_COLUMNS, with_roles(nodes, replication_of(cluster)))],
        lines=[line for group in groups for line in _lines(group)],
    )


@upgrade.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_command
async def finalize(client: "Client", yes: bool) -> Printout:
    """Have each broker group work at the level of its new build. No node can go back then.

    Each group refuses while a member is not connected or has an older build. One that works at that
    level already stays as it is.

    \b
    Keys of -o json:
      broker_group, level

    \b
    Examples:
      qlog cluster upgrade finalize
      qlog cluster upgrade finalize --yes -o json
    """
    cluster = await client.admin.cluster_status()
    nodes = _node_rows(cluster)
    groups = [_group_row(name, nodes) for name in groups_of(cluster)]
    lacks = [what for group in groups for what in group["waits_for"]]
    if lacks:
        do = "upgrade or start these nodes, or remove them with 'qlog cluster members remove'"
        what = "the upgrade cannot be finalized"
        raise CliError(what, f"it waits for {', and for '.join(lacks)}", do, ExitCode.REFUSED)
    raised = [group for group in groups if group["level"] != group["level_max"]]
    if raised:
        question = "No node can go back to the build before. Finalize the upgrade?"
        confirm(question, is_confirmed=yes)
    rows = [
        {"broker_group": name, "level": await client.admin.finalize_upgrade(broker_group=name)}
        for name in groups_of(cluster)
    ]
    if raised:
        return Printout(rows)
    return Printout(
        rows,
        table=[
            {
                f"broker group {group['broker_group']}": f"works at level {group['level']}: there "
                "is nothing to finalize"
                for group in groups
            }
        ],
    )


def _node_rows(cluster: "ClusterStatus") -> list[dict[str, Any]]:
    shown = {(row["broker_group"], row["node_id"]): row for row in status_rows(cluster)}
    rows = []
    for node in cluster.nodes:
        row: dict[str, Any] = {
            **dict.fromkeys(_COLUMNS),
            "broker_group": node.broker_group,
            "node_id": node.node_id,
        }
        status_row = shown[node.broker_group, node.node_id]
        row |= {key: status_row[key] for key in ("address", "role")}
        if not is_down(node):
            row |= {"version": node.version, "level": node.level, "level_max": node.level_max}
        rows.append(row)
    return rows


def _group_row(name: str, nodes: list[dict[str, Any]]) -> dict[str, Any]:
    own = [row for row in nodes if row["broker_group"] == name and row["role"] != "removed"]
    up = [row for row in own if row["role"] != "down"]
    level = max((row["level"] for row in up), default=None)
    level_max = max((row["level_max"] for row in up), default=None)
    # A build is no lower than the level that its group works at.
    away = own if level != level_max or not up else []
    waits_for = [f"node {row['node_id']} to answer" for row in away if row not in up]
    waits_for += [
        f"node {row['node_id']} to get a build with level {level_max}, it has {row['version']}"
        for row in up
        if row["level_max"] != level_max
    ]
    return {"broker_group": name, "level": level, "level_max": level_max, "waits_for": waits_for}


def _lines(group: dict[str, Any]) -> list[str]:
    name, level, level_max = group["broker_group"], group["level"], group["level_max"]
    if level == level_max and not group["waits_for"]:
        return [f"broker group {name} works at level {level}: there is nothing to finalize"]
    head = f"broker group {name} works at level {level}"
    if group["waits_for"]:
        return [f"{head}; finalize waits for {what}" for what in group["waits_for"]]
    return [f"{head}; 'qlog cluster upgrade finalize' raises it to {level_max}"]
