"""Three real nodes for each test that asks for them."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import quorumlog
from deploy.local import LocalCluster
from tests.cluster.workload import QUEUE_COUNT, TOPIC

SETTINGS: dict[str, object] = {"file_size_bytes": "1MiB", "batch_size_bytes_max": "256KiB"}


@asynccontextmanager
async def running(
    directory: Path,
    *,
    first: int | None = None,
    timeout_ms: int = 30_000,
    token: str = "",
    environment: Mapping[str, str] | None = None,
    **options: Any,
) -> AsyncIterator[tuple[LocalCluster, quorumlog.Client]]:
    """A cluster with a topic, and a client; stopped at the end. With `first` only that many nodes
    are started."""
    settings = {**SETTINGS, **options.pop("settings", {})}
    cluster = LocalCluster.create(directory, settings=settings, **options)
    try:
        node_ids = cluster.node_ids[:first]
        cluster.start(*node_ids, environment=environment)
        await asyncio.to_thread(cluster.wait_ready)
        addresses = [cluster.address(node_id) for node_id in node_ids]
        async with quorumlog.connect(addresses, timeout_ms=timeout_ms, token=token) as client:
            await client.admin.create_topic(TOPIC, queue_count=QUEUE_COUNT)
            yield cluster, client
    finally:
        await asyncio.to_thread(cluster.stop)
