"""Nodes: the list, and the replication, memory and log of one."""

from typing import Any

from starlette.requests import Request

from qlog.cluster.node_rows import status_rows
from qlog.console.charts import of_nodes
from qlog.console.cluster import Cluster
from quorumlog.admin.types import NodeDown
from quorumlog.errors import NotFoundError

_EVENT_COUNT = 20


async def show_all(cluster: Cluster, _request: Request) -> dict[str, Any]:
    """Return the nodes of all broker groups."""
    return {"rows": status_rows(await cluster.status())}


async def show_one(cluster: Cluster, request: Request) -> dict[str, Any]:
    """Return what a node says of itself, of its followers, and its last hour."""
    name = request.path_params["node_id"]
    status = await cluster.status()
    rows = {str(row["node_id"]): row for row in status_rows(status)}
    if name not in rows:
        raise NotFoundError(f"there is no node {name[:20]}; see the list of nodes")
    node_id = rows[name]["node_id"]
    node = next(one for one in status.nodes if one.node_id == node_id)
    histories = await cluster.histories()
    own = {node_id: histories[node_id]} if node_id in histories else {}
    ha = settings = None
    if not isinstance(node, NodeDown):
        ha = await cluster.try_node(cluster.client.admin.ha_status(node_id))
        settings = await cluster.try_node(cluster.client.admin.settings(node_id))
    events = [event for event in await cluster.events() if event.node_id == node_id]
    return {
        "row": rows[name],
        "node": None if isinstance(node, NodeDown) else node,
        "members": () if isinstance(node, NodeDown) else node.members,
        "ha": ha,
        "settings": settings or (),
        "charts": of_nodes(own),
        "events": events[:_EVENT_COUNT],
    }
