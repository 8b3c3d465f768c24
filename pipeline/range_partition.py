"""A part of a read, as Spark carries it from the planning process to a worker.

Owns nothing but the value. Both readers, of a batch and of a stream, hand it out.
"""

from pyspark.sql.datasource import InputPartition

from pipeline.plan import OffsetRange


class RangePartition(InputPartition):
    """One range, as Spark hands it to a task."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(None)
        self.wanted = wanted
