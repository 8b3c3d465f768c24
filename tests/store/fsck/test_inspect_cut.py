"""A file that was cut off says what was lost; a directory of a replica is looked into as any."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from store.errors import CorruptionError
from store.files.file_system import FileSystem
from store.files.meta_file import MetaFile
from store.fsck.inspect_cut import RECORDS_SHOWN, inspect_cut
from store.log import cut_file
from tests.store.fsck_stores import findings, given_sizes
from tests.store.records import batch
from tests.store.shipped_stores import CONFIG, open_store, put


def cut_of(root: Path, count: int, *, size_bytes: int = 400) -> tuple[str, int, int]:
    """Cut off all but the first batch; return the file, and where the cut begins and ends."""
    with open_store(root) as store:
        lo = put(store, 0, 3)
        for number in range(3, count, 3):
            hi = put(store, number, number + 3, size_bytes=size_bytes)
        put(store, 7, 9, queue_id=2)
        hi = store.shipped.end_position
        aside = store.set_aside(lo, hi, 5)
        store.cut(lo)
    return aside.path, lo, hi


def test_a_cut_file_names_the_lost_records(tmp_path: Path) -> None:
    path, lo, hi = cut_of(tmp_path / "s", 90)
    row = inspect_cut(path)
    assert (row["epoch"], row["first_log_position"], row["end_log_position"]) == (5, lo, hi)
    assert row["record_count"] == 89
    assert row["queues"] == [
        {
            "topic": "orders",
            "queue_id": 0,
            "first_offset": 3,
            "last_offset": 89,
            "record_count": 87,
        },
        {"topic": "orders", "queue_id": 2, "first_offset": 0, "last_offset": 1, "record_count": 2},
    ]
    records = row["records"]
    assert isinstance(records, list)
    assert [record["keys"] for record in records[:2]] == ["key0003", "key0004"]
    assert (records[0]["log_position"], records[0]["offset"]) == (lo, 3)
    assert row["records_not_shown"] == 0


def test_records_and_blanks_may_lie_across_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut_file, "_READ_SIZE_BYTES", 1000)
    path, _, _ = cut_of(tmp_path / "s", 60, size_bytes=3000)
    assert inspect_cut(path)["record_count"] == 59


def test_only_so_many_records_are_shown(tmp_path: Path) -> None:
    path, _, _ = cut_of(tmp_path / "s", RECORDS_SHOWN + 60, size_bytes=8)
    row = inspect_cut(path)
    assert isinstance(row["records"], list)
    assert len(row["records"]) == RECORDS_SHOWN
    assert row["records_not_shown"] == row["record_count"] - RECORDS_SHOWN  # type: ignore[operator]


def test_a_file_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    path, _, _ = cut_of(tmp_path / "s", 60)
    whole = Path(path).read_bytes()
    for bad in (whole[:-1], whole[:200] + b"\xff" + whole[201:], b"garbage"):
        Path(path).write_bytes(bad)
        with pytest.raises(CorruptionError):
            inspect_cut(path)


def test_the_command_opens_it(tmp_path: Path) -> None:
    path, lo, _ = cut_of(tmp_path / "s", 60)
    code = "from qlog import main; main(prog_name='qlog')"
    command = [sys.executable, "-c", code, "store", "inspect", path, "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["first_log_position"] == lo


def test_a_check_of_a_replica_finds_nothing_wrong(tmp_path: Path) -> None:
    """Also with records that no reader has seen, and with what was set aside beside it."""
    cut_of(tmp_path / "s", 60)
    with open_store(tmp_path / "s") as store:
        end = put(store, 300, 303)
        put(store, 303, 306)
        store.dispatch_to(end)
        assert store.prepare(batch(0, 1))
    meta = MetaFile(FileSystem(), str(tmp_path / "s"), "haReplica")
    meta.load(must_exist=False)
    meta.save({"of": "the node"})
    (tmp_path / "s" / "epochFileCheckpoint").write_bytes(b"1\n0\n1-0\n")
    assert findings(tmp_path / "s", given_sizes(CONFIG)) == []
