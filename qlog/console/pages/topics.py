"""Topics: the list, and the queues of one."""

from typing import Any, Final

from starlette.requests import Request

from qlog.console.cluster import Cluster
from qlog.console.paging import page_of

_PAGE_COUNT: Final = 50
_QUEUE_COUNT: Final = 200


async def show_all(cluster: Cluster, request: Request) -> dict[str, Any]:
    """Return a page of the topics whose names contain a text."""
    wanted = request.query_params.get("find", "")
    topics = await cluster.shared("topics", cluster.client.admin.list_topics)
    found = [one for one in topics if wanted.lower() in one.topic.lower()]
    return {"topics": page_of(found, request, _PAGE_COUNT), "count": len(topics), "find": wanted}


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
