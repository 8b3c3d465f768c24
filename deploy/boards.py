"""The Grafana boards: cluster, topics and groups, one node; printed from one table of panels.

Owns the panels, and the form that Grafana reads. The text of a panel is that of its first metric
(`node.metrics`), so boards and docs/metrics.md say the same.

    python -m deploy.boards         # writes deploy/grafana/*.json
"""

import json
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

from node.metrics import METRICS
from node.monitoring.metric import PREFIX

DIRECTORY: Final = "deploy/grafana"
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_NODE: Final = "on (job, instance) group_left (broker_group, node_id) quorumlog_node"
_WIDTH: Final = 24
_SCHEMA: Final = 41


class Panel(NamedTuple):
    """One panel. A query has `$M` for the selector of the board's instances."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    """PromQL, and the legend."""
    lines: tuple[tuple[float, str], ...] = ()
    """Thresholds: from the value on the panel is of this colour, and has a line."""


class Board(NamedTuple):
    """One board: rows of panels by title."""

    name: str
    title: str
    rows: dict[str, tuple[Panel, ...]]
    variables: tuple[tuple[str, str], ...] = ()
    """Each variable, and the query of its values."""


def _rate(metric: str, legend: str, by: str = "instance") -> tuple[str, str]:
    return f"sum by ({by}) (rate({PREFIX}{metric}_total{{$M}}[$__rate_interval]))", legend


def _gauge(metric: str, legend: str = "{{instance}}") -> tuple[str, str]:
    return f"{PREFIX}{metric}{{$M}}", legend


def _quantiles(metric: str) -> tuple[tuple[str, str], ...]:
    bucket = f"rate({PREFIX}{metric}_bucket{{$M}}[$__rate_interval])"
    return tuple(
        (f"histogram_quantile({share}, sum by (le) ({bucket}))", f"p{name}")
        for share, name in ((0.5, "50"), (0.99, "99"), (0.999, "99.9"))
    )


def _stage(metric: str, legend: str) -> tuple[str, str]:
    sums = f"sum(rate({PREFIX}{metric}_sum{{$M}}[$__rate_interval]))"
    return f"{sums} / sum(rate({PREFIX}{metric}_count{{$M}}[$__rate_interval]))", legend


_APPENDS: Final = (
    Panel("Time of an append at the leader", "s", _quantiles("append_answered_seconds")),
    Panel(
        "Where it goes (mean)",
        "s",
        (
            _stage("append_sent_seconds", "written and sent"),
            _stage("append_quorum_seconds", "quorum"),
            _stage("append_applied_seconds", "applied"),
        ),
    ),
    Panel(
        "Appends over 500 ms",
        "percentunit",
        (
            (
                '1 - sum by (instance) (rate(quorumlog_append_answered_seconds_bucket{le="0.524288"'
                ", $M}[$__rate_interval])) / sum by (instance) "
                "(rate(quorumlog_append_answered_seconds_count{$M}[$__rate_interval]))",
                "{{instance}}",
            ),
        ),
        ((0.01, "orange"),),
    ),
)
_DISK: Final = Panel(
    "Disk used: 75 % ticket, 85 % page, 90 % full",
    "percentunit",
    (_gauge("disk_used_ratio"),),
    ((0.75, "yellow"), (0.85, "orange"), (0.9, "red")),
)
_SYNC: Final = Panel(
    "Duration of a sync", "s", _quantiles("sync_seconds"), ((0.1, "orange"), (5, "red"))
)
_PAGE_CACHE: Final = Panel(
    "Page cache: duration of a write (busy: over 1 s)",
    "s",
    _quantiles("append_seconds"),
    ((1, "red"),),
)
_DISPATCH: Final = Panel(
    "Dispatch behind: committed and not shown",
    "short",
    (("quorumlog_commit_index{$M} - quorumlog_applied_index{$M}", "{{instance}}"),),
    ((10_000, "orange"),),
)

BOARDS: Final = (
    Board(
        "cluster",
        "QuorumLog: cluster",
        {
            "Nodes": (
                Panel("Nodes that are up", "none", (('up{job="quorumlog"}', "{{instance}}"),)),
                Panel(
                    "Leaders by broker group",
                    "none",
                    (
                        (
                            "sum by (cluster_id, broker_group) (quorumlog_role{$M, role=\"leader\"}"
                            " * on (job, instance) group_left (cluster_id, broker_group) "
                            "quorumlog_node)",
                            "{{cluster_id}} {{broker_group}}",
                        ),
                    ),
                ),
                Panel("Term or epoch", "none", (_gauge("term"),)),
                Panel("Ready", "none", (_gauge("ready"),)),
                Panel("Warnings for an operator", "none", (_gauge("store_warnings"),)),
                Panel("Peers that are connected", "none",
                      (("sum by (instance) (quorumlog_peer_connected{$M})", "{{instance}}"),)),
            ),
            "Load": (
                Panel("Messages in", "wps", (_rate("acked_records", "{{instance}}"),)),
                Panel("Messages out", "rps", (
                    _rate("pulled_records", "pulled {{instance}}"),
                    _rate("pop_delivered", "popped {{instance}}"),
                )),
                Panel("Bytes in", "Bps", (_rate("acked_bytes", "{{instance}}"),)),
            ),
            "Appends": _APPENDS,
            "Replication and disks": (
                Panel("Entries (bytes) that a follower lacks", "short", (
                    ("quorumlog_last_index{$M} - on (job, instance) group_right () "
                     "quorumlog_follower_match_index{$M}", "{{instance}} to node {{node_id}}"),
                    _gauge("ha_slave_lag_bytes", "{{instance}} to slave {{node_id}}"),
                )),
                _SYNC,
                _DISK,
            ),
            "Trouble": (
                Panel("Appends refused or undecided", "ops", (
                    _rate("append_busy", "busy {{instance}}"),
                    _rate("append_timeouts", "undecided {{instance}}"),
                )),
                Panel("Calls that failed", "ops",
                      (_rate("calls_failed", "{{method}} {{code}}", "method, code"),)),
                Panel("Refusals of callers by kind", "ops",
                      (_rate("held_refused", "{{kind}}", "kind"),)),
                Panel("Damage found", "none", (
                    ("increase(quorumlog_scrub_damage_total{$M}[1h])", "log {{instance}}"),
                    ("increase(quorumlog_derived_damage_total{$M}[1h])", "derived {{instance}}"),
                )),
            ),
        },
    ),
    Board(
        "topics",
        "QuorumLog: topics and groups",
        {
            "Topics": (
                Panel("Messages in by topic", "wps",
                      (_rate("topic_in_messages", "{{topic}}", "topic"),)),
                Panel("Messages out by topic", "rps",
                      (_rate("topic_out_messages", "{{topic}}", "topic"),)),
                Panel("Bytes in by topic", "Bps", (_rate("topic_in_bytes", "{{topic}}", "topic"),)),
                Panel("Bytes out by topic", "Bps",
                      (_rate("topic_out_bytes", "{{topic}}", "topic"),)),
                Panel("Messages that are kept", "short", (
                    ("sum by (topic) (quorumlog_queue_end_offset{$M} - "
                     "quorumlog_queue_first_offset{$M})", "{{topic}}"),
                )),
            ),
            "Consumer groups": (
                Panel("Lag in messages", "short", (
                    ("sum by (group, topic) (quorumlog_group_lag_messages{$M})",
                     "{{group}} {{topic}}"),
                )),
                Panel("Lag in time: ticket from 5 minutes", "s", (
                    ("max by (group, topic) (quorumlog_group_lag_seconds{$M})",
                     "{{group}} {{topic}}"),
                ), ((300, "orange"),)),
                Panel("Members", "none",
                      (("sum by (group) (quorumlog_group_members{$M})", "{{group}}"),)),
                Panel("Waiting to come again", "short",
                      (("sum by (group) (quorumlog_group_retries{$M})", "{{group}}"),)),
                Panel("Dead letters", "short",
                      (("sum by (group) (quorumlog_group_dead_letters{$M})", "{{group}}"),)),
                Panel("In flight by pop", "short",
                      (("sum by (group) (quorumlog_group_in_flight{$M})", "{{group}}"),)),
            ),
            "Delay and transactions": (
                Panel("Delayed messages that are held", "short",
                      (("max by (job) (quorumlog_delayed_messages{$M})", "held"),)),
                Panel("Delivered late (mean)", "s", (
                    ("sum(rate(quorumlog_delayed_lateness_seconds_total{$M}[$__rate_interval])) / "
                     "sum(rate(quorumlog_delayed_delivered_total{$M}[$__rate_interval]))", "late"),
                )),
                Panel("Open transactions", "short", (
                    ("max by (job) (quorumlog_open_transactions{$M})", "all"),
                    ("sum by (producer_group) (quorumlog_producer_group_open_transactions{$M})",
                     "{{producer_group}}"),
                )),
            ),
        },
    ),
    Board(
        "node",
        "QuorumLog: one node",
        {
            "What it is": (
                Panel("Role", "none", (("quorumlog_role{$M} == 1", "{{role}}"),)),
                Panel("Standing", "none", (("quorumlog_standing{$M} == 1", "{{standing}}"),)),
                Panel("Uptime", "s", (_gauge("uptime_seconds"),)),
            ),
            "Log": (
                Panel("Last, durable, committed, applied", "short", (
                    _gauge("last_index", "last"), _gauge("durable_index", "durable"),
                    _gauge("commit_index", "committed"), _gauge("applied_index", "applied"),
                )),
                _DISPATCH,
                Panel("Bytes not synced", "bytes", (_gauge("unsynced_bytes", "not synced"),)),
            ),
            "Appends": _APPENDS,
            "Disk": (_PAGE_CACHE, _SYNC, _DISK),
            "Callers": (
                Panel("Calls by method", "ops", (_rate("calls", "{{method}}", "method"),)),
                Panel("Held for callers: share of the limit", "percentunit",
                      (("quorumlog_held{$M} / quorumlog_held_limit{$M}", "{{kind}}"),)),
                Panel("Appends in flight, in bytes", "bytes", (
                    _gauge("in_flight_bytes", "in flight"),
                    _gauge("parked_append_bytes", "waiting for room"),
                )),
            ),
            "Peers": (
                Panel("Sent to peers", "Bps",
                      (_rate("peer_sent_bytes", "to node {{node_id}}", "node_id"),)),
                Panel("Waiting for the socket of a peer", "bytes",
                      (_gauge("peer_queued_bytes", "to node {{node_id}}"),)),
                Panel("Connections that ended", "ops", (_rate("peer_closed", "{{code}}", "code"),)),
            ),
        },
        (("instance", "label_values(quorumlog_node, instance)"),),
    ),
)  # fmt: skip


def queries(board: Board) -> list[tuple[str, str]]:
    """Return the queries of a board with their panels, as Prometheus takes them: of all nodes, over
    a minute."""
    return [
        (panel.title, _selected(query, ".*").replace("$__rate_interval", "1m"))
        for panels in board.rows.values()
        for panel in panels
        for query, _ in panel.queries
    ]


def document(board: Board) -> dict[str, Any]:
    """Return a board as Grafana reads it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in board.rows.items():
        place = {"h": 1, "w": _WIDTH, "x": 0, "y": y}
        panels.append({"type": "row", "title": title, "gridPos": place, "panels": []})
        y += 1
        per_line = 3 if len(row) % 2 or len(row) > 4 else len(row)
        width = _WIDTH // per_line
        for number, panel in enumerate(row):
            at = {"h": 8, "w": width, "x": number % per_line * width, "y": y}
            panels.append(_panel(panel, board) | {"gridPos": at})
            y += 8 if number % per_line == per_line - 1 or number == len(row) - 1 else 0
    for number, one in enumerate(panels, 1):
        one["id"] = number
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"}
    variables = [
        {"name": name, "type": "query", "query": query, "datasource": _DATASOURCE, "refresh": 2}
        for name, query in board.variables
    ]
    return {
        "uid": f"quorumlog-{board.name}",
        "title": board.title,
        "tags": ["quorumlog"],
        "schemaVersion": _SCHEMA,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source, *variables]},
        "links": [
            {"type": "dashboards", "tags": ["quorumlog"], "title": "QuorumLog", "asDropdown": True}
        ],
        "panels": panels,
    }


