"""Rows to records, without Spark and without a cluster."""

from typing import Any, cast

import pyarrow as pa
import pytest

from pipeline.connection import Connection
from pipeline.encoding import RowEncoder, check_columns
from pipeline.errors import OptionError, RowError
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
        {"body": "x", "key": ""},
        {"body": "x", "key": " "},
        {"body": "x", "keys": [5]},
        {"body": "x", "keys": ["a", ""]},
        {"body": "x", "keys": ["a", None]},
        {"body": "x", "keys": ["a b"]},
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


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"body": "int"}, "column 'body' is of type int; cast it to binary or string"),
        ({"body": "boolean"}, "column 'body' is of type boolean"),
        ({"body": "array<int>"}, "column 'body' is of type array<int>"),
        ({"body": "struct<a:string>"}, "column 'body' is of type struct<a:string>"),
        ({"body": "string", "queue_id": "string"}, "column 'queue_id' is of type string"),
        ({"body": "string", "queue_id": "decimal(9,0)"}, "column 'queue_id' is of type decimal"),
        ({"body": "string", "topic": "binary"}, "column 'topic' is of type binary"),
        ({"body": "string", "key": "bigint"}, "column 'key' is of type bigint"),
        ({"body": "string", "keys": "string"}, "column 'keys' is of type string"),
        ({"body": "string", "tag": "binary"}, "column 'tag' is of type binary"),
        ({"body": "string", "properties": "map<string,int>"}, "column 'properties' is of type map"),
    ],
    ids=str,
)
def test_a_column_of_another_type_is_refused(columns: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        check_columns(columns, _OPTIONS)


@pytest.mark.parametrize("kind", ["binary", "string", "varchar(9)", "string collate UNICODE"])
def test_columns_of_nulls_and_those_that_the_log_sets_are_taken(kind: str) -> None:
    columns = {"body": kind, "key": "void", "queue_id": "bigint", "queue_offset": "string"}
    check_columns(columns, _OPTIONS)
