"""Every bit: turned over one at a time, each gives a finding that names its file and a byte near.

Excluded, because the formats leave it open (see `store.fsck.check`): in a plain log without
property CRC the bytes of `UNPROTECTED`, and in any plain log the blank behind its eight bytes.
A ledger has no such byte. Zeros that nothing is near to get one bit in eight bytes: they are
checked as runs, so one of them is as good as another.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.config import StoreConfig
from store.fsck.check import verify
from store.fsck.layout import GivenSettings
from tests.store.fsck_stores import files_of, findings, fsck_config, given_sizes, make_store

RECORD_COUNT = 12
# Of a V1 record with IPv4 hosts: flag, unused bits of the sys flag, born time and host, store host,
# reconsume times, prepared position. The store time is in the key index, to the second.
UNPROTECTED = {*range(16, 20), *range(36, 40), *range(40, 56), *range(56, 76), *range(76, 84)}


def bits_of(data: bytes) -> Iterator[int]:
    """All bits of bytes with another one that is not zero near them; of the rest one of 64."""
    for at in range(len(data)):
        if any(data[max(0, at - 8) : at + 9]):
            yield from range(at * 8, at * 8 + 8)
        elif at % 8 == 0:
            yield at * 8 + at // 8 % 8


def undetected(
    root: Path,
    name: str,
    given: GivenSettings,
    *,
    lo: int = 0,
    hi: int | None = None,
    is_place_known: bool = True,
) -> set[int]:
    """Turn over the bits of the bytes [lo, hi), and return the bytes where nothing was found.

    Without `is_place_known` a finding may name another file: the one that does not agree.
    """
    path = root / name
    data = path.read_bytes()
    missed = set()
    fd = os.open(path, os.O_RDWR)
    try:
        for bit in bits_of(data):
            at = bit // 8
            if not lo <= at < (len(data) if hi is None else hi):
                continue
            os.pwrite(fd, bytes([data[at] ^ 1 << bit % 8]), at)
            problems = verify(str(root), given=given)
            if not any(
                not is_place_known or (f.path == name and abs(f.at - at) < 600) for f in problems
            ):
                missed.add(at)
            os.pwrite(fd, data[at : at + 1], at)
    finally:
        os.close(fd)
    assert path.read_bytes() == data
    return missed


def small_store(root: Path, container: str, *, property_crc: bool = False) -> StoreConfig:
    config = fsck_config(container, property_crc=property_crc)
    make_store(root, config, RECORD_COUNT)
    assert findings(root) == []
    return config


@pytest.mark.long
@pytest.mark.parametrize("name", ["data/00000000000000000000", "index/00000000000000000000"])
def test_every_bit_of_a_ledger(tmp_path: Path, name: str) -> None:
    config = small_store(tmp_path, "ledger")
    assert undetected(tmp_path, f"dledger-n0/{name}", given_sizes(config)) == set()


@pytest.mark.long
def test_every_bit_of_what_is_derived(tmp_path: Path) -> None:
    config = small_store(tmp_path, "ledger")
    derived = ("consumequeue/", "index/", "marks")
    names = [name for name in files_of(tmp_path) if name.startswith(derived)]
    assert len(names) == 5  # Two queue files, two index files, the marks.
    given = given_sizes(config)
    for name in names:
        hi = 200 if name == "marks" else None  # The rest is zeros; the second slot is alike.
        assert undetected(tmp_path, name, given, hi=hi) == set(), name


@pytest.mark.long
def test_every_bit_of_a_plain_log_with_property_crc(tmp_path: Path) -> None:
    config = small_store(tmp_path, "commit_log", property_crc=True)
    given = GivenSettings(property_crc=True, file_size_bytes=config.file_size_bytes)
    name = "commitlog/00000000000000000000"
    data = (tmp_path / name).read_bytes()
    blank_at = data.find(b"\xcb\xd4\x31\x94")
    hi = blank_at + 4 if blank_at >= 0 else None
    assert undetected(tmp_path, name, given, hi=hi) == set()


@pytest.mark.long
def test_a_plain_log_without_property_crc_misses_what_is_stated(tmp_path: Path) -> None:
    config = small_store(tmp_path, "commit_log")
    name = "commitlog/00000000000000000000"
    size_bytes = int.from_bytes((tmp_path / name).read_bytes()[:4], "big")
    given = given_sizes(config)
    missed = undetected(tmp_path, name, given, hi=size_bytes, is_place_known=False)
    assert missed <= UNPROTECTED
    assert missed, "the exclusion is not needed"
