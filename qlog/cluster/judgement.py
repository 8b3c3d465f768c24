"""What is wrong with a cluster: one judgement for `qlog cluster status`, `qlog top`, `qlog check`,
the console and `qlog debug bundle`.

Owns which finding is of which severity, its text, and what to do about it. The state of nodes is
judged from what `node_rows` shows, and from the events of nodes. Must not know how it is shown.
"""

import asyncio
import enum
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from qlog.cluster.node_rows import groups_of, is_down, leader_of, status_rows, users_of
from quorumlog.errors import QuorumlogError

if TYPE_CHECKING:
    from quorumlog.admin.types import ClusterStatus, NodeEvent, NodeEvents
    from quorumlog.client import Client

SUBJECTS: Final = ("leader", "disk", "damage")
_RECENT_MS: Final = 15 * 60_000
"""Errors in logs count for so long: some checks of an interval of minutes see them."""
_EVENT_COUNT_MAX: Final = 1_000
"""As many as a node keeps."""
_EARLY: Final = ("repairing", "starting")


class Severity(enum.IntEnum):
    """How bad it is; the value is the exit code of a plugin."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


WORST_LAST: Final = (Severity.OK, Severity.UNKNOWN, Severity.WARNING, Severity.CRITICAL)
"""What is known to be wrong goes before what could not be looked at."""


class Finding(NamedTuple):
    """One thing that is wrong, for a person to solve."""

    subject: str
    severity: Severity
    text: str
    do: str = ""
    """What to do about it."""


class Look(NamedTuple):
    """What a look at a cluster found."""

    status: "ClusterStatus"
    findings: list[Finding]
    """Empty when all is well; the worst first."""

    @property
    def problems(self) -> list[str]:
        """The findings as texts."""
        return [one.text for one in self.findings]


class Looks:
    """Looks at a cluster, and asks nodes only for events that it has not yet. One per client."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self.events: Final[dict[int, NodeEvents]] = {}
        """The newest events, by node."""

    async def look(self, subjects: Sequence[str] = SUBJECTS) -> Look:
        """Return the status of all nodes, and what is wrong."""
        status = await self._client.admin.cluster_status()
        unknown: list[Finding] = []
        if "damage" in subjects:
            up = sorted({node.node_id for node in status.nodes if not is_down(node)})
            unknown = [one for one in await asyncio.gather(*map(self._ask, up)) if one]
        events = {node_id: said.events for node_id, said in self.events.items()}
        return Look(status, [*judged(status, events, subjects), *unknown])

    async def _ask(self, node_id: int) -> Finding | None:
        """Note the new events of a node; return that they are not known."""
        known = self.events.get(node_id)
        try:
            said = await self._client.admin.events(node_id, after=known)
        except QuorumlogError as error:
            text = f"events of node {node_id} are not known: {error}"
            return Finding("damage", Severity.UNKNOWN, text)
        is_same = known is not None and known.began_unix_ms == said.began_unix_ms
        events = (*(known.events if known is not None and is_same else ()), *said.events)
        self.events[node_id] = replace(said, events=events[-_EVENT_COUNT_MAX:])
        return None


def judged(
    status: "ClusterStatus",
    events: "Mapping[int, Sequence[NodeEvent]]",
    subjects: Sequence[str] = SUBJECTS,
) -> list[Finding]:
    """Return what is wrong with the nodes, the worst first; `events` by node.

    A node that is no member any more is not judged: its own view is older than its removal."""
    rows = [row for row in status_rows(status) if row["role"] != "removed"]
    findings: list[Finding] = []
    if "leader" in subjects:
        findings += _leaders(status, rows)
    answering = [row for row in rows if row["role"] != "down"]
    if "disk" in subjects:
        findings += _disks(answering)
    if "damage" in subjects:
        findings += _modes(users_of(status))
        for row in answering:
            findings += _damage(row, events.get(row["node_id"], ()), "leader" in subjects)
    return sorted(findings, key=lambda finding: -WORST_LAST.index(finding.severity))


