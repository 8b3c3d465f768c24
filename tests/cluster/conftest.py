"""Three real nodes for each test that asks for them.

Clients use frames where they can, which is everywhere; the tests of OVER_BOTH also use gRPC alone.
"""

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
OVER_BOTH = (
    "test_a_killed_node_that_stays_away_costs_nothing",
    "test_all_nodes_killed_at_once",
    "test_appends_at_a_paused_leader_are_not_acked_twice",
)
"""All others would take minutes more, and show the same of the nodes."""
TRANSPORT: Transport = "auto"
"""The transport of the clients of `running`."""
SETTINGS: dict[str, object] = {"file_size_bytes": "1MiB", "batch_size_bytes_max": "256KiB"}


@asynccontextmanager
async def running(
    directory: Path, *, timeout_ms: int = 30_000, **options: Any
) -> AsyncIterator[tuple[LocalCluster, quorumlog.Client]]:
    """A cluster with a topic, and a client; stopped at the end."""
    settings = {**SETTINGS, **options.pop("settings", {})}
    cluster = LocalCluster.create(directory, settings=settings, **options)
    try:
        cluster.start()
        await asyncio.to_thread(cluster.wait_ready)
        async with quorumlog.connect(
            cluster.bootstrap, timeout_ms=timeout_ms, transport=TRANSPORT
        ) as client:
            await client.admin.create_topic(TOPIC, queue_count=QUEUE_COUNT)
            yield cluster, client
    finally:
        await asyncio.to_thread(cluster.stop)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test of OVER_BOTH twice; with frames required, so that none is left out unseen."""
    if metafunc.definition.name in OVER_BOTH:
        metafunc.fixturenames.append("_transport")
        metafunc.parametrize("_transport", ["framed", "grpc"], indirect=True)


@pytest.fixture
def _transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.cluster.conftest.TRANSPORT", request.param)


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, None]], None]:
    """Run a test's coroutine, bounded in time."""

    def run_bounded(work: Coroutine[Any, Any, None]) -> None:
        asyncio.run(asyncio.wait_for(work, TEST_TIMEOUT_S))

    return run_bounded
