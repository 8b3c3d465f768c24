"""Retention that looks at a log while a snapshot replaces it: nothing is deleted, nobody dies."""

from pathlib import Path

import pytest

from node.replication.raft.storage.snapshot import Snapshot, encode_snapshot
from raft.messages import SnapshotMeta
from store.maintenance.retention import ToDelete
from tests.node.ledger_cluster import crash
from tests.node.replication.raft.storage.test_snapshot import MEMBERS, leader_log


def test_a_log_that_is_replaced_while_its_old_files_are_judged_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = leader_log(tmp_path)
    store = log.store
    file_count = len(store.ledger.files.files)
    assert file_count > 3

    def plan(now_unix_ms: int, usage: object) -> ToDelete:
        meta = SnapshotMeta(500, 9, MEMBERS)
        snapshot = Snapshot(meta, 1 << 20, 7, {(b"orders", 0): 400}, 501, b"state")
        log.install_snapshot(meta, encode_snapshot(snapshot))
        return ToDelete(file_count - 1, 0)

    monkeypatch.setattr(store.engine.retention, "plan", plan)
    store.find_expired()
    assert store.expired_position == 0
    assert log.retention_candidate(10_000) == log.base_index == 500
    crash(log)
