"""The fields of a ledger entry, of the header before it, and of the unit that points at it.

Owns the rows of the 48 bytes and the way to the records behind them (storage-formats 7.1, 7.2);
must not know files. The chain CRC covers the header and the body CRC the records: both are computed
over the bytes as they should be, as far as that is known, so that a damaged field is named once.
"""

from collections.abc import Sequence
from typing import Final

from store import format as fmt
from store.files.checksum import crc32c
from store.ledger.entry import KIND_DATA, KINDS, chain_of, unpack_header
from store.microscope.one_byte import mended_byte
from store.microscope.record import record_rows
from store.microscope.specimen import (
    FieldRow,
    FieldVerdict,
    RowList,
    Specimen,
    integer_at,
    shown_bytes,
)

_HEADER: Final = fmt.ENTRY_HEADER_SIZE_BYTES
_CHAIN_AT: Final = fmt.ENTRY_CHAIN_CRC_AT
_BODY_CRC_AT: Final = 40


def entry_rows(
    specimen: Specimen, before: Specimen | None, unit: Specimen | None
) -> tuple[FieldRow, ...]:
    """Return the rows of an entry. `before` is the header of the entry before it, `unit` the one of
    the ledger's index. One damaged byte is wrong at its field only, if the checksums name it."""
    rows = _entry_rows(specimen, before, unit)
    mended = _mended(specimen, before)
    if mended is None:
        return rows
    at, value = mended
    data = specimen.data[:at] + bytes([value]) + specimen.data[at + 1 :]
    right_rows = _entry_rows(specimen._replace(data=data), before, unit)
    if any(row.verdict is FieldVerdict.WRONG for row in right_rows):
        return rows
    return tuple(
        row._replace(
            value=_value_of(row, rows, specimen.data),
            verdict=FieldVerdict.WRONG,
            expected=row.value,
        )
        if row.at <= at < row.at + row.size_bytes
        else row
        for row in right_rows
    )


def _value_of(row: FieldRow, rows: Sequence[FieldRow], data: bytes) -> str:
    """Return the text of the damaged bytes of a field; in hex where they gave other rows."""
    same = (
        r.value for r in rows if (r.at, r.size_bytes, r.name) == (row.at, row.size_bytes, row.name)
    )
    return next(same, data[row.at : row.at + row.size_bytes].hex())


def _mended(specimen: Specimen, before: Specimen | None) -> tuple[int, int] | None:
    """Return the one byte of an entry that its two checksums say is wrong, and its right value."""
    data, chain_before = specimen.data, _chain_before(specimen, before)
    if len(data) < _HEADER or chain_before is None:
        return None
    header, body_crc = unpack_header(data), crc32c(data[_HEADER:])
    if chain_of(chain_before, data[:_HEADER]) == header.chain_crc:
        if body_crc == header.body_crc:
            return None
        found = mended_byte(data[_HEADER:], header.body_crc)
        return None if found is None else (found[0] + _HEADER, found[1])
    covered = chain_before.to_bytes(4, "big") + data[:_CHAIN_AT] + bytes(4) + data[40:_HEADER]
    found = mended_byte(covered, header.chain_crc)
    if body_crc != header.body_crc or found is None or found[0] < 4:
        return None  # The header before may be the damaged one.
    return found[0] - 4, found[1]


