"""Damage at rest: reads that return other data than was written, and their detection.

Owns the two kinds of damage (a flipped bit, an old sector), the check of reads, and the walk of a
starting node over its log. Must not know where good copies come from; `repair` does. The images
keep the true entries, for the referees; `bad` is what the disk returns, and code that stands for
the store believes only the entries it reads and a digest proves.

A node knows one thing about its log that the log itself does not contain: that everything up to
some index was committed, and the digest there. Damage up to that index is fetched again, never cut.
A damaged entry above it may be one this node acked, so the rest is cut and the node is in doubt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from raft.messages import Index, Term
from raft.ready import EntryKind
from simulation.raft.disk.image import DirectoryEntry, DiskImage, chain_of


class DamagedError(Exception):
    """A running process read an entry that fails its check: it has to end before it is used."""

    def __init__(self, disk: object, index: Index) -> None:
        super().__init__(index)
        self.disk = disk


class SimulatedDamage(NamedTuple):
    """Entries [lo, hi) are lost here, between the digests `before` and `after`."""

    lo: Index
    hi: Index
    before: int
    after: int


Bad = dict[Index, DirectoryEntry]


def flipped(entry: DirectoryEntry, number: int) -> DirectoryEntry:
    """Return an entry with one bit changed: in its body, its term or its digest."""
    kind = number % 3
    bit = 1 << number // 3 % 16
    if kind == 0:
        return entry._replace(body=(entry.index + 1) << 20 ^ bit)
    if kind == 1:
        return entry._replace(term=entry.term ^ bit)
    return entry._replace(chain=entry.chain ^ bit)


def zeroed() -> DirectoryEntry:
    """Return the result of reading a sector that was never written."""
    return DirectoryEntry(0, 0, EntryKind.DATA, None, 0, 0)


def is_sound(entry: DirectoryEntry, index: Index) -> bool:
    """Whether an entry is whole, and of this place: all that it can prove alone."""
    digest = chain_of(entry.previous_chain, entry.term, entry.kind, entry.body)
    return entry.index == index and entry.chain == digest


def check_read(entry: DirectoryEntry, index: Index, term: Term) -> bool:
    """Whether a running node may use a read entry: it knows the terms of its log."""
    return is_sound(entry, index) and entry.term == term


def is_chain(entries: Sequence[DirectoryEntry], wanted: SimulatedDamage) -> bool:
    """Whether these are exactly the entries of a range, proven by both its ends."""
    chain = wanted.before
    for index, entry in enumerate(entries, wanted.lo):
        if not is_sound(entry, index) or entry.previous_chain != chain:
            return False
        chain = entry.chain
    return len(entries) == wanted.hi - wanted.lo and chain == wanted.after


def read_at(image: DiskImage, bad: Bad, index: Index) -> DirectoryEntry:
    """Return the entry that the disk returns for an index that should be there."""
    found = bad.get(index)
    return found if found is not None else image.entries[index - image.base_index - 1]


def _chain_before(image: DiskImage, bad: Bad, index: Index) -> int:
    if index - 1 == image.base_index:
        return image.base_chain
    return read_at(image, bad, index - 1).chain


def _walk(image: DiskImage, bad: Bad, lo: Index, hi: Index, chain: int) -> Index:
    """Return the first entry of [lo, hi) that does not continue `chain`, or `hi`."""
    for index in range(lo, hi):
        entry = read_at(image, bad, index)
        if not is_sound(entry, index) or entry.previous_chain != chain:
            return index
        chain = entry.chain
    return hi


def damaged_tail(image: DiskImage, bad: Bad) -> Index | None:
    """Return the first damaged entry above the known commit index, if any."""
    known, chain = image.known_commit()
    end = image.last_index + 1
    first = _walk(image, bad, known + 1, end, chain)
    return first if first < end else None


def damaged_range(image: DiskImage, bad: Bad) -> SimulatedDamage | None:
    """Return the first damaged range up to the known commit index, if any."""
    known, known_chain = image.known_commit()
    lo = _walk(image, bad, image.base_index + 1, known + 1, image.base_chain)
    if lo > known:
        if _chain_before(image, bad, known + 1) == known_chain:
            return None
        lo = known  # All entries chain, but to another history: an old tail came back.
    hi = lo + 1
    while hi <= known and not is_sound(read_at(image, bad, hi), hi):
        hi += 1
    return _bounded(image, bad, lo, hi)


def widened(image: DiskImage, bad: Bad, damage: SimulatedDamage, count: int) -> SimulatedDamage:
    """Return a range with `count` more entries on each side.

    Old sectors may chain to the entries before them; then no peer has an entry that follows them,
    and more has to be fetched than looked damaged."""
    known, _ = image.known_commit()
    lo = max(image.base_index + 1, damage.lo - count)
    return _bounded(image, bad, lo, min(known + 1, damage.hi + count))


def _bounded(image: DiskImage, bad: Bad, lo: Index, hi: Index) -> SimulatedDamage:
    known, known_chain = image.known_commit()
    after = known_chain if hi > known else read_at(image, bad, hi).previous_chain
    return SimulatedDamage(lo, hi, _chain_before(image, bad, lo), after)
