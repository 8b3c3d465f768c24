"""The ledger entry: header, chain, and the question "is this the entry that belongs here".

Owns the bytes of an entry, of a blank and of an index unit, and their checks as pure functions over
bytes; must not know files. Every byte of a data file is determined and checked by one of three
functions: `check_run` (entries), `check_blank` (the rest of a complete file) and `check_zeros`
(what was not written yet). Recovery, fsck and followers call the same three, so what one of them
detects all of them detect. Sources: design 4.2; storage-formats 7.1, 7.2.

Deviation: DLedger leaves both CRC fields 0. Here `bodyCrc` is CRC-32C of the body, and `chainCrc`
is CRC-32C of the previous entry's chainCrc (4 bytes, big-endian) and this header with the chainCrc
zero; the chain before index 0 is 0. So the header is covered too, and a stale entry that happens to
line up never chains.
"""

import struct
from typing import Final, NamedTuple

from store import format as fmt
from store.files.checksum import crc32c

KIND_DATA: Final = 0  # Message records; stored in DLedger's field `channel`.
KIND_NO_OP: Final = 1
KIND_CONFIGURATION: Final = 2
KINDS: Final = (KIND_DATA, KIND_NO_OP, KIND_CONFIGURATION)

_HEADER: Final = fmt.ENTRY_HEADER_SIZE_BYTES
_CHAIN_AT: Final = fmt.ENTRY_CHAIN_CRC_AT
_SIZE_AT: Final = 4
_INDEX_AT: Final = 8
_TERM_AT: Final = 16
_POSITION_AT: Final = 24
_KIND_AT: Final = 32
_BODY_CRC_AT: Final = 40
_NO_CHAIN: Final = bytes(4)
_pack_chain: Final = struct.Struct(">I").pack
_pack_chained: Final = struct.Struct(">I" + fmt.ENTRY_HEADER.format.removeprefix(">")).pack
_new_tuple: Final = tuple.__new__  # Makes a named tuple in one step.
_BODY_SIZE_BYTES_MAX: Final = fmt.ENTRY_SIZE_BYTES_MAX - _HEADER
assert _CHAIN_AT + 4 == _BODY_CRC_AT


class Header(NamedTuple):
    """The 48 bytes before a body, as stored. `kind` is DLedger's channel."""

    magic: int
    size_bytes: int
    entry_index: int
    term: int
    position: int
    kind: int
    chain_crc: int
    body_crc: int
    body_size_bytes: int


class ChainLink(NamedTuple):
    """The last entry, which the next one must follow: its index, term and chain."""

    entry_index: int
    term: int
    chain_crc: int


NO_LINK: Final = ChainLink(-1, 0, 0)
"""Link before the first entry of all."""


class Entry(NamedTuple):
    """One whole entry that was checked."""

    entry_index: int
    term: int
    kind: int
    position: int
    chain_crc: int
    body: bytes


class EntryProblem(NamedTuple):
    """A wrong field, and where it is in the bytes that were checked."""

    at: int
    field: str
    expected: str
    actual: str


class Run(NamedTuple):
    """How far a run of bytes is good.

    `end` is the byte after the last good entry, `link` that entry (or the link handed in). `units`
    are the index units of the good entries, `term_changes` are (first index, term) of each term
    that began in the run. `is_blank`: a blank follows. `problem` is None when the bytes are all
    good, when a blank follows, and when they simply ran out in the middle of an entry.
    """

    end: int
    link: ChainLink
    units: bytes
    term_changes: list[tuple[int, int]]
    is_blank: bool
    problem: EntryProblem | None

    @property
    def entry_count(self) -> int:
        """Count of the good entries."""
        return len(self.units) // fmt.INDEX_UNIT_SIZE_BYTES


def unpack_header(data: bytes, at: int = 0) -> Header:
    """Return the header at byte `at`, unchecked."""
    return Header._make(fmt.ENTRY_HEADER.unpack_from(data, at))


