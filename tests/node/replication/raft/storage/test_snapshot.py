"""What a snapshot says, its bytes, and the life of one between two nodes and in one of them."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from node.replication.raft.storage.log import LedgerLog
from node.replication.raft.storage.received_snapshot import ReceivedSnapshot
from node.replication.raft.storage.snapshot import (
    Snapshot,
    SnapshotFormatError,
    build_snapshot,
    decode_snapshot,
    encode_snapshot,
)
from raft.messages import Configuration, ConfigurationAt, SnapshotMeta
from raft.ready import EntryKind, HardState
from store.errors import FileSystemError, PositionRangeError
from store.files import failpoints
from store.files.checksum import crc32c
from store.files.file_system import FileSystem
from store.ledger.start import LogStart
from store.maintenance.retention import DELETE_COUNT_MAX
from store.record.stamp import QueueKey
from tests.node.ledger_cluster import CONFIG, crash, open_log, sync
from tests.node.ledger_logs import data_image, delete_to, new_log, put, queue_numbers, reopen, ship
from tests.store.records import batch, numbers

MEMBERS = ConfigurationAt(2, Configuration((1, 2, 3), (4,)))
STATE = b"the state of the machine" * 100


def snapshot_of(**changes: object) -> Snapshot:
    meta = SnapshotMeta(41, 7, MEMBERS)
    offsets = {(b"orders", 0): 12, (b"%RETRY%g", 3): 1 << 40}
    snapshot = Snapshot(meta, 5000, 0xDEADBEEF, offsets, 45, STATE)
    return snapshot._replace(**changes)  # type: ignore[arg-type]


def leader_log(root: Path) -> LedgerLog:
    """A log of many files; queue 7 has records in the first file only."""
    log = new_log(root)
    log.save_hard_state(HardState(3, 1))
    log.append(0, 1, EntryKind.NO_OP, None)
    put(log, 0, 5, queue_id=7)
    log.append(2, 1, EntryKind.CONFIGURATION, MEMBERS.configuration)
    for number, lo in enumerate(range(10, 100, 3)):
        put(log, lo, lo + 3, term=1 + number // 10, size_bytes=3000)
    log.dispatch(log.last_index - 2)
    sync(log)
    log.store.maintain()
    return log


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[LedgerLog]:
    log = leader_log(tmp_path / "leader")
    yield log
    log.close()


def delete_files(log: LedgerLog, count: int) -> None:
    log.store.expired_position = log.store.ledger.files.files[count].position
    index = log.store.deletable_index(log.store.dispatched_index)
    assert delete_to(log, index).start.link.entry_index == index
    log.store.delete_expired_derived()


# --- The bytes ---


def test_a_snapshot_survives_its_bytes() -> None:
    for snapshot in (
        snapshot_of(),
        snapshot_of(next_offsets={}, state=b""),
        snapshot_of(meta=SnapshotMeta(0, 1, ConfigurationAt(-1, Configuration((5,))))),
    ):
        assert decode_snapshot(encode_snapshot(snapshot)) == snapshot


def test_bytes_that_are_no_snapshot_are_refused() -> None:
    data = encode_snapshot(snapshot_of(state=b"state"))
    wrong = [data[:size_bytes] for size_bytes in range(len(data))]
    wrong += [data + b"\0", b"X" + data[1:]]
    wrong += [data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :] for at in range(len(data))]
    wrong.append(encode_snapshot(snapshot_of(state_index=40)))
    late = ConfigurationAt(42, MEMBERS.configuration)
    wrong.append(encode_snapshot(snapshot_of(meta=SnapshotMeta(41, 7, late))))
    for bad in wrong:
        with pytest.raises(SnapshotFormatError, match="fetch it again"):
            decode_snapshot(bad)


@pytest.mark.parametrize("name", ["index", "term", "end_position", "chain_crc", "state_index"])
def test_a_number_of_a_header_that_is_none_is_refused(name: str) -> None:
    """Also one that JSON reads as infinite."""
    data = encode_snapshot(snapshot_of())
    hi = 12 + int.from_bytes(data[8:12], "big")
    for number in (b"1e999", b"NaN", b'"x"', b"null", b"[]"):
        header = re.sub(rb'("%b": )-?\d+' % name.encode(), rb"\g<1>" + number, data[12:hi])
        assert header != data[12:hi]
        content = data[:8] + len(header).to_bytes(4, "big") + header + data[hi:-4]
        with pytest.raises(SnapshotFormatError, match="its header"):
            decode_snapshot(content + crc32c(content).to_bytes(4, "big"))


def test_half_a_received_snapshot_is_removed_and_never_staged(tmp_path: Path) -> None:
    received = ReceivedSnapshot(FileSystem(), str(tmp_path))
    snapshot = snapshot_of()
    data = encode_snapshot(snapshot)
    received.write(data)
    [half] = tmp_path.iterdir()
    with failpoints.armed("fs.write=EIO"), pytest.raises(FileSystemError):
        received.write(encode_snapshot(snapshot_of(state=b"other")))
    received.stage(data, snapshot)
    assert ReceivedSnapshot(FileSystem(), str(tmp_path)).load() == snapshot
    half.write_bytes(data[:9])
    assert ReceivedSnapshot(FileSystem(), str(tmp_path)).load() == snapshot
    assert not half.exists()


# --- Building and installing ---


def install(leader: LedgerLog, follower: LedgerLog, index: int) -> Snapshot:
    meta = SnapshotMeta(index, leader.store.ledger.term_at(index), MEMBERS)
    snapshot = build_snapshot(leader.store, meta, STATE, index + 2)
    follower.install_snapshot(meta, encode_snapshot(snapshot))
    return snapshot


def test_a_follower_begins_where_its_leader_does(leader: LedgerLog, tmp_path: Path) -> None:
    delete_files(leader, 2)
    base = leader.base_index
    assert base > 5
    expected = SnapshotMeta(base, leader.store.ledger.term_at(base), MEMBERS)
    assert leader.load().snapshot == expected
    assert leader.load().configurations == (MEMBERS,)
    follower = new_log(tmp_path / "follower", 2)
    put(follower, 500, 505, queue_id=9)
    put(follower, 505, 510, queue_id=0)  # An own tail that was never committed.
    follower.save_hard_state(HardState(9, 1))
    install(leader, follower, base)
    assert follower.installed_state() == STATE
    loaded = follower.load()
    assert (loaded.base_index, loaded.last_index, loaded.commit, loaded.applied) == (base,) * 4
    assert loaded.snapshot == expected
    assert loaded.configurations == (MEMBERS,)
    assert loaded.hard_state == HardState(9, 1)
    lo, hi = base + 1, leader.last_index + 1
    ship(leader, follower, lo, lo + 3)
    ship(leader, follower, lo + 3, hi)
    follower.dispatch(leader.store.dispatched_index + 1)
    assert follower.store.reads.queues() == leader.store.reads.queues()
    assert [q[:] for q in follower.store.reads.queues() if q[1] == 7] == [("orders", 7, 5, 5)]
    mine, theirs = data_image(follower), data_image(leader)
    assert {name: mine[name] for name in theirs} == theirs
    follower.store.find_offsets()
    assert follower.prepare(batch(900, 902, queue_id=7)).queues == {(b"orders", 7): (5, 2)}
    follower.received.forget()
    follower.close()
    with reopen(tmp_path / "follower", node_id=2) as follower:
        assert follower.received.installed is None
        assert follower.store.reads.queues() == leader.store.reads.queues()
        assert follower.load()._replace(commit=0, applied=0) == loaded._replace(
            commit=0, applied=0, last_index=hi - 1, runs=tuple(leader.load().runs)
        )
    for path in (tmp_path / "follower" / "consumequeue" / "orders" / "0").iterdir():
        path.write_bytes(path.read_bytes() + b"\0")  # Damaged: all queues are built again.
    with reopen(tmp_path / "follower", node_id=2) as follower:
        assert follower.store.recovery.derived_rebuilt
        assert follower.prepare(batch(900, 902, queue_id=7)).queues == {(b"orders", 7): (5, 2)}
        assert follower.store.reads.queues() == leader.store.reads.queues()


def test_no_snapshot_of_deleted_or_uncommitted_entries_is_built(leader: LedgerLog) -> None:
    delete_files(leader, 2)
    for index in (leader.base_index - 1, leader.store.dispatched_index + 1):
        with pytest.raises(PositionRangeError):
            build_snapshot(leader.store, SnapshotMeta(index, 1, MEMBERS), b"", 10**6)


def test_no_snapshot_is_built_of_entries_deleted_meanwhile(
    leader: LedgerLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offsets would be those of another place."""
    store, count = leader.store, leader.store.next_offsets_at

    def count_beside_a_deletion(position: int) -> dict[QueueKey, int]:
        number = count(position)
        delete_files(leader, 2)
        return number

    monkeypatch.setattr(store, "next_offsets_at", count_beside_a_deletion)
    with pytest.raises(PositionRangeError, match="snapshot index"):
        build_snapshot(store, SnapshotMeta(3, 1, MEMBERS), STATE, 3)


