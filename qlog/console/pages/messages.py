"""Messages: of a queue from an offset on, by time, key or id; one with its body and what became of
it; the live tail; and sending one."""

import asyncio
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from qlog.console.cluster import Cluster
from qlog.console.links import link
from qlog.console.newest import Look
from qlog.console.paging import time_of, whole
from qlog.console.rows import rows_of
from qlog.console.shield import RefusedError
from qlog.console.shown import BODY_SIZE_BYTES_MAX, body_views, cut, plain
from qlog.message_rows import plain_body
from quorumlog.errors import NotFoundError

_COUNT: Final = 25
_TAIL_COUNT: Final = 50
_KEPT_S: Final = 60.0
"""What was read serves so long, unless a queue has grown."""
_INT32_MAX: Final = (1 << 31) - 1


def _filter(request: Request) -> dict[str, Any]:
    """Return the filter that the address names, for a pull."""
    tag, sql = request.query_params.get("tag", ""), request.query_params.get("sql", "")
    if tag and sql:
        raise RefusedError(400, "A filter is by tag or by SQL, and not by both.")
    return {"tags": [tag] if tag else [], "sql": sql}


async def show_queue(cluster: Cluster, request: Request) -> dict[str, Any]:
    """Return messages of one queue from an offset on, with a filter."""
    topic, client = request.path_params["topic"], cluster.client
    queue_id = whole(request, "queue", 0, 0, _INT32_MAX)
    broker_group = request.query_params.get("broker_group", "")
    described = await cluster.shared(("topic", topic), lambda: client.admin.describe_topic(topic))
    queues = [one for one in described.queues if one.queue_id == queue_id]
    own = [one for one in queues if one.broker_group == broker_group] or queues
    if not own:
        raise NotFoundError(f"topic {topic!r} has no queue {queue_id}; choose another")
    queue, at, wanted = own[0], request.query_params.get("time", ""), _filter(request)
    newest = None
    if at:
        offset = await client.offset_by_time(
            topic, queue_id, time_of("time", at), broker_group=queue.broker_group
        )
    else:
        end = max(queue.first_offset, queue.end_offset - _COUNT)
        offset = max(queue.first_offset, whole(request, "offset", end, 0))
    if any(wanted.values()) and not at and not request.query_params.get("offset"):
        newest = await cluster.shared(
            ("newest", topic, str(wanted), queue),
            lambda: Look(client, topic, wanted).newest([queue], _COUNT),
            _KEPT_S,
        )
        rows, next_offset = newest.rows[::-1], queue.end_offset
        offset = rows[0].queue_offset if rows else queue.end_offset
    else:
        rows, next_offset = await cluster.shared(
            ("from", topic, str(wanted), queue, offset),
            lambda: Look(client, topic, wanted).forward(queue, offset, queue.end_offset, _COUNT),
            _KEPT_S,
        )
    return {
        "topic": described,
        "queue": queue,
        "offset": offset,
        "rows": rows,
        "newest": newest,
        "next_offset": next_offset,
        "previous_offset": max(queue.first_offset, offset - _COUNT),
    }


async def show_tail(cluster: Cluster, request: Request) -> dict[str, Any]:
    """Return the newest messages of all queues of a topic, the newest first."""
    topic, client = request.path_params["topic"], cluster.client
    described = await cluster.shared(("topic", topic), lambda: client.admin.describe_topic(topic))
    wanted, queues = _filter(request), described.queues
    newest = await cluster.shared(
        ("tail", topic, str(wanted), queues),
        lambda: Look(client, topic, wanted).newest(queues, _TAIL_COUNT),
        _KEPT_S,
    )
    return {"topic": described, "newest": newest}


async def show_found(cluster: Cluster, request: Request) -> dict[str, Any]:
    """Return the messages of a topic with a key."""
    topic, key = request.path_params["topic"], request.query_params.get("key", "")
    described = await cluster.client.admin.describe_topic(topic)
    found = await cluster.client.query_by_key(topic, key, max_count=_COUNT) if key else []
    rows = await asyncio.to_thread(rows_of, reversed(found))
    return {"topic": described, "rows": rows, "key": key}


async def show_asked(_cluster: Cluster, request: Request) -> dict[str, Any]:
    """Return the way to the page of the id that a form asks for."""
    message_id = request.query_params.get("id", "").strip()
    return {"response": RedirectResponse(link("messages", message_id), 303)}


async def show_one(cluster: Cluster, request: Request) -> dict[str, Any]:
    """Return a message, each view of its body, and what became of it."""
    message_id = request.path_params["id"]
    trace = await cluster.client.admin.trace_message(message_id)
    message = trace.message
    if message is None:
        return {"message": None, "id": message_id, "trace": trace}
    body, is_plain = await asyncio.to_thread(plain_body, message)
    if "file" in request.query_params:
        head = {"content-disposition": f'attachment; filename="{message.queue_offset}.bin"'}
        return {"response": Response(body, media_type="application/octet-stream", headers=head)}
    return {
        "message": message,
        "id": message_id,
        "trace": trace,
        "size_bytes": len(body),
        "is_plain": is_plain,
        "cut": cut(BODY_SIZE_BYTES_MAX, len(body), "bytes"),
        "views": await asyncio.to_thread(body_views, body),
        "properties": [(plain(k), plain(v)) for k, v in sorted(message.properties.items())],
    }


async def show_at(cluster: Cluster, request: Request) -> dict[str, Any]:
    """Return the way to the page of the message at an offset of a queue."""
    topic, queue_id = request.path_params["topic"], whole(request, "queue", 0, 0, _INT32_MAX)
    offset, broker_group = whole(request, "offset", 0, 0), request.query_params.get("broker_group")
    for one in await cluster.client.pull(
        topic, queue_id, offset, max_count=1, broker_group=broker_group or ""
    ):
        return {"response": RedirectResponse(link("messages", one.message_id), 303)}
    raise RefusedError(404, f"Queue {queue_id} of {topic} has no message at offset {offset} yet.")


async def show_send(cluster: Cluster, request: Request) -> dict[str, Any]:
    """Return the form with which one message is sent."""
    return {"topic": await cluster.client.admin.describe_topic(request.path_params["topic"])}


async def send(cluster: Cluster, request: Request, form: dict[str, str]) -> tuple[str, str]:
    """Send one message."""
    topic = request.path_params["topic"]
    async with cluster.client.producer() as producer:
        receipt = await producer.send(
            topic,
            form.get("body", "").encode(),
            key=form.get("key") or None,
            tag=form.get("tag") or None,
        )
    done = f"stored in queue {receipt.queue_id} at offset {receipt.queue_offset}"
    return link("messages", receipt.message_id), done
