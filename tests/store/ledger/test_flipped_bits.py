"""S04: there is no bit in a ledger's data files whose flip goes unnoticed."""

from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from store import format as fmt
from store.files.checksum import crc32c
from store.ledger import walk as ledger_walk
from store.ledger.entry import (
    KIND_NO_OP,
    ChainLink,
    EntryProblem,
    Run,
    chain_of,
    check_blank,
    check_run,
    check_zeros,
)
from store.ledger.ledger import Ledger
from tests.store.entries import check_entry
from tests.store.ledger import whole
from tests.store.ledgers import FILE, grow, new_ledger, ship


class Piece(NamedTuple):
    """Bytes [lo, hi) of a file that one pure check is responsible for."""

    lo: int
    hi: int
    kind: str
    link: ChainLink


def split(ledger: Ledger) -> list[Piece]:
    """Cut the first file into its entries and what is not entries."""
    pieces, at, link, rest = [], 0, ledger.start.link, "zeros"
    if ledger.min_position:
        at = ledger.min_position - ledger.files.min_position
        pieces.append(Piece(0, at, "zeros", link))
    base = ledger.files.min_position
    for index in range(ledger.first_index, ledger.last_index + 1):
        header = ledger.header(index)
        if header.position - base >= FILE:
            rest = "blank"
            break
        pieces.append(Piece(at, at + header.size_bytes, "entry", link))
        at += header.size_bytes
        link = ChainLink(index, header.term, header.chain_crc)
    pieces.append(Piece(at, FILE, rest, link))
    return pieces


def check(data: bytes, piece: Piece, base: int) -> EntryProblem | None:
    match piece.kind:
        case "entry":
            position = base + piece.lo
            return check_entry(data, position, piece.link, file_end_position=base + FILE)
        case "blank":
            return check_blank(data)
        case _:
            return check_zeros(data)


def complete_file(root: Path) -> Ledger:
    """A file of many entries of all kinds and a blank; the log goes on behind it."""
    ledger = new_ledger(root)
    grow(ledger, Random(1), FILE + 100)
    return ledger


def active_file(root: Path) -> Ledger:
    """A file that begins with a snapshot's hole and ends with what is not written yet."""
    leader, ledger = complete_file(root / "leader"), new_ledger(root)
    index = leader.last_index // 8
    snapshot = leader.header(index)
    end = snapshot.position + snapshot.size_bytes
    ledger.reset(index + 1, end, snapshot.chain_crc, snapshot.term)
    leader.truncate_from(leader.last_index_before(FILE - 9000), commit_index=0)
    ship(leader, ledger)
    leader.close()
    return ledger


@pytest.mark.parametrize(
    ("make", "bits"),
    [
        # The gate flips one bit of each byte, another one from byte to byte.
        *((make, 1) for make in (complete_file, active_file)),
        *(pytest.param(m, 8, marks=pytest.mark.long) for m in (complete_file, active_file)),
    ],
)
def test_every_bit_flip_is_detected(
    tmp_path: Path, make: Callable[[Path], Ledger], bits: int
) -> None:
    """All 65,536 bytes of a file, each by the check of the piece that it lies in."""
    ledger = make(tmp_path)
    base = ledger.files.min_position
    file, pieces = ledger.files.files[0].read_any(base, FILE), split(ledger)
    ledger.close()
    assert [p.lo for p in pieces] == [0, *(p.hi for p in pieces[:-1])]
    assert pieces[-1].hi == FILE
    kinds = ["entry", "blank"] if make is complete_file else ["zeros", "entry", "zeros"]
    assert [kind for kind, _ in groupby(p.kind for p in pieces)] == kinds
    flips = 0
    for piece in pieces:
        good = file[piece.lo : piece.hi]
        assert check(good, piece, base) is None
        for at in range(len(good)):
            head, tail, byte = good[:at], good[at + 1 :], good[at]
            for bit in range(8) if bits == 8 else (at % 8,):
                flipped = head + bytes([byte ^ 1 << bit]) + tail
                assert check(flipped, piece, base) is not None, f"byte {piece.lo + at} bit {bit}"
                flips += 1
    assert flips == bits * FILE


@pytest.mark.parametrize("make", [complete_file, active_file])
def test_the_check_of_a_whole_log_hands_every_byte_to_one_pure_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Ledger]
) -> None:
    """What the checks were given, put together, is the files: no byte is left out or doubled."""
    ledger = make(tmp_path)
    seen: list[bytes] = []

    def run(data: bytes, position: int, link: ChainLink, *, file_end_position: int) -> Run:
        checked = check_run(data, position, link, file_end_position=file_end_position)
        assert position == ledger.files.min_position + sum(map(len, seen))
        seen.append(data[: checked.end])
        return checked

    def blank(data: bytes) -> EntryProblem | None:
        seen.append(data)
        return check_blank(data)

    def zeros(data: bytes) -> EntryProblem | None:
        seen.append(data)
        return check_zeros(data)

    monkeypatch.setattr(ledger_walk, "check_run", run)
    monkeypatch.setattr(ledger_walk, "check_blank", blank)
    monkeypatch.setattr(whole, "check_zeros", zeros)
    whole.check_whole(ledger)
    assert b"".join(seen) == b"".join(f.read_any(f.position, FILE) for f in ledger.files.files)
    ledger.close()


def test_a_wrong_link_refuses_a_good_entry(ledger: Ledger) -> None:
    """The chain: an entry is good behind one history only."""
    for _ in range(2):
        ledger.append_entry(KIND_NO_OP, 2, b"x")
    data = ledger.read_range(1, 2, FILE)
    link = ChainLink(0, 2, ledger.chain_crc_at(0))
    at = ledger.position_of(1)
    assert check_entry(data, at, link, file_end_position=FILE) is None
    for wrong, field in (
        (link._replace(chain_crc=link.chain_crc ^ 1), "chain CRC"),
        (link._replace(entry_index=1), "index"),
        (link._replace(term=3), "term"),
    ):
        problem = check_entry(data, at, wrong, file_end_position=FILE)
        assert problem is not None
        assert problem.field == field
    for position, end in ((at + 1, FILE), (at, at + 49 + 7)):
        assert check_entry(data, position, link, file_end_position=end) is not None
    assert check_entry(data, at, link, file_end_position=at + 49 + 8) is None
    ledger.append_entry(KIND_NO_OP, 2, b"y")
    problem = check_entry(ledger.read_range(1, 3, FILE), at, link, file_end_position=FILE)
    assert problem is not None
    assert problem.actual.startswith("2 in"), "two entries are not one"


def test_a_well_chained_entry_whose_two_sizes_differ_is_refused() -> None:
    """Who chains it can be a peer; readers of the body take the second size."""
    body, before = b"abc", ChainLink(4, 2, 77)
    for size_bytes, body_size_bytes in ((51, 2), (52, 3), (50, 3)):
        values = (1, size_bytes, 5, 2, 100, KIND_NO_OP)
        crc = crc32c((body + bytes(9))[: size_bytes - 48])
        header = fmt.ENTRY_HEADER.pack(*values, 0, crc, body_size_bytes)
        header = fmt.ENTRY_HEADER.pack(*values, chain_of(77, header), crc, body_size_bytes)
        run = check_run(header + body + bytes(9), 100, before, file_end_position=FILE)
        assert run.end == 0
        assert run.problem is not None
        assert run.problem.field == "size"
