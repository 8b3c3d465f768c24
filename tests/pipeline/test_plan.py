"""What is read, and what of it is gone: against nodes of this process, without Spark's engine."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pipeline.connection import Connection
from pipeline.errors import OptionError
from pipeline.options import SourceOptions, source_options
from pipeline.plan import OffsetRange, bounds, queues_of, ranges
from pipeline.range_partition import RangePartition
from pipeline.reader import read_range
from pipeline.source import QuorumlogSource
from pipeline.stream import StreamReader
from quorumlog.client import connect
from quorumlog.errors import UnknownTopicError
from tests.quorumlog.fake_cluster import FakeCluster, fake_cluster

_COUNT = 5


async def _filled(cluster: FakeCluster) -> None:
    """Two topics of one queue."""
    cluster.topics |= {"orders": 1, "gone": 1}
    async with connect(cluster.bootstrap) as client:
        for topic in cluster.topics:
            await client.producer().send_batch(topic, [b"x"] * _COUNT)


def _options(cluster: FakeCluster, **given: str) -> SourceOptions:
    return source_options({"servers": cluster.bootstrap, "topic": "orders,gone"} | given)


def _rows(options: SourceOptions, parts: list[OffsetRange]) -> list[str]:
    """The topic of each row."""
    batches = [batch for part in parts for batch in read_range(options, part)]
    return [topic for batch in batches for topic in batch.column("topic").to_pylist()]


def _batch(options: SourceOptions, cluster: FakeCluster, *, is_deleted_behind_plan: bool) -> Any:
    """Read a batch, of which a topic is deleted before it is planned, or between plan and tasks."""
    with Connection(options.cluster) as connection:
        if not is_deleted_behind_plan:
            del cluster.topics["gone"]
        wanted = bounds(connection, options, queues_of(connection, options), "first")
        if is_deleted_behind_plan:
            del cluster.topics["gone"]
        return _rows(options, ranges(connection, wanted, 1_000))


@pytest.mark.parametrize("is_deleted_behind_plan", [False, True])
@pytest.mark.parametrize("starting", ["", '{"orders": {"0": 0}, "gone": {"0": 0}}'])
async def test_a_batch_reads_on_without_a_deleted_topic_if_told_to(
    is_deleted_behind_plan: bool, starting: str
) -> None:
    async with fake_cluster() as cluster:
        await _filled(cluster)
        strict = _options(cluster, startingOffsets=starting)
        lax = replace(strict, fails_on_data_loss=False)
        how = {"is_deleted_behind_plan": is_deleted_behind_plan}
        assert await asyncio.to_thread(_batch, lax, cluster, **how) == ["orders"] * _COUNT
        cluster.topics["gone"] = 1
        with pytest.raises(UnknownTopicError):
            await asyncio.to_thread(_batch, strict, cluster, **how)


def _stream(options: SourceOptions, cluster: FakeCluster, *, reads_to_now: bool) -> Any:
    """Read up to three, delete a topic, and read the rest."""
    begin = {"orders": {"/0": 3}, "gone": {"/0": 3}}
    reader = StreamReader(options)
    try:
        planned = reader.latestOffset(begin, ReadAllAvailable())
        del cluster.topics["gone"]
        if reads_to_now:
            reader.prepareForTriggerAvailableNow()
        reached = reader.latestOffset(begin, ReadAllAvailable())
        assert reader.reportLatestOffset() == {"orders": {"/0": _COUNT}}
        rows = [_rows_of(reader, options, begin, end) for end in (planned, reached)]
    finally:
        reader.stop()
    return reached, rows


def _rows_of(
    reader: StreamReader, options: SourceOptions, begin: Mapping[str, Any], end: Mapping[str, Any]
) -> list[str]:
    parts = reader.partitions(begin, end)
    return _rows(options, [part.wanted for part in parts if isinstance(part, RangePartition)])


@pytest.mark.parametrize("reads_to_now", [False, True])
async def test_a_stream_reads_on_without_a_deleted_topic_if_told_to(reads_to_now: bool) -> None:
    """Also a micro-batch that was planned while the topic was there."""
    async with fake_cluster() as cluster:
        await _filled(cluster)
        lax = _options(cluster, failOnDataLoss="false")
        reached, rows = await asyncio.to_thread(_stream, lax, cluster, reads_to_now=reads_to_now)
        assert reached == {"orders": {"/0": _COUNT}, "gone": {"/0": 3}}
        assert rows == [["orders"] * 2] * 2
        cluster.topics["gone"] = 1
        strict = replace(lax, fails_on_data_loss=True)
        with pytest.raises(UnknownTopicError):
            await asyncio.to_thread(_stream, strict, cluster, reads_to_now=reads_to_now)


@pytest.mark.parametrize(
    ("make", "option", "text"),
    [
        ("streamReader", {"endingOffsets": "5"}, "'endingOffsets' has no effect.*has no end"),
        ("streamReader", {"endingoffsets": "latest"}, "'endingOffsets' has no effect"),
        ("reader", {"maxRecordsPerTrigger": "5"}, "'maxRecordsPerTrigger' has no effect"),
    ],
)
def test_an_option_of_the_other_mode_is_refused(
    make: str, option: dict[str, str], text: str
) -> None:
    source = QuorumlogSource({"servers": "localhost:1", "topic": "orders"} | option)
    with pytest.raises(OptionError, match=text):
        getattr(source, make)(None)


async def test_a_queue_that_came_later_is_streamed_from_its_first_message() -> None:
    async with fake_cluster() as cluster:
        await _filled(cluster)
        cluster.topics["orders"] = 2
        async with connect(cluster.bootstrap) as client:
            await client.producer().send_batch("orders", [b"x"] * _COUNT, queue_id=1)
        cluster.min_offsets["orders", 1] = 4

        def read() -> list[str]:
            options = _options(cluster)
            reader, begin = StreamReader(options), {"orders": {"/0": 3}, "gone": {"/0": _COUNT}}
            try:
                end = reader.latestOffset(begin, ReadMaxRows(100))
                return _rows_of(reader, options, begin, end)
            finally:
                reader.stop()

        assert await asyncio.to_thread(read) == ["orders"] * 3