def test_a_state_is_offered_until_it_was_restored(leader: LedgerLog, tmp_path: Path) -> None:
    follower = new_log(tmp_path / "follower", 2)
    install(leader, follower, 9)
    crash(follower)
    for _ in range(2):
        follower = open_log(tmp_path / "follower", 2)
        assert follower.received.installed is not None
        assert follower.received.installed.state_index == 11
        assert follower.installed_state() == STATE
        follower.start_at(11)  # The log does not reach that far yet.
        assert follower.load().applied == 9
        crash(follower)
    with open_log(tmp_path / "follower", 2) as follower:
        follower.received.forget()
        follower.received.forget()
        install(leader, follower, 12)
        follower.received.forget()
    with open_log(tmp_path / "follower", 2) as follower:
        assert follower.received.installed is None
        assert follower.base_index == 12


# --- Retention ---


@pytest.mark.parametrize("done", ["planned", "written", "forgotten"])
def test_a_crash_within_a_deletion_leaves_it_done_or_not(tmp_path: Path, done: str) -> None:
    leader = leader_log(tmp_path / "leader")
    numbers = queue_numbers(leader)
    leader.store.expired_position = leader.store.ledger.files.files[2].position
    deletion = leader.plan_deletion(leader.store.deletable_index(leader.store.dispatched_index))
    assert deletion is not None
    if done != "planned":
        assert deletion.write_start()
    if done == "forgotten":
        assert deletion.forget()
    last = leader.last_index
    crash(leader)
    with reopen(tmp_path / "leader") as again:
        base = deletion.start.link.entry_index
        assert again.base_index == (-1 if done == "planned" else base)
        assert again.last_index == last
        lo = {q.queue_id: q.min_offset for q in again.store.reads.queues()}[0]
        assert numbers[lo:] == queue_numbers_from(again, lo)
        names = sorted(data_image(again))
        assert len(names) == len(again.store.ledger.files.files)


