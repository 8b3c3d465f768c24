"""S13: derived files carry "built up to", are rebuilt when in doubt, never older than the log."""

from pathlib import Path
from random import Random

import pytest

from store.derived.dispatch import Dispatcher
from store.derived.keys.index_files import IndexFiles
from store.derived.queues.consume_queues import ConsumeQueues
from store.errors import DerivedFileError, QueueOrderError, StoreError
from store.files.failpoints import armed, census
from store.files.file_system import FileSystem
from tests.store.derived.test_dispatch import CONFIG, check_all, make, mixed_log
from tests.store.fakes import FIRST_UNIX_MS, Derived, MemoryLog, tree
from tests.store.power_loss import PowerLossFileSystem


def reopen(
    root: Path, log: MemoryLog, position: int, *, is_clean: bool = False
) -> tuple[Derived, bool]:
    """Open as a store does: take the files if they can be, else rebuild; then catch up.

    Returns (the open files, whether they were rebuilt).
    """
    try:
        derived = Derived(root, log, CONFIG, durable_position=position, is_clean=is_clean)
        derived.dispatcher.advance(log.max_position)
    except (DerivedFileError, QueueOrderError):
        fs = FileSystem()
        derived = Derived.__new__(Derived)
        derived.queues = ConsumeQueues(fs, str(root), CONFIG)
        derived.index = IndexFiles(fs, str(root), CONFIG, clock=lambda: FIRST_UNIX_MS)
        derived.dispatcher = Dispatcher(log, derived.queues, derived.index)
        derived.dispatcher.rebuild()
        return derived, True
    return derived, False


def test_a_rebuild_gives_the_same_bytes(tmp_path: Path) -> None:
    log = mixed_log()
    derived = make(tmp_path, log)
    derived.dispatcher.advance(log.max_position)
    before = tree(tmp_path)
    steps: list[tuple[int, int]] = []
    derived.dispatcher.rebuild(lambda built, total: steps.append((built, total)))
    assert tree(tmp_path) == before
    assert steps[-1] == (log.max_position, log.max_position)
    check_all(derived, log)


def test_a_rebuild_reaches_at_least_what_was_built(tmp_path: Path) -> None:
    """Or the checkpoint would promise more than there is."""
    log = mixed_log()
    derived = make(tmp_path, log)
    middle, late = log.records[20][0], log.records[40][0]
    derived.dispatcher.advance(middle)
    assert derived.dispatcher.rebuild(hi_position=late) == late
    assert derived.dispatcher.rebuild(hi_position=middle) == late
    assert derived.dispatcher.rebuild() == log.max_position
    assert len(derived.queues.dirty) == 0, "all of it is durable"


def test_derived_files_are_never_older_than_the_log(tmp_path: Path) -> None:
    log = mixed_log()
    derived = make(tmp_path, log)
    derived.dispatcher.advance(log.max_position)
    log.min_position = log.records[30][0]
    derived.dispatcher.rebuild()
    for queue in derived.queues:
        assert queue.unit(queue.min_offset)[0] >= log.min_position
        assert queue.max_offset == log.next_offsets[queue.topic, queue.queue_id]
    assert derived.index.files[0].begin_position >= log.min_position


@pytest.mark.parametrize("number", range(0, 60, 7))
@pytest.mark.parametrize("is_clean", [True, False])
def test_files_are_taken_up_to_the_durable_position(
    tmp_path: Path, number: int, is_clean: bool
) -> None:
    log = mixed_log()
    make(tmp_path, log).dispatcher.advance(log.max_position)
    before = tree(tmp_path)
    position = log.records[number][0]
    derived, rebuilt = reopen(tmp_path, log, position, is_clean=is_clean)
    assert not rebuilt
    check_all(derived, log)
    assert {k for k in tree(tmp_path) if "consume" in k} == {k for k in before if "consume" in k}


