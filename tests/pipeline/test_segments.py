"""The files of a stopped node give the rows that the store gives, in ranges of any size."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import pipeline
from node.state.state import SYSTEM_TOPICS
from pipeline.columns import record_batch
from pipeline.errors import OptionError
from pipeline.segments import parse_options, read_piece
from pipeline.segments_check import check_range
from pipeline.segments_log import open_sealed
from quorumlog.records.compression import IS_COMPRESSED, ZLIB
from store.errors import CorruptionError, InnerBatchError, LockedError
from store.record.message import encode_message
from store.replicated.ledger_store import ReplicaStore
from store.store import Store
from tests.store.crash_check import must_not_die
from tests.store.foreign_logs import BATCHES, inner_batch, plain, write_log
from tests.store.fsck_stores import flip, fsck_config, log_files, make_store, open_store
from tests.store.ledger_stores import make_restarted, make_wreck

COUNT = 60
COLUMNS = ["topic", "queue_id", "queue_offset", "log_position", "index", "term", "body"]
Row = dict[str, object]


def rows_of(root: Path, piece_size_bytes: int = 1 << 20, **how: object) -> list[Row]:
    """All rows of a store, piece by piece, without Spark."""
    log = open_sealed(str(root))
    return [
        row
        for lo, hi in log.pieces(piece_size_bytes, log.visible_position)
        for batch in read_piece(log, lo, hi, COLUMNS, **how)  # type: ignore[arg-type]
        for row in batch.to_pylist()
    ]


def pulled(store: Store, topic: str) -> list[Row]:
    """The same from the open store."""
    data = store.pull(topic, 0, 0, max_count=10_000, max_size_bytes=1 << 24).data
    return list(record_batch(data, COLUMNS).to_pylist())


@pytest.fixture(scope="module", params=["ledger", "commit_log"])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("segments") / str(request.param)
    make_store(directory, fsck_config(request.param), COUNT)
    return directory


def test_rows_are_those_of_the_store(root: Path, tmp_path: Path) -> None:
    rows = rows_of(root)
    copy = Path(shutil.copytree(root, tmp_path / "copy"))

    with open_store(copy, fsck_config(root.name)) as store:
        expected = [*pulled(store, "topic0"), *pulled(store, "topic1")]
    expected.sort(key=lambda row: int(str(row["log_position"])))

    unnumbered = [{**row, "index": None, "term": None} for row in rows]
    assert unnumbered == expected
    if root.name == "ledger":
        assert [row["index"] for row in rows] == [n // 2 for n in range(COUNT)]


@pytest.mark.parametrize("piece_size_bytes", [1024, 100, 333, 4096])
def test_ranges_of_any_size_give_each_row_once_also_without_index_and_queues(
    root: Path, tmp_path: Path, piece_size_bytes: int
) -> None:
    assert rows_of(root, piece_size_bytes) == rows_of(root)
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    for what in ("dledger-n0/index", "consumequeue"):
        shutil.rmtree(copy / what, ignore_errors=True)
        assert rows_of(copy, piece_size_bytes) == rows_of(root)


def test_entries_of_all_sizes_and_terms(tmp_path: Path) -> None:
    wreck = make_wreck(tmp_path)
    by_index = {spot.index: spot for spot in wreck.spots}
    for piece_size_bytes in (1 << 20, 500):
        rows = rows_of(wreck.root, piece_size_bytes)
        numbers = [bytes(row["body"])[:8] for row in rows]  # type: ignore[call-overload]
        assert numbers == [b"%08d" % n for n in range(len(rows))]
        for row in rows:
            spot = by_index[row["index"]]  # type: ignore[index]
            assert row["term"] == spot.term
            assert spot.position < row["log_position"] < spot.end  # type: ignore[operator]


@pytest.mark.parametrize("position", [0, 5000, 8192])
def test_a_ledger_that_begins_behind_a_snapshot_is_read(tmp_path: Path, position: int) -> None:
    wreck = make_restarted(tmp_path, position)
    assert rows_of(wreck.root, 600) == []  # It has entries without records only.
    log = open_sealed(str(wreck.root))
    assert log.begin_position == position
    assert log.link.entry_index == 99


def test_uncommitted_records_are_not_read(tmp_path: Path) -> None:
    config = fsck_config("ledger")
    with ReplicaStore.open(str(tmp_path / "r"), config, on_fatal=must_not_die) as r:
        ends = []
        for number in range(6):
            prepared = r.prepare(encode_message("orders", 0, b"%d" % number))
            r.append_prepared(prepared, 1)
            ends.append(r.ledger.max_position)
        r.engine.flush_service.wait(ends[-1], 10_000)
        r.dispatch_to(ends[3])

    (tmp_path / "r" / "raft.0").touch()  # A node's: only what was dispatched is known as committed.

    assert [row["body"] for row in rows_of(tmp_path / "r")] == [b"0", b"1", b"2", b"3"]


def test_system_topics_are_shown_to_who_asks(tmp_path: Path) -> None:
    config = fsck_config("ledger")
    with open_store(tmp_path / "s", config) as store:
        for topic in ("orders", *SYSTEM_TOPICS, "TBW102", "%RETRY%g", "%DLQ%g", "rmq"):
            store.put(encode_message(topic, 0, topic.encode()))

    assert [row["topic"] for row in rows_of(tmp_path / "s")] == ["orders", "rmq"]
    rows = rows_of(tmp_path / "s", topics=frozenset({"rmq_sys_quorumlog"}))
    assert [row["body"] for row in rows] == [b"rmq_sys_quorumlog"]


def test_an_inner_batch_ends_the_job_unless_other_topics_are_named(tmp_path: Path) -> None:
    """One row would stand for several messages; and an audit takes none of it for damage."""
    root, config = tmp_path / "store", fsck_config("commit_log")
    records = [inner_batch(0, 3), plain("orders", 0), plain(BATCHES, 3), inner_batch(4, 2)]
    write_log(root, config, [*records, plain("orders", 1)])
    with open_store(root, config):
        pass
    with pytest.raises(InnerBatchError, match="batches/0 offset 0"):
        rows_of(root)
    rows = rows_of(root, topics=frozenset({"orders"}))
    assert [row["queue_offset"] for row in rows] == [0, 1]
    log = open_sealed(str(root))
    for lo, hi in log.pieces(1 << 20, log.end_position):
        report = check_range(log, lo, hi, [0, log.end_position])
        assert report.findings == []
        assert {run.topic for run in report.runs} == {"orders"}


def test_damage_names_file_and_byte(root: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    name = log_files(copy)[1]
    flip(copy / name, 8 * 1203)

    with pytest.raises(CorruptionError) as caught:
        rows_of(copy)
    assert caught.value.path == str(copy / name)
    assert abs(caught.value.at - 1203) < 100, "within the record or entry"


def test_a_running_store_is_refused(tmp_path: Path) -> None:
    with open_store(tmp_path / "s", fsck_config("ledger")), pytest.raises(LockedError):
        open_sealed(str(tmp_path / "s"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "needs the directory"),
        ({"path": "x", "colums": "body"}, "no option 'colums'"),
        ({"path": "x", "columns": "bdy"}, "no column 'bdy'"),
        ({"path": "x", "pieceSize": "1k"}, "'pieceSize' is '1k'"),
        ({"path": "x", "pieceSize": "10"}, "1024 or more"),
        ({"path": "x", "pieceSize": "9" * 5_000}, "at most 19 digits"),
        ({"path": "d", "failOnBodyError": "yes"}, "false, true"),
    ],
)
def test_wrong_options_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        parse_options(given)


def test_spark_reads_segments_with_columns_and_filters(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    pipeline.register(spark)
    reader = spark.read.format("quorumlog-segments").option("pieceSize", 2048)
    table = reader.option("columns", "topic,queue_offset,log_position,body").load(str(root))

    assert table.columns == ["topic", "queue_offset", "log_position", "body"]
    assert table.count() == COUNT
    rows = table.where("topic = 'topic1' and log_position > 3000").orderBy("log_position").collect()
    expected = [
        row
        for row in rows_of(root)
        if row["topic"] == "topic1" and int(str(row["log_position"])) > 3000
    ]
    assert [(row.queue_offset, bytes(row.body)) for row in rows] == [
        (row["queue_offset"], row["body"]) for row in expected
    ]
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    name = log_files(copy)[1]
    (copy / name).unlink()
    with pytest.raises(Exception, match=rf"{name}.*file is missing, expected present"):
        reader.load(str(copy)).count()


def test_a_body_that_cannot_be_unpacked_does_not_end_a_job(
    spark: SparkSession, tmp_path: Path
) -> None:
    with open_store(tmp_path / "s", fsck_config("ledger")) as store:
        for topic, body in (("orders", b"good"), ("orders", b"garbage"), ("bills", b"good")):
            flags = IS_COMPRESSED | ZLIB if body == b"garbage" else 0
            store.put(encode_message(topic, 0, body, {}, sys_flag=flags))
    pipeline.register(spark)

    def load(topic: str, fails: str, columns: str = "") -> list[Any]:
        reader = spark.read.format("quorumlog-segments").option("failOnBodyError", fails)
        given = {"topic": topic, "columns": columns}
        return reader.options(**given).load(str(tmp_path / "s")).orderBy("log_position").collect()

    good, faulty, other = load("", "false")
    assert (bytes(good.body), good.body_error, bytes(other.body)) == (b"good", None, b"good")
    assert faulty.body is None
    assert "cannot be read" in faulty.body_error
    assert len(load("bills", "true", "log_position,body")) == 1, (
        "rows that are not asked for count not"
    )
    with pytest.raises(Exception, match="topic orders, queue 0, offset 1: a compressed body"):
        load("", "true", "log_position,body")
