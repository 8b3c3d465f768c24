"""A set of queue offsets that only grows, and mostly from below: the offsets that are done.

Owns its form in memory and in images; must not know what they stand for. Everything below the floor
is in it. Above the floor there is one bit an offset, in chunks; chunks that are full are kept as
runs. So a million offsets that are left in any order cost 125 KB, and one that stays behind for
days costs its own chunk, however many pass it by.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

CHUNK_OFFSETS: Final = 4_096
_FULL_BITS: Final = (1 << CHUNK_OFFSETS) - 1
Runs = list[tuple[int, int]]
"""Half-open ranges of offsets, ascending, without gaps of 0."""


class OffsetSet:
    """The set of one queue."""

    __slots__ = ("_chunks", "_frozen", "_full_his", "_full_los", "count", "floor")

    def __init__(self) -> None:
        self.floor = 0
        """The lowest offset that is not in the set."""
        self.count = 0
        """Count of offsets in the set, those below the floor included."""
        self._chunks: dict[int, int] = {}
        """Bits by number of a chunk that is not below the floor and only partly in the set."""
        self._full_los: list[int] = []
        self._full_his: list[int] = []
        """Runs of numbers of full chunks, half-open, ascending, apart."""
        self._frozen: dict[int, str] = {}
        """Texts for images; a chunk that changed since has none."""

    def __contains__(self, offset: int) -> bool:
        if offset < self.floor:
            return True
        number, at = divmod(offset, CHUNK_OFFSETS)
        return bool(self._bits(number) >> at & 1)

    def _bits(self, number: int) -> int:
        bits = self._chunks.get(number)
        if bits is None:
            run = bisect_right(self._full_los, number) - 1
            bits = _FULL_BITS if run >= 0 and number < self._full_his[run] else 0
        return bits

    def next_left(self, offset: int) -> int:
        """Return the first offset that is not in the set, from one on."""
        number, at = divmod(max(offset, self.floor), CHUNK_OFFSETS)
        bits = self._bits(number) >> at
        while bits == _FULL_BITS >> at:
            run = bisect_right(self._full_los, number) - 1
            is_full = run >= 0 and number < self._full_his[run]
            number, at = self._full_his[run] if is_full else number + 1, 0
            bits = self._bits(number)
        return number * CHUNK_OFFSETS + at + (~bits & bits + 1).bit_length() - 1

    def has_any(self, lo: int, hi: int) -> bool:
        """Whether an offset of [lo, hi) is in the set."""
        if lo < self.floor:
            return True
        if hi - lo == 1:  # The usual case: messages come in any order.
            return lo in self
        return any(self._bits(number) & mask for number, mask in _masks(lo, hi))

    def add(self, lo: int, hi: int) -> None:
        """Add the offsets [lo, hi), none of which is in the set."""
        assert 0 <= lo < hi, f"[{lo}, {hi})"
        if hi - lo == 1:
            masks: Iterable[tuple[int, int]] = ((lo // CHUNK_OFFSETS, 1 << lo % CHUNK_OFFSETS),)
        else:
            masks = _masks(lo, hi)
        for number, mask in masks:
            bits = self._bits(number)
            assert not bits & mask, f"chunk {number}: {bits & mask:x} is there already"
            bits |= mask
            self._frozen.pop(number, None)
            if bits == _FULL_BITS:
                self._chunks.pop(number, None)
                self._add_full(number)
            else:
                self._chunks[number] = bits
        self.count += hi - lo
        if lo == self.floor:
            self._raise_floor()

    def _add_full(self, number: int) -> None:
        los, his = self._full_los, self._full_his
        run = bisect_right(los, number)
        if run and his[run - 1] == number:
            his[run - 1] += 1
            run -= 1
        else:
            los.insert(run, number)
            his.insert(run, number + 1)
        if run + 1 < len(los) and los[run + 1] == his[run]:
            his[run] = his.pop(run + 1)
            del los[run + 1]

    def _raise_floor(self) -> None:
        number = self.floor // CHUNK_OFFSETS
        if self._full_los and self._full_los[0] == number:
            number = self._full_his.pop(0)
            del self._full_los[0]
        bits = self._chunks.get(number, 0)
        self.floor = number * CHUNK_OFFSETS + ((bits + 1) & ~bits).bit_length() - 1

    def content(self) -> dict[str, Any]:
        """Return the set as JSON values that are not changed later."""
        frozen = self._frozen
        for number, bits in self._chunks.items():
            if number not in frozen:
                frozen[number] = f"{bits:x}"
        chunks = {str(number): frozen[number] for number in sorted(frozen)}
        full = [list(run) for run in zip(self._full_los, self._full_his, strict=True)]
        return {"floor": self.floor, "count": self.count, "chunks": chunks, "full": full}

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "OffsetSet":
        """Return the set of a `content`. Raises ValueError, KeyError or TypeError."""
        made = cls()
        made.floor, made.count = int(content["floor"]), int(content["count"])
        for number, text in content["chunks"].items():
            bits = int(text, 16)
            if not 0 < bits < _FULL_BITS:
                raise ValueError(f"chunk {number} has bits of no chunk")
            made._chunks[int(number)] = bits
        for lo, hi in content["full"]:
            made._full_los.append(int(lo))
            made._full_his.append(int(hi))
        return made

    @classmethod
    def below(cls, floor: int) -> "OffsetSet":
        """Return the set of all offsets below a floor."""
        lower = cls()
        if floor > 0:
            lower.count = floor
            lower.floor = floor
            number, at = divmod(floor, CHUNK_OFFSETS)
            if at:
                lower._chunks[number] = (1 << at) - 1
        return lower


def _masks(lo: int, hi: int) -> Iterator[tuple[int, int]]:
    """Yield (chunk number, bits) of a range."""
    while lo < hi:
        number, at = divmod(lo, CHUNK_OFFSETS)
        count = min(hi - lo, CHUNK_OFFSETS - at)
        yield number, ((1 << count) - 1) << at
        lo += count


def encode_runs(offsets: Iterable[int]) -> list[int]:
    """Return ascending offsets as counts in turn: offsets passed over, then offsets taken."""
    flat: list[int] = []
    lo = hi = 0
    for offset in offsets:
        if offset == hi and flat:
            flat[-1] += 1
        else:
            flat += (offset - hi, 1)
        lo, hi = offset, offset + 1
        assert lo >= 0, f"offset {lo}"
    return flat


def decode_runs(flat: Iterable[int]) -> Runs | None:
    """Return the ranges of a result of `encode_runs`; None if it cannot be one."""
    runs: Runs = []
    values = list(flat)
    if not values or len(values) % 2:
        return None
    at = 0
    for skip, count in zip(values[0::2], values[1::2], strict=True):
        if not count or (runs and not skip):
            return None
        runs.append((at + skip, at + skip + count))
        at += skip + count
    return runs
