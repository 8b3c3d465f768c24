"""Starts Spark, runs a query and ends it, after which Java writes an archive of the classes:
`python -m tests.pipeline.spark_classes FILE`.

Owns nothing but that; `deploy.cache` keeps the file. A Java that has such an archive maps its
classes instead of reading, checking and linking them, which is more than half of a start of Spark.
"""

import os
import sys

from pipeline.session import start, stop
from tests import java


def main() -> None:
    """Write the archive."""
    options = (*java.SHORT_LIVED, f"-XX:ArchiveClassesAtExit={sys.argv[1]}")
    os.environ[java.VARIABLE] = " ".join(options)
    spark = start("classes", "local[2]")
    try:
        spark.range(10).selectExpr("id % 2 as n").groupBy("n").count().collect()
    finally:
        stop(spark)


if __name__ == "__main__":
    main()
