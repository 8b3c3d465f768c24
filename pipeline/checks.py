"""Checks of a job before it starts, so that a mistake is one line and no trace of Spark's.

Owns the questions to the cluster before anything is read or written. Must not know the jobs.
"""

from collections.abc import Iterable, Mapping

from pipeline.connection import Connection
from pipeline.errors import OptionError
from pipeline.options import ClusterAddress, SourceOptions, source_options
from pipeline.plan import bounds, queues_of
from quorumlog.consume.reads import unknown_topic
from quorumlog.errors import UnknownTopicError
from quorumlog.records.options import FIRST


def check_source(options: Mapping[str, str]) -> int:
    """Return the count of records that a read with these options finds now.

    Raises OptionError, OffsetsError, UnknownTopicError, UnavailableError.
    """
    wanted: SourceOptions = source_options(options)
    with Connection(wanted.cluster) as connection:
        ranges = bounds(connection, wanted, queues_of(connection, wanted), FIRST)
    return sum(hi - lo for lo, hi in ranges.values())


def check_target(
    cluster: ClusterAddress, topics: Iterable[str], queue_id_max: int | None = None
) -> None:
    """Check that topics exist, and have a queue of that number. Raises UnknownTopicError, ..."""
    with Connection(cluster) as connection:
        for topic in topics:
            try:
                ranges = connection.queue_offsets(topic)
            except UnknownTopicError:
                raise unknown_topic(topic) from None
            count = 1 + max(offsets.queue_id for offsets in ranges)
            if queue_id_max is not None and queue_id_max >= count:
                raise OptionError(
                    f"topic {topic!r} has {count} queues, and records come from queue "
                    f"{queue_id_max}",
                    f"give it more: qlog topic create {topic} --queues {queue_id_max + 1}",
                )
