"""The simulated disk: what a crash may leave, and what recovery makes of it."""

from __future__ import annotations

from random import Random

import pytest

from raft.errors import HardStateNotSavedError
from raft.messages import NO_INDEX, Configuration, ConfigurationAt, SnapshotMeta
from raft.ready import EntryKind, HardState, bootstrap_state
from simulation.raft.coverage import Coverage
from simulation.raft.disk.disk import Disk, recover
from simulation.raft.disk.image import DiskWrite, Truncate
from simulation.raft.verdict import InvariantError

CONFIGURATION = ConfigurationAt(NO_INDEX, Configuration((1, 2, 3)))


def make_disk(terms: list[int]) -> Disk:
    disk = Disk(bootstrap_state((1, 2, 3)), Coverage(), checks_payload=True)
    write(disk, terms)
    disk.save_hard_state(HardState(max(terms, default=0)))
    disk.sync_done(disk.sync_id())
    return disk


def write(disk: Disk, terms: list[int]) -> None:
    for term in terms:
        index = disk.memory.last_index + 1
        disk.append(index, term, EntryKind.DATA, 100 * term + index)


def terms_of(disk: Disk) -> list[int]:
    return [entry.term for entry in disk.memory.entries]


def test_power_loss_keeps_everything_synced_and_only_whole_prefixes_of_the_rest() -> None:
    seen = set()
    for seed in range(200):
        disk = make_disk([1, 1])
        write(disk, [2, 2, 2])
        disk.power_lost(Random(seed))
        terms = terms_of(disk)
        assert terms == [1, 1, 2, 2, 2][: len(terms)]
        assert len(terms) >= 2
        assert disk.memory.hard_state.term >= terms[-1]
        seen.add(len(terms))
    assert seen == {2, 3, 4, 5}


def test_process_death_keeps_the_page_cache() -> None:
    disk = make_disk([1])
    write(disk, [2, 2])
    disk.save_hard_state(HardState(7, 3))
    disk.process_died()
    assert terms_of(disk) == [1, 2, 2]
    assert disk.durable.hard_state == HardState(7, 3)


def test_unsynced_truncation_may_be_undone_but_never_mixes_two_histories() -> None:
    outcomes = set()
    for seed in range(400):
        disk = make_disk([1, 1, 1, 1])
        disk.truncate_from(1)
        write(disk, [2, 2])
        disk.power_lost(Random(seed))
        chain = 0
        for entry in disk.memory.entries:
            assert entry.previous_chain == chain
            chain = entry.chain
        outcomes.add(tuple(terms_of(disk)))
    # (1, 1): only the last new entry came through, and it lies in the way of the old tail.
    assert outcomes == {(1, 1, 1, 1), (1, 1), (1,), (1, 2), (1, 2, 2)}


def test_recovery_takes_no_entry_of_another_history() -> None:
    """The new entry reached the disk, the truncation did not: the old tail behind it is refused."""
    disk = make_disk([1, 1, 1, 1])
    disk.truncate_from(1)
    write(disk, [2])
    survivors = [operation for operation in disk.pending if isinstance(operation, DiskWrite)]
    recover(disk.durable, survivors, Coverage())
    assert [entry.term for entry in disk.durable.entries] == [1, 2]


def test_truncated_tail_stays_away_once_the_truncation_survived() -> None:
    disk = make_disk([1, 1, 1, 1])
    disk.truncate_from(1)
    survivors = [operation for operation in disk.pending if isinstance(operation, Truncate)]
    recover(disk.durable, survivors, Coverage())
    assert [entry.term for entry in disk.durable.entries] == [1]


def test_sync_covers_only_what_was_written_before_it_began() -> None:
    disk = make_disk([])
    write(disk, [1])
    write_id = disk.sync_id()
    write(disk, [1])
    disk.sync_done(write_id)
    assert disk.durable.last_index == 0
    assert disk.memory.last_index == 1


def test_failed_meta_write_changes_nothing() -> None:
    disk = make_disk([1])
    disk.meta_errors = 1
    with pytest.raises(HardStateNotSavedError):
        disk.save_hard_state(HardState(9))
    assert disk.load().hard_state.term == 1
    disk.save_hard_state(HardState(9))
    assert disk.load().hard_state.term == 9


def test_lost_install_takes_everything_written_after_it() -> None:
    outcomes = set()
    for seed in range(200):
        disk = make_disk([1, 1])
        disk.install_snapshot(SnapshotMeta(9, 2, CONFIGURATION), 12345)
        write(disk, [2])
        disk.power_lost(Random(seed))
        outcomes.add((disk.memory.base_index, disk.memory.last_index))
    assert outcomes == {(NO_INDEX, 1), (9, 9), (9, 10)}


def test_cut_needs_a_durable_snapshot_and_keeps_the_configuration() -> None:
    disk = make_disk([1])
    newer = Configuration((1, 2, 3), (4,))
    disk.append(1, 1, EntryKind.CONFIGURATION, newer)
    write(disk, [1])
    disk.save_snapshot(SnapshotMeta(1, 1, ConfigurationAt(1, newer)))
    with pytest.raises(InvariantError, match="R32"):
        disk.cut(1)
    disk.sync_done(disk.sync_id())
    disk.cut(1)
    found = disk.load()
    assert (found.base_index, found.last_index) == (1, 2)
    assert found.configurations == (ConfigurationAt(1, newer),)
