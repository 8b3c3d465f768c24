"""`ingest` as a process of its own, for tests that kill it: servers, topic, table."""

import sys

from pipeline.jobs.ingest import ingest
from pipeline.session import spark_session

if __name__ == "__main__":
    servers, topic, path = sys.argv[1:]
    given = {"servers": servers, "topic": topic, "maxRecordsPerTrigger": "1500"}
    with spark_session("ingest", "local[2]") as spark:
        ingest(spark, given, path)
