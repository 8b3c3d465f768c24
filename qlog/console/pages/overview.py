"""The first page: who leads what, what is wrong, and what the last hour was like; and events."""

from typing import Any, Final

from starlette.requests import Request

from qlog.cluster.node_rows import status_rows
from qlog.console.charts import of_nodes, rate
from qlog.console.cluster import Cluster

_EVENT_COUNT: Final = 8
_PAGE_COUNT: Final = 100
_LEVELS: Final = ("info", "warning", "error")


async def show(cluster: Cluster, _request: Request) -> dict[str, Any]:
    """Return the nodes, the findings, the rates now, and the charts."""
    status, findings = await cluster.look()
    histories, events = await cluster.histories(), await cluster.events()
    delays = await cluster.delays()
    newest = [history.samples[-1] for history in histories.values() if history.samples]
    return {
        "rows": status_rows(status),
        "findings": [(one.text, one.do) for one in findings],
        "broker_groups": status.broker_groups,
        "rates": {
            name: sum(rate(one, name) for one in newest)
            for name in ("in_messages", "in_size_bytes", "out_messages", "out_size_bytes")
        },
        "append_p99_ms": max((one.append_p99_us for one in newest), default=0) / 1000,
        "held_count": delays and sum(one.held_count for one in delays),
        "due_unix_ms": [one.next_due_unix_ms for one in delays or () if one.next_due_unix_ms],
        "charts": of_nodes(histories),
        "events": events[:_EVENT_COUNT],
    }


async def show_events(cluster: Cluster, request: Request) -> dict[str, Any]:
    """Return the last events of all nodes, of a level or above."""
    level = request.query_params.get("level", "info")
    level = level if level in _LEVELS else "info"
    levels = {*_LEVELS[_LEVELS.index(level) :], "critical"}
    events = [event for event in await cluster.events() if event.level in levels]
    return {"events": events[:_PAGE_COUNT], "level": level, "levels": _LEVELS}
