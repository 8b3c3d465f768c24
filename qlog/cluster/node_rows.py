"""The statuses of nodes as rows: for `qlog cluster status` and `qlog top`.

Owns the stable keys, and the rates between two statuses; `judgement` says whether all is well.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from quorumlog.admin.types import ClusterStatus, NodeDown, NodeStatus

Row = dict[str, Any]

STATUS_COLUMNS = (
    "node_id", "broker_group", "address", "role", "term", "first_index", "last_index",
    "durable_index", "commit_index", "applied_index", "lag_count", "standing", "flush",
    "disk_state", "disk_used_ratio", "is_draining", "loss_from_index", "uptime_ms", "version",
    "pid", "users", "detail",
)  # fmt: skip
SHORT_COLUMNS = (
    "broker_group", "node_id", "address", "role", "standing", "lag_count", "commit_index", "term",
    "last_index", "applied_index", "flush", "disk_state", "detail",
)  # fmt: skip
TOP_COLUMNS = (
    "broker_group", "node_id", "address", "role", "term", "last_index", "commit_index",
    "applied_index", "lag_count", "msgs_per_s", "mb_per_s", "pulls_per_s", "busy_per_s",
    "in_flight_kib", "disk_used_ratio", "standing", "uptime_ms", "detail",
)  # fmt: skip
_LIST_KEYS = {
    "broker_group": "broker_group", "node_id": "node_id", "address": "address", "role": "role",
    "version": "version", "in_tps": "msgs_per_s", "out_tps": "records_out_per_s",
    "in_flight_kib": "in_flight_kib", "space": "disk_used_ratio", "activated": "activated",
}  # fmt: skip
"""Columns of `qlog cluster list`, and what they have of a row."""
_HA_ROLES = {"leader": "master", "follower": "slave"}
"""What the roles are called in master-slave mode, in tables; JSON has one word for both modes."""
_RATES = {
    "msgs_per_s": ("appends_total", 1),
    "records_out_per_s": ("pulled_records_total", 1),
    "mb_per_s": ("appended_size_bytes_total", 1e6),
    "pulls_per_s": ("pulls_total", 1),
    "busy_per_s": ("busy_total", 1),
}
"""Counters of a node whose growth in a second is shown, and the unit."""


def status_rows(status: "ClusterStatus") -> list[Row]:
    """Return one row a node, by id. A node without an answer has the role `down` and the reason.

    lag_count: entries of the leader that the node does not have. A node that answers and is no
    member any more has the role `removed`.
    """
    addresses = _addresses(status)
    leaders = {group: leader_of(status, group) for group in groups_of(status)}
    rows = []
    for node in status.nodes:
        leader = leaders[node.broker_group]
        if is_down(node):
            row: Row = {"node_id": node.node_id, "address": node.address, "role": "down"}
            row["has_answered"] = node.has_answered
            cause = node.error.removeprefix(f"{node.address}: ").removesuffix(
                "; is the node running?"
            )
            rows.append({**row, "broker_group": node.broker_group, "detail": cause})
        else:
            row = {key: getattr(node, key) for key in STATUS_COLUMNS if hasattr(node, key)}
            row["address"] = addresses.get(node.node_id)
            if is_removed(node, leader):
                row["role"] = "removed"
            row["lag_count"] = max(leader.last_index - node.last_index, 0) if leader else None
            row["disk_used_ratio"] = round(node.disk_used_ratio, 4)
            row["loss_from_index"] = node.loss_from_index if node.loss_from_index >= 0 else None
            rows.append(row)
    return sorted(rows, key=lambda row: (row["broker_group"], row["node_id"], row["address"] or ""))


def users_of(status: "ClusterStatus") -> dict[str, list[int]]:
    """Return the modes of users, and the nodes of each; those of older builds have none."""
    nodes: dict[str, list[int]] = {}
    for node in sorted(_by_id(status).values(), key=lambda node: node.node_id):
        if node.users:
            nodes.setdefault(node.users, []).append(node.node_id)
    return nodes


def with_roles(rows: list[Row], replication: str) -> list[Row]:
    """Return the rows for people: a role has the word of the mode of replication."""
    names = _HA_ROLES if replication.endswith("_master") else {}
    return [row | {"role": names.get(row["role"], row["role"])} for row in rows]


def replication_of(status: "ClusterStatus") -> str:
    """Return the mode of replication; that of Raft if no node answered."""
    return next((node.replication for node in status.nodes if not is_down(node)), "raft")


def groups_of(status: "ClusterStatus") -> list[str]:
    """Return the broker groups by name."""
    return sorted({one.broker_group for one in (*status.broker_groups, *status.nodes)})


def is_down(node: object) -> "TypeIs[NodeDown]":
    """Whether a node did not answer."""
    from quorumlog.admin.types import NodeDown

    return isinstance(node, NodeDown)


def is_removed(node: "NodeStatus", leader: "NodeStatus | None") -> bool:
    """Whether the leader of its group does not count a node as a member: its own view is older."""
    members = [] if leader is None else leader.members
    return bool(members) and all(one.node_id != node.node_id for one in members)


def leader_of(status: "ClusterStatus", group: str) -> "NodeStatus | None":
    """Return the node that leads a group in the newest term; older leaders may still answer."""
    nodes = [node for node in status.nodes if node.broker_group == group]
    leaders = [node for node in nodes if not is_down(node) and node.role == "leader"]
    return max(leaders, key=lambda node: node.term, default=None)


def list_rows(status: "ClusterStatus", before: "ClusterStatus", seconds: float) -> list[Row]:
    """Return the rows of `qlog cluster list`: messages in and out between two statuses."""
    own = {"cluster_id": status.cluster_id}
    return [
        own | {name: row.get(key) for name, key in _LIST_KEYS.items()}
        for row in _rated_rows(status, before, seconds)
    ]


def top_rows(status: "ClusterStatus", before: "ClusterStatus | None", seconds: float) -> list[Row]:
    """Return the rows of `qlog top`: rates are null without an earlier status of the process."""
    rows = _rated_rows(status, before, seconds)
    return [{key: row.get(key) for key in TOP_COLUMNS} for row in rows]


def _rated_rows(
    status: "ClusterStatus", before: "ClusterStatus | None", seconds: float
) -> list[Row]:
    """Return the rows of a status, with rates where the same process was there before."""
    earlier, nodes = _by_id(before) if before is not None else {}, _by_id(status)
    rows = status_rows(status)
    for row in rows:
        node, old = nodes.get(row["node_id"]), earlier.get(row["node_id"])
        row["activated"] = node is not None
        if node is not None:
            row["in_flight_kib"] = node.in_flight_size_bytes >> 10
        if node is not None and old is not None and old.pid == node.pid and seconds > 0:
            for name, (total, unit) in _RATES.items():
                grown = getattr(node, total) - getattr(old, total)
                row[name] = round(grown / unit / seconds, 1)
    return rows


def _by_id(status: "ClusterStatus") -> "dict[int, NodeStatus]":
    """Return the nodes that answered."""
    return {node.node_id: node for node in status.nodes if not is_down(node)}


def _addresses(status: "ClusterStatus") -> dict[int, str]:
    """Return the client addresses by node, from the members' lists of all nodes."""
    return {
        member.node_id: member.address
        for node in status.nodes
        if not is_down(node)
        for member in node.members
        if member.address
    }
