"""Topics: the list, and the queues of one."""

from typing import Any, Final

from starlette.requests import Request

from qlog.console.cluster import Cluster
from qlog.console.paging import page_of

_PAGE_COUNT: Final = 50
_QUEUE_COUNT: Final = 200


async def show_all(cluster: Cluster, request: Request) -> dict[str, Any]:
    """Return a page of the topics whose names contain a text."""
    wanted, after = (request.query_params.get(name, "")[:255] for name in ("find", "after"))
    admin = cluster.client.admin
    page = await cluster.shared(
        ("topics", wanted, after),
        lambda: admin.topic_page(containing=wanted, after=after, max_count=_PAGE_COUNT),
    )
    is_full = len(page.topics) == _PAGE_COUNT
    return {
        "page": page,
        "flows": await cluster.flows(),
        "find": wanted,
        "after": after,
        "next": page.topics[-1].topic if is_full else None,
    }


async def show_one(cluster: Cluster, request: Request) -> dict[str, Any]:
    """Return the queues of a topic, and how much it holds."""
    topic = request.path_params["topic"]
    described = await cluster.shared(
        ("topic", topic), lambda: cluster.client.admin.describe_topic(topic)
    )
    sizes = await cluster.try_node(cluster.client.admin.topic_sizes(topic)) or []
    return {
        "topic": described,
        "queues": page_of(described.queues, request, _QUEUE_COUNT),
        "message_count": sum(one.end_offset - one.first_offset for one in described.queues),
        "record_count": sum(one.record_count for one in sizes),
        "size_bytes": sum(one.size_bytes for one in sizes),
    }