@pytest.mark.parametrize("is_written", [False, True])
def test_the_beginning_is_known_wherever_a_crash_stops_a_deletion(
    tmp_path: Path, is_written: bool
) -> None:
    """The members changed between the beginning of before and the new one. A leader must be able to
    say, at once, what stands for the log before its beginning."""
    log = leader_log(tmp_path)
    delete_files(log, 1)
    changed = ConfigurationAt(log.last_index + 1, Configuration((1, 2, 3), (4, 5)))
    log.append(changed.index, 4, EntryKind.CONFIGURATION, changed.configuration)
    for lo in range(100, 160, 3):
        put(log, lo, lo + 3, term=4, size_bytes=3000)
    log.dispatch(log.last_index)
    sync(log)
    log.store.maintain()
    before = log.load()
    assert before.configurations == (MEMBERS, changed)
    at = log.position_of(changed.index)
    log.store.expired_position = next(
        file.position for file in log.store.ledger.files.files if file.position > at
    )
    deletion = log.plan_deletion(log.store.deletable_index(log.store.dispatched_index))
    assert deletion is not None
    link = deletion.start.link
    assert link.entry_index >= changed.index
    assert log.load() == before, "nothing is deleted yet"
    if is_written:
        assert deletion.write_start()
    crash(log)

    log = reopen(tmp_path, applied_index=before.commit)
    loaded = log.load()
    if is_written:
        assert loaded.snapshot == SnapshotMeta(link.entry_index, link.term, changed)
        assert loaded.configurations == (changed,)
    else:
        assert loaded.snapshot == before.snapshot
        assert loaded.configurations == (MEMBERS, changed)
        sync(log)
        log.store.maintain()
        delete_files(log, 1)
        assert log.load().configurations == (MEMBERS, changed)
    log.close()


