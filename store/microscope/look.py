"""The look through the microscope: a thing and its neighbours become rows.

Owns which neighbours each kind is compared with; must not read files.
"""

from collections.abc import Sequence

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
    FieldVerdict,
    Picture,
    RowList,
    Specimen,
)
from store.microscope.specimen import SpecimenKind as Kind


def look(specimens: Sequence[Specimen]) -> tuple[Picture, ...]:
    """Return the picture of each specimen, compared with the others: at most one of a kind.

    Never raises for what the bytes are.
    """
    there = {specimen.kind: specimen for specimen in specimens}
    seen: dict[Kind, tuple[FieldRow, ...]] = {}
    for kind in sorted(there, key=list(Kind).index):  # An entry before its unit.
        seen[kind] = _rows(there[kind], there, seen)
    return tuple(Picture(specimen, seen[specimen.kind]) for specimen in specimens)


def _rows(
    one: Specimen, there: dict[Kind, Specimen], seen: dict[Kind, tuple[FieldRow, ...]]
) -> tuple[FieldRow, ...]:
    get = there.get
    if not one.data:
        return ()
    match one.kind:
        case Kind.ENTRY:
            return entry_rows(one, get(Kind.ENTRY_BEFORE), get(Kind.LEDGER_UNIT))
        case Kind.ENTRY_BEFORE:
            return header_before_rows(one)
        case Kind.LEDGER_UNIT:
            return ledger_unit_rows(one, get(Kind.ENTRY), _term(seen.get(Kind.ENTRY, ())))
        case Kind.RECORD:
            rows, unit = RowList(one.data), get(Kind.QUEUE_UNIT)
            is_of_unit = unit is not None and points_at(unit, one)
            end = record_rows(rows, 0, len(one.data), one.position, unit if is_of_unit else None)
            rows.add_rest(end, len(one.data))
            return tuple(rows.rows)
        case Kind.QUEUE_UNIT:
            return queue_unit_rows(one, get(Kind.RECORD))
        case Kind.KEY_HEADER:
            return key_header_rows(one)
        case Kind.KEY_SLOT:
            return key_slot_rows(one, get(Kind.KEY_HEADER), get(Kind.KEY_ITEM), get(Kind.RECORD))
        case Kind.KEY_ITEM:
            neighbours = (get(Kind.KEY_HEADER), get(Kind.KEY_SLOT), get(Kind.RECORD))
            return key_item_rows(one, *neighbours)


def _term(rows: Sequence[FieldRow]) -> int | None:
    """Return the term that an entry has, or should have; None if that is not known."""
    for row in rows:
        if row.name == "term":
            text = row.expected if row.verdict is FieldVerdict.WRONG else row.value
            return int(text) if text.isdecimal() else None
    return None