def _panel(panel: Panel, board: Board) -> dict[str, Any]:
    instances = "$instance" if board.variables else ".*"
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    steps += [{"color": color, "value": value} for value, color in panel.lines]
    custom: dict[str, Any] = {"fillOpacity": 10, "showPoints": "never"}
    if panel.lines:
        custom["thresholdsStyle"] = {"mode": "line"}
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": text_of(panel),
        "datasource": _DATASOURCE,
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0,
                "custom": custom,
                "thresholds": {"mode": "absolute", "steps": steps},
            },
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "expr": _selected(query, instances),
                "legendFormat": legend,
            }
            for number, (query, legend) in enumerate(panel.queries)
        ],
    }


def text_of(panel: Panel) -> str:
    """Return the texts of the metrics of a panel."""
    names = dict.fromkeys(re.findall(rf"{PREFIX}(\w+)", " ".join(q for q, _ in panel.queries)))
    own = {name: re.sub(r"_(total|bucket|sum|count)$", "", name) for name in names}
    found = dict.fromkeys(name if name in METRICS else own[name] for name in names)
    return " ".join(METRICS[name].text for name in found if name != "node")


def _selected(query: str, instances: str) -> str:
    return query.replace("$M", f'job="quorumlog", instance=~"{instances}"')


def files() -> dict[str, str]:
    """Return the text of each board's file by its name."""
    return {f"{board.name}.json": json.dumps(document(board), indent=1) + "\n" for board in BOARDS}


if __name__ == "__main__":
    for name, text in files().items():
        (Path(DIRECTORY) / name).write_text(text)
