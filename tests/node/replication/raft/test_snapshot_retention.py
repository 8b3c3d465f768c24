"""Retention that looks at a log while a snapshot replaces it: nothing is deleted, nobody dies."""

from pathlib import Path

import pytest

from node.replication.raft.storage.log import LedgerLog
from node.replication.raft.storage.snapshot import Snapshot, encode_snapshot
from raft.messages import SnapshotMeta
from store.ledger.start import LogStart
from store.maintenance.retention import ToDelete
from tests.node.ledger_cluster import crash
from tests.node.replication.raft.storage.test_snapshot import MEMBERS, leader_log


def install(log: LedgerLog) -> None:
    meta = SnapshotMeta(500, 9, MEMBERS)
    snapshot = Snapshot(meta, 1 << 20, 7, {(b"orders", 0): 400}, 501, b"state")
    log.install_snapshot(meta, encode_snapshot(snapshot))


def check_nothing_goes(log: LedgerLog) -> None:
    assert log.store.deletable_index(10_000) == log.base_index == 500
    assert log.plan_deletion(10_000) is None
    log.store.find_expired()  # A round of the new log.
    assert log.plan_deletion(10_000) is None


def test_a_log_that_is_replaced_while_its_old_files_are_judged_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round begins before the change and ends behind it."""
    log = leader_log(tmp_path)
    retention = log.store.engine.retention
    file_count = len(log.store.ledger.files.files)
    assert file_count > 3

    def plan(now_unix_ms: int, usage: object) -> ToDelete:
        monkeypatch.undo()
        install(log)
        return ToDelete(file_count - 1, 0)

    monkeypatch.setattr(retention, "plan", plan)
    log.store.find_expired()
    check_nothing_goes(log)
    crash(log)


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
    install(log)
    assert checked
    check_nothing_goes(log)
    crash(log)
