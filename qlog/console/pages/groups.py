"""Consumer groups: the list, and the lag, members and dead letters of one; reset and resend."""

import asyncio
from typing import Any, Final

from starlette.requests import Request

from qlog.console.charts import of_lag
from qlog.console.cluster import Cluster
from qlog.console.links import link
from qlog.console.paging import number_of, page_of, time_of
from qlog.console.shield import RefusedError
from quorumlog.admin.types import GroupDescription
from quorumlog.errors import NotFoundError
from quorumlog.records.queues import Queue

_PAGE_COUNT: Final = 50
_QUEUE_COUNT: Final = 200
_LETTER_COUNT: Final = 50


async def show_all(cluster: Cluster, request: Request) -> dict[str, Any]:
    """Return a page of the groups whose names contain a text, those with the most lag first."""
    wanted = request.query_params.get("find", "")
    groups = await cluster.shared("groups", cluster.client.admin.list_groups)
    found = [one for one in groups if wanted.lower() in one.group.lower()]
    found.sort(key=lambda info: (-info.lag_count, info.group))
    return {"groups": page_of(found, request, _PAGE_COUNT), "count": len(groups), "find": wanted}


async def show_one(cluster: Cluster, request: Request) -> dict[str, Any]:
    """Return a group: its queues, members, lag over the hour, settings and dead letters."""
    group, admin = request.path_params["group"], cluster.client.admin
    described = await cluster.shared(("group", group), lambda: admin.describe_group(group))
    histories = await cluster.histories()
    lags = [one.lags[group] for one in histories.values() if group in one.lags]
    letters, settings, popped = await asyncio.gather(
        _or(admin.dead_letters(group, max_count=_LETTER_COUNT), []),
        _or(admin.group_settings(group), None),
        _or(admin.describe_pop(group), []),
    )
    return {
        "group": described,
        "queues": page_of(described.queues, request, _QUEUE_COUNT),
        "charts": of_lag(max(lags, key=len)) if lags else [],
        "letters": letters,
        "settings": settings,
        "popped": popped,
    }


async def _or(call: Any, default: Any) -> Any:
    try:
        return await call
    except NotFoundError:
        return default


async def show_reset(cluster: Cluster, request: Request) -> dict[str, Any]:
    """Return what a reset would do: a dry run."""
    query = request.query_params
    topic, position = query.get("topic", ""), query.get("position", "")
    described, new = await _planned(cluster, request, topic, position)
    context = {"group": described, "topic": topic, "position": position, "rows": None}
    if new:
        now = {(one.topic, one.queue_id, one.broker_group): one for one in described.queues}
        rows, moves = [], []
        for queue, offset in new.items():
            old = now.get((queue.topic, queue.queue_id, queue.broker_group))
            at = moved = None
            if old is not None:
                at = max(old.offset, old.first_offset)
                moved = max(offset, old.first_offset) - at
                moves.append(moved)
            rows.append({"queue": queue, "now": at, "new": offset, "moved": moved})
        context["rows"] = rows
        context["skipped_count"] = sum(moved for moved in moves if moved > 0)
        context["again_count"] = -sum(moved for moved in moves if moved < 0)
    return context


async def _planned(
    cluster: Cluster, request: Request, topic: str, position: str
) -> tuple[GroupDescription, dict[Queue, int]]:
    """Return a group, and where a reset would move it; the same is refused as by the reset."""
    admin = cluster.client.admin
    described = await admin.describe_group(request.path_params["group"])
    if not topic or not position:
        return described, {}
    place = _place(position)
    return described, await admin.reset_offsets(described.group, topic, place, is_dry_run=True)


def _place(position: str) -> str:
    """Return a position with its time as the SDK takes it."""
    return f"@{time_of('To', position[1:])}" if position.startswith("@") else position


async def reset(cluster: Cluster, request: Request, form: dict[str, str]) -> tuple[str, str]:
    """Move the offsets of a group without members, as the dry run showed."""
    topic, position = form.get("topic", ""), form.get("position", "")
    described, _ = await _planned(cluster, request, topic, position)  # It makes no group.
    moved = await cluster.client.admin.reset_offsets(described.group, topic, _place(position))
    return link("groups", described.group), f"{len(moved)} queues of {topic} are at {position}"


async def resend(cluster: Cluster, request: Request, form: dict[str, str]) -> tuple[str, str]:
    """Send one dead letter again to the topic that it came from."""
    group, text = request.path_params["group"], form.get("offset", "")
    offset = number_of("offset", text)
    sent = await cluster.client.admin.resend_dead_letters(
        group, [offset], broker_group=form.get("broker_group", "")
    )
    if sent.kept:
        raise RefusedError(409, f"Dead letter {text} stays: {sent.kept[0].reason}.")
    before = "had been sent again before" if sent.already_resent else "was sent again"
    return link("groups", group), f"dead letter {text} {before}"
