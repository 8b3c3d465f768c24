"""Bits that flip in queues and key index of nodes, running or stopped: readers get everything."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from deploy.local import LocalCluster
from deploy.local_metrics import metric_of
from quorumlog import sync
from tests.patience import wait_for

pytestmark = pytest.mark.long
COUNT = 600
TAGS = ("a", "b", "c")
SETTINGS = {"file_size_bytes": "256KiB", "batch_size_bytes_max": "64KiB", "log_format": "json"}


def count(cluster: LocalCluster, name: str) -> float:
    """A counter of all nodes, added up."""
    return sum(metric_of(cluster, n, f"quorumlog_{name}_total") for n in cluster.node_ids)


def fill(cluster: LocalCluster) -> None:
    with sync.connect(cluster.bootstrap) as client, client.producer() as producer:
        client.admin.create_topic("orders", queue_count=1)
        for n in range(COUNT):
            producer.enqueue("orders", b"%06d" % n, tag=TAGS[n % 3], key=f"key{n}", queue_id=0)
        producer.flush()
        last = producer.send("orders", b"last", queue_id=0)
    wait_for(
        "all to have it",
        lambda: all((one.applied_index or 0) >= last.index for one in cluster.status()),
    )


def files(cluster: LocalCluster, node_ids: Sequence[int]) -> Iterator[Path]:
    for node_id in node_ids:
        data = cluster.node_directory(node_id) / "data"
        yield from sorted(data.glob("consumequeue/*/*/*"))
        yield from sorted(data.glob("index/*"))


def used_bytes(path: Path) -> list[int]:
    """Bytes of units, header, slots and entries that hold something."""
    found, at = [], 0
    with path.open("rb") as file:
        while at < path.stat().st_size:
            try:  # Most of the file is a hole, or zeros.
                at = os.lseek(file.fileno(), at, os.SEEK_DATA) // 65536 * 65536
            except OSError:
                break
            piece = os.pread(file.fileno(), 65536, at)
            if piece.strip(b"\0"):
                found += [at + n for n, byte in enumerate(piece) if byte]
            at += 65536
    return found


def flip(path: Path, random: Random) -> None:
    """Turn over a bit of a few of them."""
    used = used_bytes(path)
    fd = os.open(path, os.O_RDWR)
    try:
        for at in random.sample(used, min(3, len(used))):
            os.pwrite(fd, bytes([os.pread(fd, 1, at)[0] ^ 1 << random.randrange(8)]), at)
    finally:
        os.close(fd)


def flip_tags(cluster: LocalCluster, node_ids: Sequence[int], first: int) -> None:
    """Turn over a bit of the tags code of some units: no filter would let them through."""
    for node_id in node_ids:
        path = cluster.node_directory(node_id) / f"data/consumequeue/orders/0/{0:020d}"
        fd = os.open(path, os.O_RDWR)
        try:
            for offset in range(first, COUNT, 97):
                at = 20 * offset + 19
                os.pwrite(fd, bytes([os.pread(fd, 1, at)[0] ^ 1]), at)
        finally:
            os.close(fd)


def check_filters(cluster: LocalCluster, node_id: int) -> None:
    """One replica shows each message to those who ask for its tag."""
    with sync.connect(cluster.bootstrap) as client:
        for number, tag in enumerate(TAGS):
            bodies: list[bytes] = []
            offset, end = 0, 1
            while offset < end:
                batch = client.pull(
                    "orders", 0, offset, tags=[tag], consistency="local", node_id=node_id
                )
                bodies += [message.body for message in batch]
                offset, end = batch.next_offset, batch.max_offset
            assert bodies == [b"%06d" % n for n in range(number, COUNT, 3)]


def check_all(cluster: LocalCluster) -> None:
    """Every message by filter and by key; a read may have to be tried again for a moment."""
    with sync.connect(cluster.bootstrap) as client:
        for number, tag in enumerate(TAGS):
            bodies: list[bytes] = []
            offset, end = 0, 1
            while offset < end:
                batch = client.pull("orders", 0, offset, max_count=100, tags=[tag])
                bodies += [message.body for message in batch]
                offset, end = batch.next_offset, batch.max_offset
            assert bodies == [b"%06d" % n for n in range(number, COUNT, 3)]
        for n in range(0, COUNT, 7):
            assert [m.body for m in client.query_by_key("orders", f"key{n}")] == [b"%06d" % n]


@pytest.mark.parametrize("replication", ["raft", "sync_master"])
def test_bits_flip_while_nodes_run(tmp_path: Path, replication: str) -> None:
    random = Random(4)
    with LocalCluster.create(tmp_path, 3, replication=replication, settings=SETTINGS) as cluster:
        fill(cluster)
        for _ in range(4):
            for path in files(cluster, cluster.node_ids):
                flip(path, random)
            check_all(cluster)
        assert count(cluster, "derived_damage") > 0
        assert count(cluster, "derived_mended_units") > 0
        assert all(state.is_ready for state in cluster.status())


@pytest.mark.parametrize("are_all", [True, False])
def test_bits_flip_while_nodes_are_down(tmp_path: Path, are_all: bool) -> None:
    random = Random(5)
    with LocalCluster.create(tmp_path, 3, settings=SETTINGS) as cluster:
        fill(cluster)
        for number in range(4):
            down = cluster.node_ids if are_all else (cluster.leader_id(),)
            if number % 2:
                for node_id in down:
                    cluster.kill(node_id)
            else:
                cluster.stop(*down)
            if number >= 2:  # Not before: a start that sees damage builds all of it anew.
                for path in files(cluster, down):
                    flip(path, random)
            flip_tags(cluster, down, number)
            cluster.start(*down)
            cluster.wait_ready()
            for node_id in down:
                check_filters(cluster, node_id)
            check_all(cluster)


def test_a_pass_puts_right_what_nobody_reads(tmp_path: Path) -> None:
    settings = SETTINGS | {"scrub_interval_ms": "1s"}
    with LocalCluster.create(tmp_path, 3, settings=settings) as cluster:
        fill(cluster)
        directory = cluster.node_directory(2) / "data/consumequeue/orders/0"
        path = directory / f"{0:020d}"
        whole = path.read_bytes()
        fd = os.open(path, os.O_RDWR)
        os.pwrite(fd, bytes([whole[20 * 300 + 19] ^ 1]), 20 * 300 + 19)
        os.close(fd)
        wait_for("a pass", lambda: path.read_bytes() == whole)
        # The bytes are in the file before anybody counts and tells.
        log = cluster.log_path(2)
        wait_for("a line", lambda: "are repaired" in log.read_text())
        assert metric_of(cluster, 2, "quorumlog_derived_mended_units_total") == 1


def test_a_delayed_message_comes_when_it_was_asked_for(tmp_path: Path) -> None:
    """Its due time is in a unit, and nowhere else but in the record."""
    with (
        LocalCluster.create(tmp_path, 1, settings=SETTINGS) as cluster,
        sync.connect(cluster.bootstrap) as client,
        client.producer() as producer,
    ):
        client.admin.create_topic("orders", queue_count=1)
        producer.send("orders", b"early", queue_id=0, delay=3600)
        producer.send("orders", b"late", queue_id=0, delay=6)
        cluster.stop(1)
        path = cluster.node_directory(1) / f"data/consumequeue/rmq_sys_wheel_timer/0/{0:020d}"
        fd = os.open(path, os.O_RDWR)
        for at, bit in (
            (12 + 3, 0x01),
            (20 + 12 + 1, 0x80),
        ):  # Now; and in some thousand years.
            os.pwrite(fd, bytes([os.pread(fd, 1, at)[0] ^ bit]), at)
        os.close(fd)
        cluster.start(1)
        cluster.wait_ready()
        wait_for("the one", lambda: len(client.pull("orders", 0, 0)) > 0)
        assert [m.body for m in client.pull("orders", 0, 0)] == [b"late"]
