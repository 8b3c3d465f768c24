"""The log as tables of Spark: sources, sink and jobs (docs/pipeline.md)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Register `format("quorumlog")` and `format("quorumlog-segments")` in a session, and let
    Spark push filters down to them."""
    from pipeline.segments import SegmentsSource
    from pipeline.source import QuorumlogSource

    spark.dataSource.register(QuorumlogSource)
    spark.dataSource.register(SegmentsSource)
    # Without it Spark refuses a reader that could take filters.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
