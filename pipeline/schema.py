"""The columns of a record as a table: names, Arrow types, and the same for Spark.

Owns the form of a row for every source, sink and job; must not know where records come from. Spark
is needed for `ddl` alone: other schemas are text.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
PROPERTIES: Final = pa.map_(pa.string(), pa.string())
KEYS: Final = pa.list_(pa.string())

FIELDS: Final = (
    pa.field("topic", pa.string(), nullable=False),
    pa.field("queue_id", pa.int32(), nullable=False),
    pa.field("queue_offset", pa.int64(), nullable=False),
    pa.field("log_position", pa.int64(), nullable=False),
    pa.field("index", pa.int64()),
    pa.field("term", pa.int64()),
    pa.field("born_time", TIMESTAMP, nullable=False),
    pa.field("store_time", TIMESTAMP, nullable=False),
    pa.field("keys", KEYS, nullable=False),
    pa.field("tag", pa.string()),
    pa.field("properties", PROPERTIES, nullable=False),
    pa.field("body", pa.binary()),
    pa.field("message_id", pa.string(), nullable=False),
    pa.field("broker_group", pa.string()),
    pa.field("body_error", pa.string()),
)
"""`body` is null where `body_error` says why it cannot be unpacked. `index` and `term` of the log's
entry; null in a log without entries. `broker_group` is null where it is unknown, as in the files of
a node."""

COLUMNS: Final = tuple(field.name for field in FIELDS)
_BY_NAME: Final = {field.name: field for field in FIELDS}
_SPARK_TYPES: Final = {
    pa.string(): "string",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.binary(): "binary",
    TIMESTAMP: "timestamp",
    KEYS: "array<string>",
    PROPERTIES: "map<string,string>",
}


class UnknownColumnError(ValueError):
    """A wanted column does not exist, or is named twice."""


def parse_columns(text: str) -> tuple[str, ...]:
    """Return the columns of an option such as `topic, body`, in the order given; all if empty.

    Raises UnknownColumnError.
    """
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in _BY_NAME:
            every = ", ".join(COLUMNS)
            raise UnknownColumnError(f"there is no column {name!r}; the columns are {every}")
    if len(set(names)) < len(names):
        raise UnknownColumnError(f"columns {text!r} name one twice; name each once")
    return names or COLUMNS


def arrow_schema(columns: Iterable[str] = COLUMNS) -> pa.Schema:
    """Return the Arrow schema of some columns."""
    return pa.schema([_BY_NAME[name] for name in columns])


def spark_schema(columns: Iterable[str] = COLUMNS) -> str:
    """Return the schema of some columns in Spark's notation."""
    fields = (_BY_NAME[name] for name in columns)
    return ", ".join(
        f"{f.name} {_SPARK_TYPES[f.type]}{'' if f.nullable else ' NOT NULL'}" for f in fields
    )


def ddl(schema: pa.Schema) -> str:
    """Return any Arrow schema in Spark's notation."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema).simpleString()


def batch_of(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as columns of a schema."""
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(c, t) for c, t in zip(columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
