"""RocketMQ's store and DLedger's load what a process of ours left when it was killed.

The real code of both, from the jars of bench/peers/rocketmq/pom.xml.
"""

import itertools
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

import pytest

from deploy.local import LocalCluster
from quorumlog.sync import connect
from store.files.checksum import crc32c
from store.store import Store
from tests.compat import foreign
from tests.compat.foreign import Line, line_of
from tests.compat.log_writer import CONFIG, QUEUE_COUNT, TOPIC
from tests.store.records import messages

ROOT: Final = Path(__file__).resolve().parents[2]
KILL_COUNT: Final = 4
_HEADER: Final = struct.Struct(">iiqqqiIIi")
assert _HEADER.size == 48
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def class_path() -> str:
    return foreign.class_path()


@contextmanager
def writer(directory: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that writes until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.compat.log_writer", str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def lines_of(process: "subprocess.Popen[str]", count: int) -> list[Line]:
    """Return the next lines of a writer; the last ones after its end."""
    assert process.stdout is not None
    return [line_of(line.rstrip("\n")) for line in itertools.islice(process.stdout, count)]


def ours(directory: Path) -> list[Line]:
    """Open a directory with our store and read all of it."""
    lines = []
    with Store.open(str(directory), CONFIG) as store:
        for queue_id in range(QUEUE_COUNT):
            offset = 0
            while (got := store.pull(TOPIC, queue_id, offset, max_count=500)).record_count:
                lines += [
                    Line("read", queue_id, message.queue_offset, message.body.decode())
                    for message in messages(got.data)
                ]
                offset = got.next_offset
    return lines


def test_rocketmq_loads_reads_and_extends_what_a_kill_left(tmp_path: Path, class_path: str) -> None:
    """One directory, four times: ours writes and is killed, RocketMQ extends it, ours goes on."""
    directory, seed = tmp_path / "store", 20261123
    random, acked = Random(seed), dict[tuple[int, int], str]()
    left_ahead = 0
    for number in range(KILL_COUNT):
        with writer(directory) as process:
            lines = lines_of(process, random.randrange(1, 600))
            process.kill()
            lines += lines_of(process, sys.maxsize)
        for line in lines:
            assert acked.setdefault((line.queue_id, line.offset), line.body) == line.body
        left_ahead += any((directory / "allocating").iterdir())
        lines = foreign.read_and_extend(class_path, directory, CONFIG, TOPIC, QUEUE_COUNT, 7)
        bodies = {(line.queue_id, line.offset): line.body for line in lines}
        assert len(bodies) == len(lines), f"an offset came twice after kill {number} (seed {seed})"
        assert acked.items() <= bodies.items(), f"acked and not read, kill {number} (seed {seed})"
        assert sum(line.what == "put" for line in lines) == 7
        acked = bodies
        assert {(n.queue_id, n.offset): n.body for n in ours(directory)} == acked
    assert left_ahead, "no kill met a file that was made ahead"


def test_a_copy_of_a_live_directory_is_loaded(tmp_path: Path, class_path: str) -> None:
    directory, copy = tmp_path / "store", tmp_path / "copy"
    with writer(directory) as process:
        lines = lines_of(process, 400)
        process.send_signal(signal.SIGSTOP)  # A copy takes one moment, as a snapshot of a disk.
        shutil.copytree(directory, copy)
    read = foreign.read_and_extend(class_path, copy, CONFIG, TOPIC, QUEUE_COUNT, 0)
    bodies = {(line.queue_id, line.offset): line.body for line in read}
    assert {(line.queue_id, line.offset): line.body for line in lines}.items() <= bodies.items()


def test_a_store_of_ours_adopts_what_rocketmq_wrote(tmp_path: Path, class_path: str) -> None:
    directory = tmp_path / "store"
    directory.mkdir()
    written = foreign.read_and_extend(class_path, directory, CONFIG, TOPIC, QUEUE_COUNT, 1_000)
    assert [n._replace(what="read") for n in sorted(written, key=lambda n: n[1:3])] == ours(
        directory
    )


def entries(ledger: Path) -> list[str]:
    """Every entry of a ledger's data files, in the words of LedgerCheck."""
    lines = []
    for path in sorted(file for file in (ledger / "data").iterdir()):
        data, at = path.read_bytes(), 0
        while at + _HEADER.size <= len(data):
            magic, _, index, term, _, _, _, _, body_size_bytes = _HEADER.unpack_from(data, at)
            if magic != 1:
                break  # A blank, or the end of the log.
            at += _HEADER.size
            body = data[at : at + body_size_bytes]
            lines.append(f"entry {index} {term} {body_size_bytes} {crc32c(body)}")
            at += body_size_bytes
    return lines


def test_dledger_reads_every_entry_of_a_killed_replica(tmp_path: Path, class_path: str) -> None:
    settings = {"file_size_bytes": "1MiB", "batch_size_bytes_max": "64KiB"}
    with LocalCluster.create(tmp_path / "c", settings=settings) as cluster:
        victim = next(n for n in cluster.node_ids if n != cluster.leader_id())
        with connect(cluster.bootstrap) as client, client.producer() as producer:
            client.admin.create_topic(TOPIC, queue_count=QUEUE_COUNT)
            for number in range(300):
                producer.send(TOPIC, b"%06d" % number * 2_000)
            cluster.kill(victim)
        directory = cluster.node_directory(victim)
        (ledger,) = directory.rglob("dledger-*")
        assert any((ledger / "allocating").iterdir()), "a file that was made ahead is there"
        copy = tmp_path / "copy"
        shutil.copytree(ledger.parent, copy)
    index_size_bytes = next((ledger / "index").iterdir()).stat().st_size
    name = ledger.name.removeprefix("dledger-")
    sizes = (1 << 20, index_size_bytes)
    lines = foreign.run(class_path, "LedgerCheck", tmp_path, copy, name, *sizes)
    expected = entries(copy / ledger.name)
    assert len(expected) >= 300
    assert lines == expected
