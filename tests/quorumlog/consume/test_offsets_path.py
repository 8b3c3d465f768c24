"""A file that is read, changed and written back is of one owner: no other's part is lost."""

import fcntl
import json
import os
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from bench.journal import RunUnderWayError, SessionJournal
from quorumlog.consume.local_offsets import LocalOffsets
from quorumlog.errors import ConflictError, InvalidRequestError
from quorumlog.records.queues import Queue
from tests.quorumlog.fake_cluster import connect, fake_cluster

QUEUES = Queue("orders", 0), Queue("bills", 0), Queue("orders", 1)


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("order", [*permutations(range(3))])
def test_of_consumers_of_one_file_one_stores_and_the_others_are_told(
    tmp_path: Path, is_there: bool, order: tuple[int, ...]
) -> None:
    path, link = tmp_path / "offsets", tmp_path / "link"
    link.symlink_to(path)
    if is_there:
        LocalOffsets(str(path)).store({QUEUES[0]: 1})
    consumers = [LocalOffsets(str(one)) for one in (path, link, path)]
    first, *others = order
    for offset in (7, 8):
        consumers[first].store({QUEUES[first]: offset})
        for other in others:
            with pytest.raises(ConflictError, match=f"{path}.*of its own"):
                consumers[other].store({QUEUES[other]: offset})
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [link, path], "nothing is left of a store that failed"
    again = LocalOffsets(str(link))
    assert {again.offsets.get(queue) for queue in QUEUES} == {
        8,
        None,
        1 if is_there and first else None,
    }
    again.store({QUEUES[2]: 9})
    with pytest.raises(ConflictError):
        consumers[first].store({QUEUES[first]: 9})


def test_what_a_crash_left_is_replaced_and_a_store_under_way_is_respected(tmp_path: Path) -> None:
    path, new = tmp_path / "offsets", tmp_path / "offsets.tmp"
    new.write_text("longer than the offsets" * 9)
    offsets = LocalOffsets(str(path))
    offsets.store({QUEUES[0]: 1})
    assert LocalOffsets(str(path)).offsets[QUEUES[0]] == 1
    assert not new.exists()
    with new.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ConflictError, match="another consumer"):
            offsets.store({QUEUES[0]: 2})
    offsets.store({QUEUES[0]: 2})


@pytest.mark.parametrize(
    "lines",
    [
        [{"topic": None, "queue_id": 0, "group": "g", "offset": 1}],
        [{"topic": "t", "queue_id": 1 << 31, "group": "g", "offset": 1}],
        [{"topic": "t", "queue_id": 0, "group": "g", "offset": 1 << 63}],
        {},
        "",
    ],
)
def test_what_holds_no_offsets_is_refused_by_name(tmp_path: Path, lines: object) -> None:
    path = tmp_path / "offsets"
    path.write_text(json.dumps({"offsets": lines}))
    with pytest.raises(InvalidRequestError, match=f"{path} holds no offsets"):
        LocalOffsets(str(path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidRequestError, match="no regular file"):
        LocalOffsets(str(tmp_path / "pipe"))


async def test_a_program_is_told_that_others_have_its_file(tmp_path: Path) -> None:
    path = tmp_path / "offsets"
    more: dict[str, Any] = {"mode": "broadcasting", "commit_interval_ms": 10}
    async with fake_cluster() as cluster, connect(cluster) as client:
        await client.producer().send_batch("orders", [b"1", b"2"], queue_id=0)
        first = client.group_consumer("g", "orders", offsets_path=str(path), **more)
        two = client.group_consumer("h", "orders", offsets_path=str(path), **more)
        async with first:
            await anext(first)
            for _ in range(2):
                with pytest.raises(ConflictError):
                    await two.start()
        async with two:  # Closed, it has left the file to others.
            LocalOffsets(str(path)).store({QUEUES[1]: 3})  # As another process does.
            with pytest.raises(ConflictError):
                [message async for message in two]
            with pytest.raises(ConflictError):
                await two.close()
    assert LocalOffsets(str(path)).offsets[QUEUES[1]] == 3


def test_a_journal_is_of_one_run(tmp_path: Path) -> None:
    journal = SessionJournal(tmp_path, {})
    with pytest.raises(RunUnderWayError):
        SessionJournal(tmp_path, {})
    journal._file.close()
