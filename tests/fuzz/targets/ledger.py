"""Target of the ledger: raw entries that another replica ships."""

from random import Random
from typing import Final

from store import format as fmt
from store.errors import ForeignEntryError
from store.files.checksum import crc32c
from store.ledger.entry import (
    KINDS,
    ChainLink,
    chain_of,
    file_end,
    place_entry,
    unpack_header,
    whole_entry,
)
from store.ledger.raw import chain_crc_of, check_entries, part_from
from tests.fuzz.target import FuzzTarget, claim

_FILE_SIZE_BYTES: Final = 1_024
_END: Final = 3 * _FILE_SIZE_BYTES + 200
_LINK: Final = ChainLink(9, 3, 0xABCD)
_HEADER: Final = fmt.ENTRY_HEADER_SIZE_BYTES


def _raw(data: bytes) -> None:
    found = check_entries(data, _END, _LINK, _FILE_SIZE_BYTES)
    claim(found.data is data and found.before == _LINK, "other bytes than those that came")
    claim(b"".join(data[p.at : p.hi] for p in found.pieces) == data, "pieces leave bytes out")
    count = 0
    for piece in found.pieces:
        hi = file_end(piece.position, _FILE_SIZE_BYTES)
        size = piece.hi - piece.at
        claim(piece.position + size + fmt.BLANK_SIZE_BYTES_MIN <= hi, "a piece beyond its file")
        count += len(piece.units) // fmt.INDEX_UNIT_SIZE_BYTES
        for _, position, _, index, term in fmt.INDEX_UNIT.iter_unpack(piece.units):
            header = unpack_header(data, piece.at + position - piece.position)
            claim((header.entry_index, header.term) == (index, term), f"unit of {index}")
    claim(found.hi_index == found.first_index + count, f"{count} entries up to {found.hi_index}")
    for index in range(found.first_index, found.hi_index):
        chain_crc_of(found, index)
        piece = next(piece for piece in found.pieces if piece.link.entry_index >= index)
        claim(part_from(found, piece, index)[0] <= piece.hi, "a part beyond its piece")


def _examples(random: Random) -> list[bytes]:
    found = []
    for count in (1, 1, 3, 6):
        link, end, entries = _LINK, _END, b""
        for _ in range(count):
            body = random.randbytes(random.choice((0, 10, 300)))
            position = place_entry(end, _HEADER + len(body), _FILE_SIZE_BYTES)
            term = link.term + random.choice((0, 0, 1))
            kind = random.choice(KINDS)
            entry, link = whole_entry(body, kind, link, term, position)
            end = position + len(entry)
            entries += entry
        found.append(entries)
    return found


def _repaired(data: bytes) -> bytes:
    """Put body checksums and the chain right, as far as the sizes allow."""
    out, at, chain = bytearray(data), 0, _LINK.chain_crc
    while at + _HEADER <= len(out):
        size = int.from_bytes(out[at + 4 : at + 8], "big", signed=True)
        if not _HEADER <= size <= len(out) - at:
            break
        out[at + 40 : at + 44] = crc32c(bytes(out[at + _HEADER : at + size])).to_bytes(4, "big")
        chain = chain_of(chain, bytes(out[at : at + _HEADER]))
        out[at + 36 : at + 40] = chain.to_bytes(4, "big")
        at += size
    return bytes(out)


TARGETS: Final = (
    FuzzTarget(
        "ledger-entries",
        "shipped entries are refused by name, or each of their bytes has its place in a file",
        _raw,
        ("store.ledger.raw", "store.ledger.entry"),
        _examples,
        (ForeignEntryError,),
        repaired=_repaired,
    ),
)
