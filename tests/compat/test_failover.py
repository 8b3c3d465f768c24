"""The official clients while leaders die: at least once, and never again after an ack."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local import LocalCluster
from tests.compat.drivers import CallFailedError, Client, body_of
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.long

SEND_COUNT = 200
"""Longer than a client remembers a route, and than gRPC waits before it dials again."""
PAUSE_S = 0.2
"""What an application does when a receive fails."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One of its own: the node that starts again would be left behind in a shared one."""
    directory = tmp_path_factory.mktemp("failover") / "c"
    with LocalCluster.create(directory, 3, settings={"file_size_bytes": "16MiB"}) as nodes:
        yield nodes


def test_a_leader_dies_under_load(
    client: Client, language: str, cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    client.call("producer", topics=[topic])
    with Client(language, cluster.address(2), tmp_path / "home2") as consumer:
        consumer.call("simple", group="g-" + topic, topic=topic)
        acked: set[bytes] = set()
        done: set[bytes] = set()
        for number in range(SEND_COUNT):
            if number == SEND_COUNT // 3:
                leader = cluster.leader_id()
                cluster.kill(leader)
            if number == 2 * SEND_COUNT // 3:
                cluster.restart(leader)
            body = b"%d" % number
            try:
                client.call("send", topic=topic, body=body)
            except CallFailedError:
                continue  # The application was told; it may be there or not.
            acked.add(body)
        assert len(acked) > SEND_COUNT // 2, "work was done"
        deadline, never = time.monotonic() + PATIENCE_S, threading.Event()
        while not acked <= done:
            assert time.monotonic() < deadline, f"{len(acked - done)} acked messages never came"
            messages = []
            try:
                messages = consumer.call("receive", invisible_s=10)
            except CallFailedError:
                # gRPC fails calls at once until it dials the node that was dead again.
                never.wait(PAUSE_S)
            for message in messages:
                assert body_of(message) not in done, "it was acknowledged"
                try:
                    consumer.call("ack", message_id=message["id"])
                except CallFailedError:
                    continue  # It is not known whether the ack was taken.
                done.add(body_of(message))
