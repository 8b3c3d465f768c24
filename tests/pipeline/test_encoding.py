"""Rows to records, without Spark and without a cluster."""

from typing import Any, cast

import pyarrow as pa
import pytest

from pipeline.connection import Connection
from pipeline.encoding import RowEncoder
from pipeline.errors import RowError
from pipeline.options import sink_options

_OPTIONS = sink_options({"servers": "localhost:1", "topic": "orders"})
_NO_CLUSTER = cast(Connection, None)
"""Rows that are refused ask no cluster."""


@pytest.mark.parametrize(
    "row",
    [
        {"body": 3},
        {"body": True},
        {"body": [65, 66]},
        {"body": None},
        {"body": "x", "queue_id": "0"},
        {"body": "x", "queue_id": 1 << 31},
        {"body": "x", "queue_id": -1},
        {"body": "x", "key": 5},
        {"body": "x", "keys": [5]},
        {"body": "x", "tag": 5},
        {"body": "x", "properties": [("a", 5)]},
        {"body": b"x" * (5 << 20)},
    ],
    ids=lambda row: str(row)[:40],
)
def test_a_value_that_makes_no_record_is_the_error_of_its_row(row: dict[str, Any]) -> None:
    types = {"properties": pa.map_(pa.string(), pa.int64())}
    columns = {name: pa.array([value], types.get(name)) for name, value in row.items()}
    batch = pa.RecordBatch.from_pydict(columns)
    encoder = RowEncoder(_NO_CLUSTER, _OPTIONS, 0)
    with pytest.raises(RowError, match="row 0 of the partition cannot be written"):
        list(encoder.batches(iter([batch])))
