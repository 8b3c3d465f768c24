"""Dispatch: what is built from which record, in which order, once, and never past a bad record; and
derived files that are built again (S13)."""

from pathlib import Path
from random import Random

import pytest

from store import format as fmt
from store.derived import dispatch
from store.derived.dispatch import Dispatcher
from store.derived.keys.index_files import IndexFiles
from store.derived.queues.consume_queues import ConsumeQueues
from store.errors import (
    CorruptionError,
    DerivedFileError,
    PositionRangeError,
    QueueOrderError,
    StoreError,
)
from store.files.failpoints import armed, census
from store.files.file_system import FileSystem
from store.record.message import decode_message
from tests.store.fakes import FIRST_UNIX_MS, Derived, MemoryLog, tree
from tests.store.power_loss import PowerLossFileSystem
from tests.store.records import small_config

CONFIG = small_config(consume_queue_units_per_file=7, index_slot_count=16, index_entry_count=12)


def candidates(index: IndexFiles, topic: str, key: str) -> list[int]:
    steps = index.lookup(topic, key, begin_unix_ms=0, end_unix_ms=1 << 62)
    return [step.position for step in steps if step.is_candidate][::-1]


def make(tmp_path: Path, log: MemoryLog, *, position: int = 0) -> Derived:
    return Derived(tmp_path, log, CONFIG, durable_position=position)


def built(derived: Derived, topic: str = "orders", queue_id: int = 0) -> list[tuple[int, int, int]]:
    queue = derived.queues.get(topic.encode(), queue_id)
    if queue is None:
        return []
    return list(
        fmt.CONSUME_QUEUE_UNIT.iter_unpack(queue.read_units(queue.min_offset, queue.max_offset))
    )


def check_all(derived: Derived, log: MemoryLog, *, with_keys: bool = True) -> None:
    """Compare with a plain decoding of every record: nothing missing, nothing else there."""
    units: dict[tuple[bytes, int], list[tuple[int, int, int]]] = {}
    keys: dict[tuple[str, str], list[int]] = {}
    for position, size_bytes in log.records:
        message = decode_message(log.read(position, size_bytes))
        transaction = message.sys_flag & 0xC
        if transaction in (0, 0x8):
            queue = units.setdefault((message.topic.encode(), message.queue_id), [])
            assert message.queue_offset == len(queue)
            queue.append((position, size_bytes, message.tags_code))
        if transaction != 0xC:
            for key in message.keys:
                keys.setdefault((message.topic, key), []).append(position)
    assert derived.queues.next_offsets() == {key: len(found) for key, found in units.items()}
    for (topic, queue_id), expected in units.items():
        found_units = built(derived, topic.decode(), queue_id)
        assert found_units == expected
    for (topic_name, key), positions in keys.items() if with_keys else ():
        positions_of_key = candidates(derived.index, topic_name, key)
        assert positions_of_key == sorted(set(positions))
    assert derived.dispatcher.dispatched_position == log.max_position


def mixed_log(count: int = 60, **how: int) -> MemoryLog:
    """Records of all kinds: transactions, IPv6, V2, several topics, queues, tags and keys."""
    log = MemoryLog(**how)
    for n in range(count):
        log.unix_ms += 150
        kind = n % 10
        if kind == 3:
            log.add("half", 0, properties={"UNIQ_KEY": f"u{n}"}, sys_flag=0x4)
        elif kind == 4:
            log.add("half", 0, properties={"KEYS": f"k{n}"}, sys_flag=0xC)
        elif kind == 5:
            log.add("half", 0, properties={"KEYS": f"a{n} b{n}", "TAGS": "\u4e2d"}, sys_flag=0x8)
        elif kind == 6:
            log.add("orders", 1, properties={"KEYS": f"k{n}"}, born_host=("2001:db8::1", 9))
        elif kind == 7:
            log.add("%RETRY%" + "g" * 130, 0, properties={"TAGS": "retry", "KEYS": f"k{n}"})
        elif kind == 8:
            log.add("orders", 2, b"x" * (n * 37 % 900))
        else:
            log.add("orders", n % 3, b"x" * n, {"TAGS": f"tag{n % 2}", "KEYS": f"k{n}"})
    return log


