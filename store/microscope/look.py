"""The look through the microscope: a thing and its neighbours become rows.

Owns which neighbours each kind is compared with; must not read files.
"""

from collections.abc import Sequence
from typing import Final

from store import format as fmt
from store.microscope.derived import (
    key_header_rows,
    key_item_rows,
    key_slot_rows,
    points_at,
    queue_unit_rows,
)
from store.microscope.entry import entry_rows, header_before_rows, ledger_unit_rows
from store.microscope.record import record_rows
from store.microscope.specimen import (
    FieldRow,
    FieldTable,
    FieldVerdict,
    RowList,
    Specimen,
    shown_bytes,
)
from store.microscope.specimen import SpecimenKind as Kind

_SIZES_MIN: Final = {
    Kind.ENTRY: fmt.ENTRY_BLANK.size,
    Kind.ENTRY_BEFORE: fmt.ENTRY_HEADER_SIZE_BYTES,
    Kind.LEDGER_UNIT: fmt.INDEX_UNIT_SIZE_BYTES,
    Kind.RECORD: fmt.BLANK.size,
    Kind.BLANK: fmt.BLANK.size,
    Kind.QUEUE_UNIT: fmt.CONSUME_QUEUE_UNIT_SIZE_BYTES,
    Kind.KEY_HEADER: fmt.INDEX_HEADER_SIZE_BYTES,
    Kind.KEY_SLOT: fmt.INDEX_SLOT_SIZE_BYTES,
    Kind.KEY_ITEM: fmt.INDEX_ENTRY_SIZE_BYTES,
}


def look(specimens: Sequence[Specimen]) -> tuple[FieldTable, ...]:
    """Return the table of each specimen, compared with the others: at most one of a kind.

    Never raises for what the bytes are.
    """
    there = {one.kind: one for one in specimens if len(one.data) >= _SIZES_MIN[one.kind]}
    seen: dict[Kind, tuple[FieldRow, ...]] = {}
    for one in sorted(specimens, key=_order):  # Entry, then unit.
        rows = RowList(one.data, list(_rows(one, there, seen) if one.kind in there else ()))
        if one.kind not in there and one.data:
            text = f"{_SIZES_MIN[one.kind]} bytes or more"
            rows.add(0, len(one.data), one.kind, shown_bytes(one.data), False, text)
        rows.add_rest(sum(row.size_bytes for row in rows.rows), len(one.data))
        seen[one.kind] = tuple(rows.rows)
    return tuple(FieldTable(specimen, seen[specimen.kind]) for specimen in specimens)


def _order(specimen: Specimen) -> int:
    return list(Kind).index(specimen.kind)


def _rows(
    specimen: Specimen, there: dict[Kind, Specimen], seen: dict[Kind, tuple[FieldRow, ...]]
) -> tuple[FieldRow, ...]:
    get = there.get
    match specimen.kind:
        case Kind.ENTRY:
            return entry_rows(specimen, get(Kind.ENTRY_BEFORE), get(Kind.LEDGER_UNIT))
        case Kind.ENTRY_BEFORE:
            return header_before_rows(specimen)
        case Kind.LEDGER_UNIT:
            return ledger_unit_rows(specimen, get(Kind.ENTRY), _term(seen.get(Kind.ENTRY, ())))
        case Kind.RECORD:
            rows, unit = RowList(specimen.data), get(Kind.QUEUE_UNIT)
            is_of_unit = unit is not None and points_at(unit, specimen)
            record_rows(
                rows, 0, len(specimen.data), specimen.position, unit if is_of_unit else None
            )
            return tuple(rows.rows)
        case Kind.BLANK:
            rows, is_of_ledger = RowList(specimen.data), specimen.data[:4] == b"\xff" * 4
            names = ("magic", "size") if is_of_ledger else ("totalSize", "magicCode")
            for k, name in enumerate(names):
                is_size = "ize" in name
                rows.add_integer(4 * k, 4, name, specimen.number if is_size else None)
            return tuple(rows.rows)
        case Kind.QUEUE_UNIT:
            return queue_unit_rows(specimen, get(Kind.RECORD))
        case Kind.KEY_HEADER:
            return key_header_rows(specimen)
        case Kind.KEY_SLOT:
            return key_slot_rows(
                specimen, get(Kind.KEY_HEADER), get(Kind.KEY_ITEM), get(Kind.RECORD)
            )
        case Kind.KEY_ITEM:
            neighbours = (get(Kind.KEY_HEADER), get(Kind.KEY_SLOT), get(Kind.RECORD))
            return key_item_rows(specimen, *neighbours)


def _term(rows: Sequence[FieldRow]) -> int | None:
    """Return the term that an entry has, or should have; None if that is not known."""
    for row in rows:
        if row.name == "term":
            text = row.expected if row.verdict is FieldVerdict.WRONG else row.value
            return int(text) if text.isdecimal() else None
    return None
