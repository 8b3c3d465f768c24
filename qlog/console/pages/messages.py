"""Messages: of a queue from an offset on, by time, key or id; one with its body and what became of
it; the live tail; and sending one."""

from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response

from qlog.console.cluster import Cluster
from qlog.console.links import link
from qlog.console.paging import whole
from qlog.console.shield import RefusedError
from qlog.console.shown import BODY_SIZE_BYTES_MAX, body_views, plain
from qlog.message_rows import plain_body
from quorumlog.errors import NotFoundError

if TYPE_CHECKING:
    from quorumlog.records.message import Message

_COUNT: Final = 25
_TAIL_COUNT: Final = 50
_PREVIEW_LENGTH: Final = 120
_PULL_SIZE_BYTES: Final = 4 << 20
_INT32_MAX: Final = (1 << 31) - 1


def _row(message: "Message") -> dict[str, Any]:
    """Return what a line of a table shows of a message."""
    body, _ = plain_body(message)
    return {
        "message": message,
        "size_bytes": len(body),
        "preview": plain(body[:_PREVIEW_LENGTH].decode("utf-8", "backslashreplace")),
        "key": plain(message.key or "")[:_PREVIEW_LENGTH],
        "tag": plain(message.tag or "")[:_PREVIEW_LENGTH],
    }


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
    queue, at = own[0], request.query_params.get("time", "")
    if at:
        offset = await client.offset_by_time(
            topic, queue_id, whole(request, "time", 0, 0), broker_group=queue.broker_group
        )
    else:
        newest = max(queue.first_offset, queue.end_offset - _COUNT)
        offset = max(queue.first_offset, whole(request, "offset", newest, 0))
    batch = None
    if offset < queue.end_offset:
        batch = await client.pull(
            topic, queue_id, offset,
            max_count=_COUNT, max_size_bytes=_PULL_SIZE_BYTES,
            broker_group=queue.broker_group, **_filter(request),
        )  # fmt: skip
    return {
        "topic": described,
        "queue": queue,
        "offset": offset,
        "rows": [_row(one) for one in batch or ()],
        "next_offset": batch.next_offset if batch is not None else None,
        "previous_offset": max(queue.first_offset, offset - _COUNT),
    }


async def show_tail(cluster: Cluster, request: Request) -> dict[str, Any]:
    """Return the newest messages of all queues of a topic, the newest first."""
    topic, client = request.path_params["topic"], cluster.client
    described = await client.admin.describe_topic(topic)
    rows: list[dict[str, Any]] = []
    queues = described.queues[:_TAIL_COUNT]
    share = max(1, _TAIL_COUNT // max(1, len(queues)))
    for queue in queues:
        offset = max(queue.first_offset, queue.end_offset - share)
        if offset < queue.end_offset:
            batch = await client.pull(
                topic, queue.queue_id, offset,
                max_count=share, max_size_bytes=_PULL_SIZE_BYTES // len(queues),
                broker_group=queue.broker_group, **_filter(request),
            )  # fmt: skip
            rows += map(_row, batch)
    rows.sort(key=lambda row: -row["message"].store_unix_ms)
    return {"topic": described, "rows": rows[:_TAIL_COUNT]}


async def show_found(cluster: Cluster, request: Request) -> dict[str, Any]:
    """Return the messages of a topic with a key."""
    topic, key = request.path_params["topic"], request.query_params.get("key", "")
    described = await cluster.client.admin.describe_topic(topic)
    found = await cluster.client.query_by_key(topic, key, max_count=_COUNT) if key else []
    return {"topic": described, "rows": [_row(one) for one in reversed(found)], "key": key}


async def show_one(cluster: Cluster, request: Request) -> dict[str, Any]:
    """Return a message, each view of its body, and what became of it."""
    trace = await cluster.client.admin.trace_message(request.path_params["id"])
    message = trace.message
    if message is None:
        return {"message": None, "id": request.path_params["id"], "trace": trace}
    body, is_plain = plain_body(message)
    if "file" in request.query_params:
        head = {"content-disposition": f'attachment; filename="{message.queue_offset}.bin"'}
        return {"response": Response(body, media_type="application/octet-stream", headers=head)}
    return {
        "message": message,
        "id": request.path_params["id"],
        "trace": trace,
        "size_bytes": len(body),
        "is_plain": is_plain,
        "is_cut": len(body) > BODY_SIZE_BYTES_MAX,
        "views": body_views(body),
        "properties": [(plain(k), plain(v)) for k, v in sorted(message.properties.items())],
    }


async def show_send(cluster: Cluster, request: Request) -> dict[str, Any]:
    """Return the form with which one message is sent."""
    topic = await cluster.client.admin.describe_topic(request.path_params["topic"])
    return {"topic": topic}


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
