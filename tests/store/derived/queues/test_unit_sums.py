"""Checksums of a queue's blocks: the same, however the units came."""

import os
from pathlib import Path
from random import Random

import pytest

from store import format as fmt
from store.derived.queues.unit_sums import UnitSums
from store.derived.sum_files import SumFiles

UNITS_PER_FILE = 700
UNIT = fmt.CONSUME_QUEUE_UNIT_SIZE_BYTES


@pytest.mark.parametrize("seed", range(20))
def test_every_block_has_the_sum_of_its_units(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    units = random.randbytes(2_000 * UNIT)
    sums = UnitSums(SumFiles(str(tmp_path), "units"), "orders/0", UNITS_PER_FILE)
    sums.begin(0, 0, b"")
    hi = 0
    while hi < len(units) // UNIT:
        count = random.choice((1, 1, 1, 2, 255, 256, 257, 1_500))
        part = units[hi * UNIT : (hi + count) * UNIT]
        sums.put(part, len(part))
        hi += len(part) // UNIT
        assert sums.tail.hi == hi
        lo = 0
        while lo < hi:
            end = min(sums.block_hi(lo), hi)
            block_sums = sums.expected(lo, sums.tail)
            assert block_sums == sums.sum_of(lo, units[lo * UNIT : end * UNIT]), (lo, end)
            lo = end
        assert sums.tail.lo <= hi


def test_a_last_block_that_nobody_knows_stays_unknown_until_it_is_learned(tmp_path: Path) -> None:
    units = Random(1).randbytes(10 * UNIT)
    sums = UnitSums(SumFiles(str(tmp_path), "units"), "orders/0", UNITS_PER_FILE)
    sums.open(4)
    sums.put(units[4 * UNIT : 5 * UNIT], UNIT)
    assert sums.tail == (0, 5, -1)
    sums.learn(0, 5, units[: 5 * UNIT])
    sums.put(units[5 * UNIT :], 5 * UNIT)
    assert sums.tail[:2] == (0, 10)
    assert sums.expected(0, sums.tail) == sums.sum_of(0, units)


def test_a_write_that_comes_back_short_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums = SumFiles(str(tmp_path), "units")
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:-1], at))
    sums.put("orders/0", 0, 7)
    sums.write()
    assert sums.failed_count == 1