@pytest.mark.parametrize("gap", [0, 48])
@pytest.mark.parametrize("run", [1, 300, 1 << 16])
def test_every_record_is_built_as_its_kind_demands(tmp_path: Path, gap: int, run: int) -> None:
    log = mixed_log(gap_size_bytes=gap, run_size_bytes=run, file_size_bytes=4096)
    derived = make(tmp_path, log)
    assert derived.dispatcher.advance(log.max_position) == log.max_position
    check_all(derived, log)


@pytest.mark.parametrize("round_size", [1, 500, 1 << 23])
@pytest.mark.parametrize("max_bytes", [1, 700, 1 << 30])
def test_steps_of_any_size_build_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, round_size: int, max_bytes: int
) -> None:
    monkeypatch.setattr(dispatch, "ROUND_SIZE_BYTES", round_size)
    log = mixed_log(run_size_bytes=200)
    derived = make(tmp_path, log)
    positions = [0]
    while positions[-1] < log.max_position:
        positions.append(derived.dispatcher.advance(log.max_position, max_bytes=max_bytes))
        assert positions[-1] > positions[-2]
    check_all(derived, log)
    assert len(positions) > 20 if max_bytes == 1 else len(positions) >= 2


def test_only_records_before_the_bound_are_built(tmp_path: Path) -> None:
    log = mixed_log()
    derived = make(tmp_path, log)
    for position, size_bytes in log.records:
        assert derived.dispatcher.advance(position + size_bytes) == position + size_bytes
        assert max((q.built_position for q in derived.queues), default=0) <= position + size_bytes
    check_all(derived, log)


def test_a_repetition_changes_no_byte(tmp_path: Path) -> None:
    log = mixed_log()
    make(tmp_path, log).dispatcher.advance(log.max_position)
    before = tree(tmp_path)
    derived = make(tmp_path, log, position=log.max_position)
    for position in (0, log.records[13][0], log.records[40][0]):
        again = Dispatcher(log, derived.queues, derived.index, dispatched_position=position)
        assert again.advance(log.max_position) == log.max_position
    assert tree(tmp_path) == before


def test_the_end_of_a_file_counts_as_built(tmp_path: Path) -> None:
    """Or a caller that waits for the end of the log would wait for ever."""
    log = MemoryLog(file_size_bytes=4096)
    log.add(body=b"x" * 3900)
    end = log.max_position
    log._make_room(4000)  # The blank is there, the next record is not.
    assert log.max_position > end
    derived = make(tmp_path, log)
    assert derived.dispatcher.advance(1 << 40) == log.max_position
    log.add()
    derived.dispatcher.advance(log.max_position)
    check_all(derived, log)


def test_a_gap_in_a_queue_is_refused(tmp_path: Path) -> None:
    for broken in (3, 5):  # Within a round, and at its start.
        log = MemoryLog()
        for n in range(5):
            log.add(queue_offset=n if n < broken else n + 1)
        derived = make(tmp_path / str(broken), log)
        if broken == 5:
            derived.dispatcher.advance(log.max_position)
            log.add(queue_offset=7)
        with pytest.raises(QueueOrderError) as caught:
            derived.dispatcher.advance(log.max_position)
        expected = (3, 4) if broken == 3 else (5, 7)
        assert (caught.value.expected_offset, caught.value.found_offset) == expected
        assert len(built(derived)) == (0 if broken == 3 else 5)


def test_a_new_queue_begins_late_only_if_the_log_lost_its_beginning(tmp_path: Path) -> None:
    log = MemoryLog(first_position=1 << 40)
    log.add(queue_offset=1 << 40, queue_id=(1 << 31) - 1)
    derived = make(tmp_path, log, position=1 << 40)
    derived.dispatcher.advance(log.max_position)
    queue = derived.queues.get(b"orders", (1 << 31) - 1)
    assert queue is not None
    assert (queue.min_offset, queue.max_offset) == (1 << 40, (1 << 40) + 1)
    log = MemoryLog()
    log.add(queue_offset=3)
    with pytest.raises(QueueOrderError):
        make(tmp_path / "whole", log).dispatcher.advance(log.max_position)


def test_records_that_were_deleted_unbuilt_are_not_passed_over(tmp_path: Path) -> None:
    log = mixed_log()
    derived = make(tmp_path, log)
    log.min_position = log.records[5][0]
    with pytest.raises(PositionRangeError):
        derived.dispatcher.advance(log.max_position)


