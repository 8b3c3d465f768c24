"""`replay`: records of a table of Parquet, or of topics, back into a topic.

Owns the choice of rows and their order. Must not know how they are written. Rows of a queue stay in
one partition and keep their order, and they are sorted, so a replay that died can be run again
under its name and adds only the missing rows.
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import pipeline
from pipeline.checks import check_source, check_target
from pipeline.errors import OptionError
from pipeline.options import sink_options, source_options
from pipeline.progress import Show, show_nothing, tasks_shown
from pipeline.table import read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_QUEUE: Final = ("topic", "broker_group", "queue_id")
PARTITION_COUNT: Final = 32
"""Fixed: a continued replay must cut its rows as before, on any machine."""
_SOURCE_COLUMNS: Final = "topic,broker_group,queue_id,queue_offset,keys,tag,properties,body"


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of one replay. `replay_id` is its name."""

    replay_id: str
    row_count: int
    duration_s: float


def replay(
    spark: "SparkSession",
    to: Mapping[str, str],
    *,
    path: str | None = None,
    source: Mapping[str, str] | None = None,
    where: str = "",
    keeps_queues: bool = True,
    replay_id: str = "",
    show: Show = show_nothing,
    announce: Callable[[str], None] = lambda _name: None,
) -> Replayed:
    """Write rows into topic `to["topic"]`, or without one into the topics they are of.

    The rows come from the Parquet at `path`, or from topics by the options of a `source`, such as
    `startingOffsets="@2026-01-31T12:00:00Z"`. `where` is a condition of SQL on the columns. Rows
    keep their queue unless not wanted; then a key chooses it. `announce` is called with the name
    before anything is written; give it as `replay_id` to continue after a failure.

    Raises PipelineError and QuorumlogError before anything is written.
    """
    if (path is None) == (source is None):
        raise OptionError("a replay has one source", "name either a path or topics")
    target = sink_options(to)
    began_s = time.monotonic()
    pipeline.register(spark)
    if source is not None:
        check_source(source)
        source_options(source)
        rows = spark.read.format("quorumlog").options(**source)
        chosen = rows.option("columns", f"{_SOURCE_COLUMNS},body_error").load()  # For `where`.
    else:
        assert path is not None, "one of the two"
        chosen = _parquet(spark, path)
    if where:
        chosen = chosen.where(where)
    survey = _survey(chosen)
    replay_id = _checked_id(replay_id, survey)
    named = [target.topic] if target.topic is not None else survey.topics
    check_target(target.cluster, named, survey.queue_id_max if keeps_queues else None)
    announce(replay_id)
    ordered = _ordered(chosen)
    own = ("broker_group", "queue_offset", "body_error")
    columns = [name for name in ordered.columns if name not in own]
    if not keeps_queues:
        columns.remove("queue_id")
    with tasks_shown(spark, "replay", PARTITION_COUNT, show):
        writer = ordered.select(*columns).write.format("quorumlog").mode("append")
        writer.options(**to).option("writeId", replay_id).save()
    return Replayed(replay_id, survey.row_count, round(time.monotonic() - began_s, 1))


def _parquet(spark: "SparkSession", path: str) -> "DataFrame":
    """Read a table. Raises OptionError when its rows are no records."""
    from pyspark.errors import AnalysisException

    try:
        rows = read_table(spark, path)
    except AnalysisException as error:
        raise OptionError(f"there is no Parquet at {path}", "name a table of 'ingest'") from error
    wanted = _SOURCE_COLUMNS.split(",")
    missing = [name for name in wanted if name not in rows.columns]
    if missing:
        raise OptionError(
            f"the Parquet at {path} has no column {missing[0]!r}", "name a table of 'ingest'"
        )
    return rows.select(*wanted)


class _Survey(NamedTuple):
    """The rows to replay. `digest` changes whenever the rows do."""

    row_count: int
    topics: list[str]
    queue_id_max: int
    digest: str


def _survey(rows: "DataFrame") -> _Survey:
    from pyspark.sql import functions as f

    offset = f.col("queue_offset")
    grouped = rows.groupBy(*_QUEUE).agg(f.count("*"), f.min(offset), f.max(offset), f.sum(offset))
    queues = sorted(grouped.collect(), key=str)
    digest = hashlib.blake2b(repr([tuple(row) for row in queues]).encode(), digest_size=6)
    return _Survey(
        sum(row[3] for row in queues),
        sorted({row["topic"] for row in queues}),
        max((row["queue_id"] for row in queues), default=0),
        digest.hexdigest(),
    )


def _checked_id(replay_id: str, survey: _Survey) -> str:
    """Return the name of a new replay, or of the one to continue. Raises OptionError.

    With other rows the batches would differ, and the log could not recognise repetitions.
    """
    if not replay_id:
        return f"{secrets.token_hex(6)}-{survey.digest}"
    if replay_id.rpartition("-")[2] != survey.digest:
        raise OptionError(
            f"replay {replay_id} had other rows than there are now",
            "choose the same ones: with 'where', or with fixed offsets",
        )
    return replay_id


def _ordered(rows: "DataFrame") -> "DataFrame":
    """Put the rows of a queue into one partition, in order: the same ones each time."""
    spread = rows.repartition(PARTITION_COUNT, *_QUEUE)
    return spread.sortWithinPartitions(*_QUEUE, "queue_offset")
