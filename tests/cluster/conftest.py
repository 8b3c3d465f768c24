"""Three real nodes for each test that asks for them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import quorumlog
from deploy.local import LocalCluster
from quorumlog.cluster.transport import Transport
from tests.cluster.workload import QUEUE_COUNT, TOPIC

TEST_TIMEOUT_S = 300.0
SETTINGS: dict[str, object] = {"file_size_bytes": "1MiB", "batch_size_bytes_max": "256KiB"}


@asynccontextmanager
async def running(
    directory: Path, *, timeout_ms: int = 30_000, transport: Transport = "auto", **options: Any
) -> AsyncIterator[tuple[LocalCluster, quorumlog.Client]]:
    """A cluster with a topic, and a client; stopped at the end."""
    settings = {**SETTINGS, **options.pop("settings", {})}
    cluster = LocalCluster.create(directory, settings=settings, **options)
    try:
        cluster.start()
        await asyncio.to_thread(cluster.wait_ready)
        async with quorumlog.connect(
            cluster.bootstrap, timeout_ms=timeout_ms, transport=transport
        ) as client:
            await client.admin.create_topic(TOPIC, queue_count=QUEUE_COUNT)
            yield cluster, client
    finally:
        await asyncio.to_thread(cluster.stop)


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, None]], None]:
    """Run a test's coroutine, bounded in time."""

    def run_bounded(work: Coroutine[Any, Any, None]) -> None:
        asyncio.run(asyncio.wait_for(work, TEST_TIMEOUT_S))

    return run_bounded