# Bytes of a record with a 4 byte body: size, magic, queue id, own position, flags, body length,
# topic length, topic, properties length.
@pytest.mark.parametrize("at", [0, 3, 4, 7, 12, 28, 35, 39, 84, 87, 92, 93, 99, 100])
@pytest.mark.parametrize("number", [0, 7, 19])
def test_a_corrupt_record_stops_the_dispatch(tmp_path: Path, at: int, number: int) -> None:
    log = MemoryLog()
    for n in range(20):
        log.add(properties={"TAGS": "t"} | ({"KEYS": f"k{n}"} if n % 2 else {}))
    position = log.records[number][0]
    good = log.data[position + at]
    log.data[position + at] ^= 0x80 if at != 39 else 0x10
    derived = make(tmp_path, log)
    for _ in range(2):
        with pytest.raises(CorruptionError) as caught:
            derived.dispatcher.advance(log.max_position)
        assert position <= caught.value.at < position + 120
        assert derived.dispatcher.dispatched_position == position
        assert len(built(derived)) == number, "what is before it is served"
    log.data[position + at] = good
    derived.dispatcher.advance(log.max_position)
    check_all(derived, log)


def test_every_file_system_call_that_fails_once_is_made_good(tmp_path: Path) -> None:
    log = mixed_log(30)
    counted = make(tmp_path / "census", log)
    with census() as counts:
        counted.dispatcher.advance(log.max_position)
    expected = tree(tmp_path / "census")
    points = [(name, nth) for name, count in counts.items() for nth in range(1, count + 1)]
    assert {name for name, _ in points} >= {
        "fs.write",
        "fs.open",
        "fs.set_size",
        "fs.rename",
        "fs.make_directory",
        "fs.sync_directory",
        "fs.allocate",
        "fs.map",
        "dispatch.before_index",
        "dispatch.before_mark",
    }
    for number, (name, nth) in enumerate(points[::3] + [(n, counts[n]) for n in counts]):
        root = tmp_path / str(number)
        derived = make(root, log)
        with armed(f"{name}=ENOSPC@{nth}"), pytest.raises((StoreError, OSError)):
            derived.dispatcher.advance(log.max_position)
        assert derived.dispatcher.dispatched_position < log.max_position
        derived.dispatcher.advance(log.max_position)
        check_all(derived, log)
        # The names of index files differ: a failed one may have used up its name.
        queues = {k: v for k, v in tree(root).items() if k.startswith("consumequeue")}
        assert queues == {k: v for k, v in expected.items() if k.startswith("consumequeue")}


def test_sync_derived_says_what_was_built_before_it_began(tmp_path: Path) -> None:
    log = mixed_log(20)
    derived = make(tmp_path, log)
    middle = log.records[10][0]
    derived.dispatcher.advance(middle)

    class Interleaved(FileSystem):
        def sync(self, fd: int, path: str) -> None:
            super().sync(fd, path)
            derived.dispatcher.advance(log.max_position)

    derived.queues._environment.fs = Interleaved()
    assert derived.dispatcher.sync_derived().position == middle
    assert derived.dispatcher.sync_derived().position == log.max_position


def test_truncate_forgets_and_builds_anew(tmp_path: Path) -> None:
    log = mixed_log()
    derived = make(tmp_path, log)
    derived.dispatcher.advance(log.max_position)
    for number in (45, 31, 30, 2):
        position = log.records[number][0]
        derived.dispatcher.truncate(position)
        assert derived.dispatcher.dispatched_position == position
        assert max((q.built_position for q in derived.queues), default=0) <= position
        assert derived.index.end_position < position
        derived.dispatcher.advance(log.max_position)
        check_all(derived, log)


@pytest.mark.parametrize("is_checked", [True, False])
def test_watched_records_come_with_their_bytes_where_those_were_checked(
    tmp_path: Path, is_checked: bool
) -> None:
    """Without them the reader reads, and compares with checksums, by itself."""
    log = mixed_log()
    log.are_runs_checked = is_checked
    derived = make(tmp_path, log)
    derived.dispatcher.watch(b"orders")
    derived.dispatcher.advance(log.max_position)
    watched = derived.dispatcher.take_watched()
    assert len(watched) == sum(len(built(derived, "orders", queue)) for queue in range(4))
    plain = 0
    for unit in watched:
        record = log.read(unit.position, unit.size_bytes)
        assert decode_message(record).queue_offset == unit.offset
        assert unit.data in (record, b"")
        plain += unit.data == record
    assert (plain > 0) == is_checked
    derived.close()


# --- S13: they carry "built up to", are rebuilt when in doubt, never older than the log ---


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
