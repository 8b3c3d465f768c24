"""Checks raw entries that another replica shipped, before any of them is written.

Owns the question "do these bytes follow that entry, and where does each of them belong"; must not
know files. The bytes are entries back to back. The blank at a file end is never shipped: where an
entry lies follows from the sizes before it, so the receiver writes the same blank.
Sources: design 4.2, 4.3.
"""

import struct
from typing import Final, NamedTuple

from store import format as fmt
from store.errors import ForeignEntryError
from store.files.checksum import crc32c
from store.ledger.entry import (
    KIND_CONFIGURATION,
    KIND_DATA,
    ChainLink,
    EntryProblem,
    check_run,
    file_end,
    place_entry,
    unpack_header,
)

_HEADER: Final = fmt.ENTRY_HEADER_SIZE_BYTES
_KIND_AT: Final = 32
_CONFIGURATION: Final = KIND_CONFIGURATION.to_bytes(4, "big")
_UNIT: Final = fmt.INDEX_UNIT_SIZE_BYTES
_unpack: Final = fmt.ENTRY_HEADER.unpack_from
_pack_unit: Final = fmt.INDEX_UNIT.pack
_pack_chain: Final = struct.Struct(">I").pack
_new_tuple: Final = tuple.__new__  # Makes a named tuple in one step.


class LedgerPiece(NamedTuple):
    """The entries that lie in one file: bytes [at, hi) of the shipped ones.

    `units` are their index units, `link` is the last of them.
    """

    at: int
    hi: int
    position: int
    units: bytes
    link: ChainLink


class CheckedEntries(NamedTuple):
    """Entries [first_index, hi_index) that follow `before`, each byte of them checked.

    `term_changes` are (first index, term) of each term that begins in them; `configurations` are
    (index, body) of the configuration entries.
    """

    data: bytes
    before: ChainLink
    pieces: tuple[LedgerPiece, ...]
    term_changes: list[tuple[int, int]]
    configurations: list[tuple[int, bytes]]
    hi_index: int

    @property
    def first_index(self) -> int:
        """Index of the first entry."""
        return self.before.entry_index + 1


def check_entries(
    data: bytes, end_position: int, link: ChainLink, file_size_bytes: int
) -> CheckedEntries:
    """Check entries that follow `link`, which ends at `end_position`; they may lie in many files.

    Headers, index, position, term order, chain, body CRC, and that the sizes put each entry where
    it says it is. Raises ForeignEntryError, also for no entries at all: drop the connection.
    """
    entry = _one_entry(data, end_position, link, file_size_bytes)
    if entry is not None:
        return entry
    before, at = link, 0
    pieces: list[LedgerPiece] = []
    term_changes: list[tuple[int, int]] = []
    while at < len(data) or not pieces:
        position = place_entry(end_position, _size_at(data, at, file_size_bytes), file_size_bytes)
        rest = data[at:] if at else data
        run = check_run(rest, position, link, file_end_position=file_end(position, file_size_bytes))
        # The next round looks at what follows good entries: it may belong into the next file.
        if run.end == 0:
            problem = run.problem or EntryProblem(0, "entry", "a whole one", f"{len(rest)} bytes")
            problem = problem._replace(at=at + problem.at)
            raise ForeignEntryError(run.link.entry_index + 1, *problem)
        pieces.append(LedgerPiece(at, at + run.end, position, run.units, run.link))
        term_changes += run.term_changes
        link, end_position, at = run.link, position + run.end, at + run.end
    configurations = _configurations(data, pieces)
    hi_index = link.entry_index + 1
    return CheckedEntries(data, before, tuple(pieces), term_changes, configurations, hi_index)


def _one_entry(
    data: bytes, end_position: int, link: ChainLink, file_size_bytes: int
) -> CheckedEntries | None:
    """Check `data` as one entry with records, of the term before, that goes behind the last one.

    Nearly all that followers get is such entries. None: `data` is something else, or wrong, and
    then the general way says what. The checks are those of `check_run`.
    """
    size_bytes = len(data)
    if size_bytes < _HEADER:
        return None
    magic, own_size, index, term, position, kind, chain_crc, body_crc, body_size = _unpack(data)
    room = (end_position // file_size_bytes + 1) * file_size_bytes - end_position
    if (
        magic != fmt.ENTRY_MAGIC
        or own_size != size_bytes
        or body_size != size_bytes - _HEADER
        or size_bytes > fmt.ENTRY_SIZE_BYTES_MAX
        or size_bytes + fmt.BLANK_SIZE_BYTES_MIN > room
        or index != link.entry_index + 1
        or term != link.term
        or position != end_position
        or kind != KIND_DATA
        or crc32c(_pack_chain(link.chain_crc) + data[:36] + b"\0\0\0\0" + data[40:48]) != chain_crc
        or crc32c(data[_HEADER:]) != body_crc
    ):
        return None
    unit = _pack_unit(magic, position, size_bytes, index, term)
    new_link = _new_tuple(ChainLink, (index, term, chain_crc))
    piece = _new_tuple(LedgerPiece, (0, size_bytes, position, unit, new_link))
    return _new_tuple(CheckedEntries, (data, link, (piece,), [], [], index + 1))


def _size_at(data: bytes, at: int, file_size_bytes: int) -> int:
    """Return the size that the entry at byte `at` claims, or one that the check will refuse."""
    size_bytes = int.from_bytes(data[at + 4 : at + 8], "big", signed=True)
    is_possible = _HEADER <= size_bytes <= file_size_bytes - fmt.BLANK_SIZE_BYTES_MIN
    return size_bytes if is_possible else _HEADER


def _configurations(data: bytes, pieces: list[LedgerPiece]) -> list[tuple[int, bytes]]:
    configurations = []
    for piece in pieces:
        for _, position, size_bytes, index, _ in fmt.INDEX_UNIT.iter_unpack(piece.units):
            at = piece.at + position - piece.position
            if data[at + _KIND_AT : at + _KIND_AT + 4] == _CONFIGURATION:
                assert unpack_header(data, at).entry_index == index, f"entry {index} at byte {at}"
                configurations.append((index, data[at + _HEADER : at + size_bytes]))
    return configurations


def part_from(checked: CheckedEntries, piece: LedgerPiece, index: int) -> tuple[int, int, bytes]:
    """Return (byte of its first entry, position, index units) of a piece without the entries before
    `index`."""
    first = piece.link.entry_index + 1 - len(piece.units) // _UNIT
    if index <= first:
        return piece.at, piece.position, piece.units
    units = piece.units[(index - first) * _UNIT :]
    position = fmt.INDEX_UNIT.unpack_from(units)[1]
    return piece.at + position - piece.position, position, units


def chain_crc_of(checked: CheckedEntries, index: int) -> int:
    """Return the chain CRC of one of the entries."""
    piece = next(piece for piece in checked.pieces if piece.link.entry_index >= index)
    at, _, _ = part_from(checked, piece, index)
    return unpack_header(checked.data, at).chain_crc