def is_header_at(header: Header, position: int, file_end_position: int) -> bool:
    """Whether a header can be that of an entry at a position, which leaves room for a blank."""
    return (
        header.magic == fmt.ENTRY_MAGIC
        and header.position == position
        and header.size_bytes == header.body_size_bytes + _HEADER
        and _HEADER <= header.size_bytes <= fmt.ENTRY_SIZE_BYTES_MAX
        and position + header.size_bytes + fmt.BLANK_SIZE_BYTES_MIN <= file_end_position
        and header.kind in KINDS
    )


def chain_of(previous_chain_crc: int, header: bytes) -> int:
    """Return the chain CRC that belongs into a 48-byte header; its own field does not count."""
    assert len(header) == _HEADER, f"{len(header)} bytes"
    return crc32c(
        previous_chain_crc.to_bytes(4, "big")
        + header[:_CHAIN_AT]
        + _NO_CHAIN
        + header[_BODY_CRC_AT:]
    )


def whole_entry(
    body: bytes, kind: int, before: ChainLink, term: int, position: int
) -> tuple[bytes, ChainLink]:
    """Return an entry that follows the one of the link `before`, and its own link.

    Computes both CRCs. One of the hot functions of an append: the header is packed once, behind the
    chain CRC before it and with chain CRC 0, and the CRC over both is put in afterwards.
    """
    index, body_size_bytes, body_crc = before.entry_index + 1, len(body), crc32c(body)
    size_bytes = body_size_bytes + 48
    chained = _pack_chained(
        before.chain_crc, 1, size_bytes, index, term, position, kind, 0, body_crc, body_size_bytes
    )
    chain_crc = crc32c(chained)
    data = chained[4:40] + _pack_chain(chain_crc) + chained[44:] + body
    return data, _new_tuple(ChainLink, (index, term, chain_crc))


def place_entry(end_position: int, size_bytes: int, file_size_bytes: int) -> int:
    """Return where the next entry goes: at the end of the log, or in the next file.

    Sizes alone decide (an entry and room for a blank must fit), so all replicas agree.
    """
    file_end_position = file_end(end_position, file_size_bytes)
    fits = end_position + size_bytes + fmt.BLANK_SIZE_BYTES_MIN <= file_end_position
    return end_position if fits else file_end_position


