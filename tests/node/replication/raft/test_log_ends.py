"""Each way in which the end of a log goes back: the node is believed, an old copy of it is not."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from node.replication.lives import NodeLives
from node.replication.raft.memory import RaftMemory
from node.replication.raft.storage.hard_state import NodeFile
from node.replication.raft.storage.snapshot import Snapshot, encode_snapshot
from raft.lives import UNKNOWN, ToldLife, learned, memory_lost
from raft.messages import NO_INDEX, Configuration, ConfigurationAt, SnapshotMeta
from raft.ready import HardState
from store.files.file_system import FileSystem
from store.replicated.repair import RepairSession, find_damage
from tests.node.ledger_cluster import CONFIG, crash, must_not_die, open_log, sync
from tests.node.ledger_logs import new_log, put
from tests.store.overwrites import overwrite
from tests.store.records import PAGE

TERM, COPIED, COMMITTED, CUT, COUNT = 4, 8, 12, 15, 40
SMALL = replace(CONFIG, file_size_bytes=4 * PAGE)


def told_at_start(root: Path) -> ToldLife:
    """Start a node and kill it; return its statement."""
    log = open_log(root, config=SMALL)
    lives = NodeLives(1, must_not_die)
    lives.open(FileSystem(), str(root), "c", RaftMemory(log))
    crash(log)
    return lives.own()


def nothing(root: Path) -> None:
    """A kill: the page cache keeps what was written."""


def truncation(root: Path) -> None:
    with open_log(root, config=SMALL) as log:
        log.save_hard_state(HardState(TERM + 1, 0))
        log.truncate_from(min(CUT, log.last_index))


def snapshot(root: Path) -> None:
    members = ConfigurationAt(-1, Configuration((1, 2, 3)))
    with open_log(root, config=SMALL) as log:
        log.save_hard_state(HardState(TERM + 1, 0))
        meta = SnapshotMeta(min(CUT, log.last_index - 1), TERM + 1, members)
        made = encode_snapshot(Snapshot(meta, 50 * PAGE, 7, {}, meta.index + 2, b"state"))
        log.install_snapshot(meta, made)


def repair(root: Path) -> None:
    """As `ClosedRepair` does it, once a peer has proven that nothing of it was committed."""
    with open_log(root, config=SMALL) as log:
        at = log.position_of(min(CUT, log.last_index - 1))
    file = sorted((root / "dledger-n0" / "data").iterdir())[at // SMALL.file_size_bytes]
    overwrite(file, at % SMALL.file_size_bytes, bytes(100))
    with RepairSession(str(root), SMALL, find_damage(str(root), SMALL)[0]) as session:
        NodeFile(FileSystem(), str(root)).note_cut(*session.held)
        session.cut()


@pytest.mark.parametrize("way", [nothing, truncation, snapshot, repair])
def test_the_end_of_a_log(way: Callable[[Path], None], tmp_path: Path) -> None:
    root, copy = tmp_path / "node", tmp_path / "copy"
    new_log(root, config=SMALL).close()
    told_at_start(root)
    log = open_log(root, config=SMALL)
    log.save_hard_state(HardState(TERM, 2))
    for index in range(COUNT):
        put(log, index, index + 1, term=TERM, size_bytes=900)
        if index == COPIED:
            sync(log)
            crash(log)
            memory = learned(UNKNOWN, told_at_start(root))
            shutil.copytree(root, copy)
            log = open_log(root, config=SMALL)
    sync(log)
    crash(log)
    memory = memory._replace(acked_term=TERM, acked=COUNT - 1, committed=COMMITTED)

    way(root)
    way(copy)
    original, copied = told_at_start(root), told_at_start(copy)

    assert "its log ended" in memory_lost(memory, copied)
    assert "its term was" in memory_lost(memory._replace(term=TERM + 2), copied)
    only_acked = memory._replace(committed=NO_INDEX)
    assert bool(memory_lost(only_acked, copied)) == (copied.term == TERM)
    with open_log(root, config=SMALL) as log:
        assert (log.last_index < COUNT - 1) == (way is not nothing)
    for statement in (original, original, told_at_start(root)):
        assert memory_lost(memory, statement) == ""
        memory = learned(memory, statement)
