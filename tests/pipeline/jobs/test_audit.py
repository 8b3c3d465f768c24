"""Audit finds every kind of damage that is planted, names it, and says nothing of what is good."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.jobs.audit import Audit, audit
from store import format as fmt
from store.errors import LayoutError, LockedError
from tests.store.fsck_stores import (
    Clock,
    fill,
    flip,
    fsck_config,
    log_files,
    make_store,
    open_store,
)

pytestmark = pytest.mark.long

COUNT = 120
PIECE = 3000
"""Two to a file of 4096 bytes, and none where an entry begins."""
UNIT = fmt.CONSUME_QUEUE_UNIT_SIZE_BYTES


def replicas(directory: Path, container: str) -> list[Path]:
    """Three equal ones, closed, of many small files."""
    make_store(directory / "whole", fsck_config(container), COUNT)
    return [Path(shutil.copytree(directory / "whole", directory / f"node{n}")) for n in range(3)]


def run(spark: SparkSession, roots: list[Path]) -> Audit:
    return audit(spark, [str(root) for root in roots], piece_size_bytes=PIECE)


def kinds(found: Audit, replica: int) -> set[str]:
    return {one.finding.kind for one in found.findings if one.replica == replica}


@pytest.mark.parametrize("container", ["ledger", "commit_log"])
def test_equal_replicas_are_clean_and_everything_is_counted(
    spark: SparkSession, tmp_path: Path, container: str
) -> None:
    report = run(spark, replicas(tmp_path, container))

    assert report.findings == []
    assert report.is_clean
    assert [one.record_count for one in report.replicas] == [COUNT] * 3
    assert [one.unchecked_bytes for one in report.replicas] == [0, 0, 0]
    assert report.replicas[0].entry_count == (COUNT // 2 if container == "ledger" else 0)
    assert report.replicas[0].last_index == (COUNT // 2 - 1 if container == "ledger" else None)


@pytest.mark.parametrize("container", ["ledger", "commit_log"])
def test_a_flipped_byte_a_missing_file_and_a_wrong_queue_unit_are_found(
    spark: SparkSession, tmp_path: Path, container: str
) -> None:
    roots = replicas(tmp_path, container)
    flipped = log_files(roots[0])[1]
    flip(roots[0] / flipped, 8 * 1203)
    missing = log_files(roots[1])[2]
    (roots[1] / missing).unlink()
    queue = sorted((roots[2] / "consumequeue" / "topic1" / "0").iterdir())[2]
    units = bytearray(queue.read_bytes())
    units[3 * UNIT : 4 * UNIT] = units[2 * UNIT : 3 * UNIT]
    queue.write_bytes(units)

    report = run(spark, roots)

    assert [one.verdict for one in report.replicas] == ["damaged", "damaged", "derived"]
    first, second, third = report.replicas
    assert kinds(report, 0) == {"log", "differs"}
    differs = next(one.finding for one in report.findings if one.finding.kind == "differs")
    assert (differs.path, differs.at) == (flipped, 1203)
    assert differs.position == fsck_config(container).file_size_bytes + 1203
    assert first.first_bad_file == flipped
    if container == "ledger":
        assert first.first_bad_index == differs.entry_index
        assert first.unchecked_bytes < 800, "it goes on behind the damaged entry"

    assert (second.first_bad_file, second.first_bad_byte) == (missing, 0)
    assert "file" in kinds(report, 1)
    assert "gap" not in kinds(report, 1), "the missing file explains the gaps"

    assert third.finding_count == 1
    assert third.first_bad_file == str(queue.relative_to(roots[2]))
    assert third.first_bad_byte == 3 * UNIT
    wrong = next(one.finding for one in report.findings if one.replica == 2)
    assert wrong.field == f"unit of offset {2 * 8 + 3}"


def test_swapped_entries_a_shorter_replica_and_surplus_units_are_found(
    spark: SparkSession, tmp_path: Path
) -> None:
    roots = replicas(tmp_path, "ledger")
    path = roots[0] / log_files(roots[0])[1]
    data = bytearray(path.read_bytes())
    size = fmt.ENTRY_HEADER.unpack_from(data)[1]
    other = fmt.ENTRY_HEADER.unpack_from(data, size)[1]
    data[: size + other] = data[size : size + other] + data[:size]
    path.write_bytes(data)
    shutil.rmtree(roots[1])
    make_store(roots[1], fsck_config("ledger"), COUNT // 2)
    queue = roots[2] / "consumequeue" / "topic0" / "0"
    (queue / f"{8 * UNIT:020d}").unlink()
    last = max(queue.iterdir())
    units = bytearray(last.read_bytes())
    assert not any(units[-UNIT:]), "room for a unit"
    units[-UNIT:] = fmt.CONSUME_QUEUE_UNIT.pack(0, 100, 7)
    last.write_bytes(units)

    report = run(spark, roots)

    assert [one.verdict for one in report.replicas] == ["damaged", "behind", "derived"]
    assert kinds(report, 0) >= {"log", "differs"}
    assert report.replicas[0].first_bad_log_position == fsck_config("ledger").file_size_bytes
    behind = report.replicas[1]
    assert behind.first_bad_index == COUNT // 4
    assert behind.first_bad_log_position == behind.end_log_position
    assert report.replicas[2].finding_count == 8 + 1


def test_a_log_that_is_good_in_itself_and_another_one_is_found(
    spark: SparkSession, tmp_path: Path
) -> None:
    roots = replicas(tmp_path, "ledger")
    shutil.rmtree(roots[2])
    with open_store(roots[2], fsck_config("ledger")) as store:
        fill(store, Clock(), 1, COUNT + 1)

    report = run(spark, roots)

    assert [one.verdict for one in report.replicas] == ["clean", "clean", "damaged"]
    assert kinds(report, 2) == {"differs"}
    assert report.replicas[2].first_bad_index == 0


def test_a_running_store_and_a_directory_without_one_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    with open_store(tmp_path / "open", fsck_config("ledger")), pytest.raises(LockedError):
        audit(spark, [str(tmp_path / "open")])
    with pytest.raises(LayoutError):
        audit(spark, [str(tmp_path)])
    make_store(tmp_path / "a", fsck_config("ledger"))
    make_store(tmp_path / "b", fsck_config("commit_log"))
    with pytest.raises(ValueError, match="not replicas of one log"):
        audit(spark, [str(tmp_path / "a"), str(tmp_path / "b")])