def file_end(position: int, file_size_bytes: int) -> int:
    """Return the end of the file that holds `position`."""
    return (position // file_size_bytes + 1) * file_size_bytes


def check_run(data: bytes, position: int, link: ChainLink, *, file_end_position: int) -> Run:
    """Check the entries that lie back to back in `data`, whose first byte is at `position`.

    Magic, sizes, index, term order, position, kind, chain, body CRC; and that each entry leaves
    room for a blank before the end of its file. `link` is the entry before.
    """
    at, hi = 0, len(data)
    index, term, chain_crc = link
    previous = chain_crc.to_bytes(4, "big")
    end_max = file_end_position - position - fmt.BLANK_SIZE_BYTES_MIN
    unpack, pack_unit, magic_1 = fmt.ENTRY_HEADER.unpack_from, fmt.INDEX_UNIT.pack, fmt.ENTRY_MAGIC
    units: list[bytes] = []
    term_changes: list[tuple[int, int]] = []
    problem: EntryProblem | None = None
    while hi - at >= 48:
        magic, size, own_index, own_term, own_position, kind, chain, body_crc, body_size = unpack(
            data, at
        )
        end = at + size
        if (
            magic != magic_1
            or own_index != index + 1
            or own_position != position + at
            or size != body_size + 48
            or not 0 <= body_size <= _BODY_SIZE_BYTES_MAX
            or end > end_max
            or own_term < term
            or not 0 <= kind <= 2
            or crc32c(previous + data[at : at + 36] + b"\0\0\0\0" + data[at + 40 : at + 48])
            != chain
        ):
            if magic != fmt.ENTRY_MAGIC_BLANK:
                problem = _find_problem(
                    data, at, ChainLink(index, term, chain_crc), position, end_max
                )
            break
        if end > hi:  # The header is good, the body continues beyond `data`.
            break
        if crc32c(data[at + 48 : end]) != body_crc:
            problem = _find_problem(data, at, ChainLink(index, term, chain_crc), position, end_max)
            break
        previous, chain_crc, index = data[at + 36 : at + 40], chain, own_index
        if own_term != term:
            term = own_term
            term_changes.append((index, term))
        units.append(pack_unit(magic_1, own_position, size, index, term))
        at = end
    is_blank = hi - at >= 8 and data[at : at + 4] == b"\xff\xff\xff\xff"
    return Run(
        at, ChainLink(index, term, chain_crc), b"".join(units), term_changes, is_blank, problem
    )


def check_blank(data: bytes) -> EntryProblem | None:
    """Check that `data`, all bytes from the last entry to the end of its file, is a blank.

    i4 -1, i4 size of the remainder, and zeros: each byte is determined, so each flip is seen.
    """
    size_bytes = len(data)
    if size_bytes < fmt.BLANK_SIZE_BYTES_MIN:
        return EntryProblem(
            0, "blank", f"{fmt.BLANK_SIZE_BYTES_MIN} bytes or more", f"{size_bytes}"
        )
    magic, found_size_bytes = fmt.ENTRY_BLANK.unpack_from(data)
    if magic != fmt.ENTRY_MAGIC_BLANK:
        return EntryProblem(0, "magic", str(fmt.ENTRY_MAGIC_BLANK), str(magic))
    if found_size_bytes != size_bytes:
        return EntryProblem(_SIZE_AT, "blank size", str(size_bytes), str(found_size_bytes))
    return check_zeros(data, fmt.ENTRY_BLANK.size, field="pad")


def check_zeros(data: bytes, lo: int = 0, *, field: str = "unused byte") -> EntryProblem | None:
    """Check that all bytes from `lo` on are zero."""
    if data[lo:] == bytes(len(data) - lo):  # Much faster than looking for a byte that differs.
        return None
    rest = data[lo:].lstrip(b"\0")
    return EntryProblem(len(data) - len(rest), field, "0", str(rest[0]))


def _find_problem(
    data: bytes, at: int, link: ChainLink, position: int, end_max: int
) -> EntryProblem:
    """Return what is wrong with the entry at `at`. The readable twin of the loop above."""
    header = unpack_header(data, at)
    size_max = min(fmt.ENTRY_SIZE_BYTES_MAX, end_max - at)
    limits = f"{_HEADER} to {size_max}"
    index, own_position = link.entry_index + 1, position + at
    chain_crc = chain_of(link.chain_crc, data[at : at + _HEADER])
    body_crc = crc32c(data[at + _HEADER : at + max(header.size_bytes, 0)])
    size_bytes = header.body_size_bytes + _HEADER
    checks: tuple[tuple[bool, int, str, str | int, str | int], ...] = (
        (header.magic == fmt.ENTRY_MAGIC, 0, "magic", fmt.ENTRY_MAGIC, header.magic),
        (header.entry_index == index, _INDEX_AT, "index", index, header.entry_index),
        (header.position == own_position, _POSITION_AT, "position", own_position, header.position),
        (header.size_bytes == size_bytes, _SIZE_AT, "size", size_bytes, header.size_bytes),
        (_HEADER <= header.size_bytes <= size_max, _SIZE_AT, "size", limits, header.size_bytes),
        (header.term >= link.term, _TERM_AT, "term", f"{link.term} or more", header.term),
        (header.kind in KINDS, _KIND_AT, "kind", f"one of {KINDS}", header.kind),
        (header.chain_crc == chain_crc, _CHAIN_AT, "chain CRC", chain_crc, header.chain_crc),
        (header.body_crc == body_crc, _BODY_CRC_AT, "body CRC", body_crc, header.body_crc),
    )
    for is_good, field_at, field, expected, found in checks:
        if not is_good:
            form = "08X" if field.endswith("CRC") else ""
            return EntryProblem(at + field_at, field, format(expected, form), format(found, form))
    raise AssertionError(f"position {position + at}: the fast check and the exact one differ")