def queue_numbers_from(log: LedgerLog, offset: int) -> list[int]:
    result = log.store.reads.pull("orders", 0, offset, max_count=1000, max_size_bytes=1 << 24)
    return numbers(result.data)


def test_unapplied_or_unsynced_entries_are_not_deleted(leader: LedgerLog) -> None:
    store = leader.store
    store.expired_position = store.ledger.max_position
    assert leader.store.deletable_index(3) == -1, "the first file has newer entries"
    assert leader.plan_deletion(3) is None
    index = leader.store.deletable_index(leader.last_index)
    assert -1 < index < store.dispatched_index
    deletion = leader.plan_deletion(index)
    assert deletion is not None
    assert deletion.start.link.entry_index == index


def test_a_log_that_was_replaced_is_not_deleted_from(leader: LedgerLog, tmp_path: Path) -> None:
    other = leader_log(tmp_path / "other")
    for step in range(3):
        store = other.store
        store.expired_position = store.ledger.files.files[1].position
        deletion = other.plan_deletion(store.dispatched_index)
        assert deletion is not None
        if step:
            assert deletion.write_start()
        install(leader, other, leader.store.dispatched_index - 2 + step)
        assert not deletion.write_start()
        assert not deletion.forget()
        deletion.remove()
        ship(leader, other, other.base_index + 1, leader.last_index + 1)
        if step < 2:
            other.close()
            other = leader_log(tmp_path / f"other{step}")
    other.close()


def test_files_that_come_fast_are_not_left_to_the_next_interval(tmp_path: Path) -> None:
    """Ten go in a round. While that is not enough, the next maintenance looks again."""
    config = replace(CONFIG, retention_interval_ms=3_600_000, retention_size_bytes=3 * 16 * 4096)
    with new_log(tmp_path, config=config) as log:
        store = log.store
        for lo in range(0, 600, 15):
            put(log, lo, lo + 15, size_bytes=3000)
        log.dispatch(log.last_index)
        sync(log)
        store._retention_ran_ms = -config.retention_interval_ms  # Long ago, whenever booted.
        rounds = 0
        while len(store.ledger.files.files) > 3:
            store.maintain()
            deletion = delete_to(log, log.store.deletable_index(log.last_index))
            assert deletion.file_count <= DELETE_COUNT_MAX
            rounds += 1
        assert rounds > 2


def test_a_round_that_begins_while_the_log_is_being_replaced_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start of the new log is saved, which takes a sync, and the old log is still there; it
    goes when the round has read a record and not yet checked it."""
    log = leader_log(tmp_path)
    store, ledger = log.store, log.store.ledger
    begin, check = ledger._begin, ledger.check
    checked: list[int] = []

    def begin_beside_a_round(start: LogStart) -> None:
        def replaced(position: int, data: bytes) -> None:
            if not checked:
                begin(start)
            checked.append(position)
            check(position, data)

        monkeypatch.setattr(ledger, "check", replaced)
        store.engine.retention.forget_times()
        ledger.checked.distrust(0, ledger.max_position)  # As after a restart.
        store.find_expired()
        monkeypatch.undo()
        begin(start)

    monkeypatch.setattr(ledger, "_begin", begin_beside_a_round)
    snapshot = snapshot_of(end_position=1 << 20)
    log.install_snapshot(snapshot.meta, encode_snapshot(snapshot))
    assert checked
    assert store.deletable_index(10_000) == log.base_index == snapshot.meta.index
    for _ in range(2):
        assert log.plan_deletion(10_000) is None
        store.find_expired()  # A round of the new log.
    crash(log)
