"""The first byte in which the copies of two replicas differ, and the field that it is in.

Owns the comparison; must not know which of the two is right: the verdicts of each say that.
"""

from typing import NamedTuple

from store.microscope.specimen import FieldRow, FieldTable


class Difference(NamedTuple):
    """Byte `at` of two copies, the first that differs. A row is None where a copy has ended."""

    at: int
    row: FieldRow | None
    other_row: FieldRow | None


def first_difference(table: FieldTable, other: FieldTable) -> Difference | None:
    """Return the first difference of two copies of one thing; None: they are equal.

    Raises ValueError for two kinds.
    """
    if table.specimen.kind != other.specimen.kind:
        raise ValueError(f"compare things of one kind, not {table.specimen.kind} and another")
    data, others = table.specimen.data, other.specimen.data
    if data == others:
        return None
    least = min(len(data), len(others))
    pairs = zip(data, others, strict=False)
    at = next((at for at, (a, b) in enumerate(pairs) if a != b), least)
    return Difference(at, _row_at(table, at), _row_at(other, at))


def _row_at(table: FieldTable, at: int) -> FieldRow | None:
    for row in table.rows:
        if row.at <= at < row.at + row.size_bytes:
            return row
    return None