# Each derived file in turn is lost, cut, emptied, or has a byte changed.
@pytest.mark.parametrize("damage", ["missing", "short", "empty", "byte"])
def test_damage_is_repaired(tmp_path: Path, damage: str) -> None:
    """A lost end of a queue shows with its next record, everything else when the files are opened.

    What RocketMQ's format cannot show: an index file that is lost, or changed at its right size,
    and a first queue file that is lost, which looks expired; what is left of the queue is right.
    """
    log = mixed_log()
    make(tmp_path / "whole", log).dispatcher.advance(log.max_position)
    whole = tree(tmp_path / "whole")
    queue_keys = sorted(log.next_offsets)
    end = log.max_position
    for topic, queue_id in queue_keys:
        log.add(topic, queue_id)
    rebuilt_names = []
    for number, name in enumerate(whole):
        root = tmp_path / str(number)
        for other, data in whole.items():
            (root / other).parent.mkdir(parents=True, exist_ok=True)
            (root / other).write_bytes(data)
        data = whole[name]
        at = 20 * (len(data.rstrip(b"\0")) // 20 // 2)  # The position of a unit.
        changed = {
            "short": data[:-7],
            "empty": b"",
            "byte": data[:at] + bytes([data[at] ^ 0x80]) + data[at + 1 :],
        }
        if damage == "missing":
            (root / name).unlink()
        else:
            (root / name).write_bytes(changed[damage])
        derived, rebuilt = reopen(root, log, end, is_clean=True)
        rebuilt_names += [name] * rebuilt
        is_index = name.startswith("index")
        if damage == "missing" and name.endswith("/" + "0" * 20) and not rebuilt:
            parts = name.split("/")
            queue = derived.queues.get(parts[1].encode(), int(parts[2]))
            assert queue is not None
            assert queue.min_offset == CONFIG.consume_queue_units_per_file
            assert queue.max_offset == log.next_offsets[queue.topic, queue.queue_id]
        else:
            check_all(derived, log, with_keys=not is_index or damage in ("short", "empty"))
    expected = [n for n in whole if n.startswith("consumequeue") or damage in ("short", "empty")]
    if damage == "missing":
        expected = [n for n in expected if not n.endswith("/" + "0" * 20)]
    assert set(rebuilt_names) >= set(expected)


def test_an_interrupted_rebuild_starts_again(tmp_path: Path) -> None:
    log = mixed_log(30)
    derived = make(tmp_path / "census", log)
    derived.dispatcher.advance(log.max_position)
    with census() as counts:
        derived.dispatcher.rebuild()
    expected = tree(tmp_path / "census")
    del counts["sum_files.write"]  # Checksums that cannot be written stop nobody.
    points = [(name, nth) for name, count in counts.items() for nth in {1, count // 2 + 1, count}]
    for number, (name, nth) in enumerate(points):
        root = tmp_path / str(number)
        derived = make(root, log)
        derived.dispatcher.advance(log.max_position)
        with armed(f"{name}=EIO@{nth}"), pytest.raises((StoreError, OSError)):
            derived.dispatcher.rebuild()
        derived.close()
        again, _ = reopen(root, log, log.max_position, is_clean=True)
        check_all(again, log)
        if number % 3 == 0:
            again.dispatcher.rebuild()
            assert tree(root) == expected


@pytest.mark.parametrize("seed", range(40))
def test_a_power_loss_at_any_time_loses_no_unit(tmp_path: Path, seed: int) -> None:
    """The files hold any mixture of old and new pages; only what `sync_derived` said is relied on.

    The log keeps all of its records, so in the end everything must be found again.
    """
    random = Random(seed)
    log, fs, root = MemoryLog(), PowerLossFileSystem(), tmp_path / "now"
    root.mkdir()
    queues = ConsumeQueues(fs, str(root), CONFIG, open_files_max=random.choice([1, 3, 512]))
    index = IndexFiles(fs, str(root), CONFIG, clock=lambda: FIRST_UNIX_MS)
    dispatcher = Dispatcher(log, queues, index)
    durable = 0
    for step in range(random.randint(1, 30)):
        for n in range(random.randint(1, 12)):
            properties = {"TAGS": "t"} | (
                {"KEYS": f"k{n} s{step}"} if random.random() < 0.5 else {}
            )
            log.add("orders", random.randrange(3), properties=properties)
        dispatcher.advance(log.max_position)
        if random.random() < 0.3:
            durable = dispatcher.sync_derived().position
    image = tmp_path / "image"
    fs.build_image(str(root), str(image), random)
    derived, _ = reopen(image, log, durable)
    check_all(derived, log)
    derived.close()
    again, rebuilt = reopen(image, log, log.max_position)
    assert not rebuilt
    check_all(again, log)
