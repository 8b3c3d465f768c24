"""The log as tables of Spark: sources, sink and jobs (docs/pipeline.md)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Make `format("quorumlog")` known to a session, and let Spark push filters down to it."""
    from pipeline.source import QuorumlogSource

    spark.dataSource.register(QuorumlogSource)
    # Without it Spark refuses a reader that could take filters.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