def _leaders(status: "ClusterStatus", rows: list[dict[str, Any]]) -> Iterable[Finding]:
    groups = groups_of(status)
    leaders = {group: leader_of(status, group) for group in groups}
    alone = {
        (node.broker_group, node.node_id)
        for node in status.nodes
        if not is_down(node) and not node.leader_id
    }
    for group in groups or [""]:
        if leaders.get(group) is None:
            where = f" of broker group {group}" if len(groups) > 1 else ""
            text = f"no node{where} leads: appends wait until one does"
            do = "start the nodes that do not answer"
            yield Finding("leader", Severity.CRITICAL, text, do)
    for row in rows:
        name, severity, do = f"node {row['node_id'] or row['address']}", Severity.WARNING, ""
        if row["role"] == "down" and row["has_answered"]:
            text = f"answers without a status: {row['detail']}"
        elif row["role"] == "down":
            text = f"does not answer: {row['detail']}"
            do = "start it; the end of its log says why it ended"
        elif row["standing"] == "diverged":
            severity = Severity.CRITICAL
            text = f"has a history that contradicts the leader's: {row['detail']}"
            do = 'see operations.md, "Two histories"'
        elif row["role"] in _EARLY:
            text = f"is {row['role']}: {row['detail']}"
            do = "wait: it counts toward a quorum once it is full"
        elif row["standing"] not in ("full", ""):
            text = f"is {row['standing']}: it does not count toward a quorum yet"
            do = "wait; if that lasts, its detail says what it waits for"
        elif row["is_draining"]:
            do = f"qlog cluster drain {row['node_id']} --undo"
            text = f"is draining: it does not lead before a restart or '{do}'"
        elif (leader := leaders[row["broker_group"]]) is not None and (
            row["broker_group"],
            row["node_id"],
        ) in alone:
            text = f"knows no leader, while node {leader.node_id} leads"
            do = "if that lasts, its peers refuse it: see qlog events, secret_file, certificates"
        else:
            continue
        yield Finding("leader", severity, f"{name} {text}", do)


def _modes(nodes: dict[str, list[int]]) -> Iterable[Finding]:
    if len(nodes) > 1:
        at = (f"{mode} at node {', '.join(map(str, ids))}" for mode, ids in sorted(nodes.items()))
        do = 'set the same at all nodes; see operations.md, "Switch users on"'
        yield Finding("damage", Severity.WARNING, f"users: {', '.join(at)}", do)


def _disks(rows: list[dict[str, Any]]) -> Iterable[Finding]:
    for row in rows:
        if row["disk_state"] not in ("ok", ""):
            severity = Severity.CRITICAL if row["disk_state"] == "full" else Severity.WARNING
            used = f"is {row['disk_used_ratio']:.0%} used ({row['disk_state']})"
            text = f"the disk of node {row['node_id']} {used}"
            do = "make room on it, or keep messages for a shorter time"
            yield Finding("disk", severity, text, do)


def _damage(
    row: dict[str, Any], events: "Sequence[NodeEvent]", leader_told: bool
) -> Iterable[Finding]:
    name = f"node {row['node_id']}"
    loss_from, sentences = row["loss_from_index"], row["detail"].split("; ")
    if loss_from is not None:
        text = f"{name}: acked records may be missing from index {loss_from} on"
        do = "see its log, and operations.md"
        yield Finding("damage", Severity.CRITICAL, text, do)
    told = row["standing"] == "diverged" or row["role"] in _EARLY
    if leader_told and row["is_draining"]:
        sentences = [one for one in sentences if not one.startswith("draining: ")]
    detail = "; ".join(one for one in sentences if not one.startswith("acked records may be"))
    has_ended = "certificate" in detail and " ended at " in detail
    if detail and (has_ended or not (leader_told and told)):
        severity = Severity.CRITICAL if has_ended else Severity.WARNING
        yield Finding("damage", severity, f"{name}: {detail}")
    lo_unix_ms = time.time_ns() // 1_000_000 - _RECENT_MS
    recent = [
        event
        for event in events
        if event.level in ("error", "critical") and event.unix_ms >= lo_unix_ms
    ]
    if recent:
        last = max(recent, key=lambda event: event.number)
        text = f"{name}: errors in its log: {len(recent)}, the last one: {last.text}"
        do = f"qlog events --node {row['node_id']} --level error shows them"
        yield Finding("damage", Severity.WARNING, text, do)
