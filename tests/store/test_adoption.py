"""A directory that RocketMQ wrote: a store opens it, builds what is ours, and loses nothing.

RocketMQ's directories are made here by taking away what only our stores write; the real ones are in
tests/compat.
"""

import shutil
from pathlib import Path

import pytest

from store.errors import StoreError, TailNotCutError
from store.files import failpoints
from store.store import Store
from tests.store.records import batch, numbers, small_config

CONFIG = small_config()
OURS = ("marks", "boot_id")


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A directory with two queues and several files of a log, as RocketMQ leaves it."""
    root = tmp_path / "store"
    with Store.open(str(root), CONFIG) as store:
        for number in range(0, 200, 5):
            store.put(batch(number, number + 5, queue_id=number % 2))
    for name in OURS:
        (root / name).unlink()
    shutil.rmtree(root / "allocating")
    return root


def queues(store: Store) -> dict[tuple[str, int], tuple[int, int]]:
    return {(q.topic, q.queue_id): (q.min_offset, q.max_offset) for q in store.queues()}


def read_all(store: Store) -> list[int]:
    return sorted(
        number
        for topic, queue_id in queues(store)
        for number in numbers(store.pull(topic, queue_id, 0, max_count=1000).data)
    )


def test_a_directory_of_rocketmq_is_adopted_and_keeps_everything(foreign: Path) -> None:
    with Store.open(str(foreign), CONFIG) as store:
        assert store.recovery.was_adopted
        assert store.recovery.cut_size_bytes == 0
        assert read_all(store) == list(range(200))
        assert store.put(batch(200, 201, queue_id=0)).queue_offsets == [100]
    with Store.open(str(foreign), CONFIG) as store:
        assert not store.recovery.was_adopted, "it is ours now"
        assert read_all(store) == list(range(201))


def test_a_torn_tail_of_another_program_is_not_cut_unasked(foreign: Path) -> None:
    with Store.open(str(foreign), CONFIG) as store:
        end = store.recovery.end_position
    for name in OURS:
        (foreign / name).unlink()
    last = sorted((foreign / "commitlog").iterdir())[-1]
    data = bytearray(last.read_bytes())
    at = end - int(last.name)
    data[at : at + 7] = b"no more"
    last.write_bytes(data)
    before = {path: path.read_bytes() for path in (foreign / "commitlog").iterdir()}
    with pytest.raises(TailNotCutError) as caught:
        Store.open(str(foreign), CONFIG)
    assert (caught.value.position, caught.value.size_bytes) == (end, 7)
    assert {path: path.read_bytes() for path in (foreign / "commitlog").iterdir()} == before


def test_offsets_of_queues_whose_records_are_gone_go_on(foreign: Path) -> None:
    """A queue that got nothing for longer than the log is kept: only its files know the offset."""
    first = sorted((foreign / "commitlog").iterdir())[0]
    silent = foreign / "consumequeue" / "orders" / "7"
    shutil.copytree(foreign / "consumequeue" / "orders" / "0", silent)
    first.unlink()
    with Store.open(str(foreign), CONFIG) as store:
        assert queues(store)["orders", 7][1] == 100


@pytest.mark.parametrize("failpoint", ["dispatch.before_index", "dispatch.before_mark"])
def test_an_adoption_that_was_interrupted_goes_on(foreign: Path, failpoint: str) -> None:
    with failpoints.armed(f"{failpoint}=EIO"), pytest.raises((StoreError, OSError)):
        Store.open(str(foreign), CONFIG)
    with Store.open(str(foreign), CONFIG) as store:
        assert store.recovery.was_adopted
        assert read_all(store) == list(range(200))