def _entry_rows(
    specimen: Specimen, before: Specimen | None, unit: Specimen | None
) -> tuple[FieldRow, ...]:
    rows, data = RowList(specimen.data), specimen.data
    if len(data) < _HEADER:
        rows.add(0, len(data), "entry", shown_bytes(data), False, "48 bytes or more")
        return tuple(rows.rows)
    chain_before = _chain_before(specimen, before)
    has_chain = (
        chain_before is not None
        and chain_of(chain_before, data[:_HEADER]) == unpack_header(data).chain_crc
    )
    _add_header(rows, specimen, before, None if has_chain else unit)
    header_count = len(rows.rows)
    _add_body(rows, specimen)
    body_rows_hi = len(rows.rows)
    stated = bytes(data[_BODY_CRC_AT : _BODY_CRC_AT + 4])
    body_crc = crc32c(bytes(rows.mended[_HEADER:]))
    if body_crc == int.from_bytes(stated, "big"):
        rows.cover(header_count)
    rows.add_integer(44, 4, "bodySize", len(data) - _HEADER)
    kept = bytes(rows.mended[:_BODY_CRC_AT]) + stated + bytes(rows.mended[44:_HEADER])
    rows.add_integer(_BODY_CRC_AT, 4, "bodyCrc", body_crc, "08X")
    chain_crc = None
    if chain_before is not None:
        # Of a damaged body the stated CRC is the right one, of a damaged CRC the computed one.
        chains = [chain_of(chain_before, one) for one in (kept, bytes(rows.mended[:_HEADER]))]
        own = int.from_bytes(data[_CHAIN_AT:_BODY_CRC_AT], "big")
        chain_crc = own if own in chains else chains[0]
        if own in chains:
            rows.cover(0, header_count)
            rows.cover(body_rows_hi)
    rows.add_integer(_CHAIN_AT, 4, "chainCrc", chain_crc, "08X")
    return tuple(sorted(rows.rows))


def _chain_before(specimen: Specimen, before: Specimen | None) -> int | None:
    """Return the chain CRC of the entry before; None if it is not known."""
    if before is not None:
        return unpack_header(before.data).chain_crc
    return 0 if specimen.number == 0 else None


def _add_header(
    rows: RowList, specimen: Specimen, before: Specimen | None, unit: Specimen | None
) -> None:
    """Add the fields up to the channel. The unit counts where no chain proves them."""
    data = specimen.data
    rows.add_integer(0, 4, "magic", fmt.ENTRY_MAGIC)
    rows.add_integer(4, 4, "size", len(data))
    rows.add_integer(8, 8, "index", specimen.number if specimen.number >= 0 else None)
    term = integer_at(data, 16, 8)
    least = unpack_header(before.data).term if before is not None else 0
    if unit is not None:
        rows.add_integer(16, 8, "term", fmt.INDEX_UNIT.unpack_from(unit.data)[4])
    else:
        rows.add(16, 8, "term", term, None if term >= least else False, f"{least} or more")
    rows.add_integer(24, 8, "pos", specimen.position)
    kind = integer_at(data, 32)
    rows.add(32, 4, "channel", kind, None if kind in KINDS else False, "0, 1 or 2")


def _add_body(rows: RowList, specimen: Specimen) -> None:
    """Add the records of an entry; the body of another kind is one row."""
    at, hi = _HEADER, len(specimen.data)
    kind = integer_at(specimen.data, 32)
    if kind != KIND_DATA and kind in KINDS:
        if at < hi:
            rows.add(at, hi - at, "body", shown_bytes(specimen.data[at:]))
        return
    while at < hi:
        at = record_rows(rows, at, hi, specimen.position + at)


def header_before_rows(specimen: Specimen) -> tuple[FieldRow, ...]:
    """Return the rows of the header of the entry before. It is what others are compared with, so
    only its magic is checked."""
    rows = RowList(specimen.data)
    rows.add_integer(0, 4, "magic", fmt.ENTRY_MAGIC)
    rows.add_integer(4, 4, "size")
    rows.add_integer(8, 8, "index", specimen.number)
    rows.add_integer(16, 8, "term")
    rows.add_integer(24, 8, "pos", specimen.position)
    rows.add_integer(32, 4, "channel")
    rows.add_integer(_CHAIN_AT, 4, "chainCrc", form="08X")
    rows.add_integer(_BODY_CRC_AT, 4, "bodyCrc", form="08X")
    rows.add_integer(44, 4, "bodySize")
    return tuple(rows.rows)


def ledger_unit_rows(
    specimen: Specimen, entry: Specimen | None, term: int | None
) -> tuple[FieldRow, ...]:
    """Return the rows of a unit of the ledger's index, compared with its entry, of that term."""
    rows = RowList(specimen.data)
    rows.add_integer(0, 4, "magic", fmt.ENTRY_MAGIC)
    rows.add_integer(4, 8, "pos", entry.position if entry is not None else None)
    rows.add_integer(12, 4, "size", len(entry.data) if entry is not None else None)
    rows.add_integer(16, 8, "index", specimen.number)
    rows.add_integer(24, 8, "term", term)
    return tuple(rows.rows)
