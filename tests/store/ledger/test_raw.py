"""Raw entries from a leader: what a follower takes, and all that it refuses."""

from pathlib import Path
from random import Random

import pytest

from store import format as fmt
from store.errors import (
    ForeignEntryError,
    PositionRangeError,
    StoreFullError,
)
from store.files import failpoints
from store.files.checksum import crc32c
from store.ledger.entry import (
    KIND_CONFIGURATION,
    KIND_DATA,
    KIND_NO_OP,
    NO_LINK,
    ChainLink,
    whole_entry,
)
from store.ledger.ledger import Ledger
from store.ledger.raw import check_entries
from tests.store.entries import encode_entry
from tests.store.ledgers import (
    FILE,
    add,
    append_raw,
    grow,
    image,
    new_ledger,
    ship,
)
from tests.store.overwrites import bit_flips


def changed(raw: bytes, change: dict[str, int]) -> bytes:
    """An entry with other values in fields of its header."""
    names = ("magic", "size", "index", "term", "position", "kind", "chain", "crc", "body_size")
    values = dict(zip(names, fmt.ENTRY_HEADER.unpack_from(raw), strict=True)) | change
    return fmt.ENTRY_HEADER.pack(*values.values()) + raw[48:]


def test_a_raw_run_may_fill_several_index_files(ledger: Ledger, tmp_path: Path) -> None:
    for _ in range(1000):
        ledger.append_entry(KIND_NO_OP, 1, b"")
    follower = new_ledger(tmp_path / "follower")
    raw = ledger.read_range(0, 1000, FILE)
    with failpoints.armed("fs.allocate=ENOSPC@4"):
        with pytest.raises(StoreFullError):
            append_raw(follower, raw)
        assert (follower.last_index, follower.max_position) == (-1, 0)
    assert append_raw(follower, raw) == (0, 999)
    assert len(follower.index.files.files) == 8
    assert image(tmp_path / "follower") == image(tmp_path)


@pytest.mark.parametrize("call", [2, 3])
def test_raw_entries_without_room_for_all_their_files_leave_the_log_as_it_was(
    ledger: Ledger, tmp_path: Path, call: int
) -> None:
    """A part of them would be in the log, and whoever shipped them was told that nothing is."""
    grow(ledger, Random(2), 2 * FILE)
    follower = new_ledger(tmp_path / "follower")
    raw = ledger.read_entries(0, ledger.last_index + 1)
    with failpoints.armed(f"fs.allocate=ENOSPC@{call}"), pytest.raises(StoreFullError):
        append_raw(follower, raw)
    assert (follower.last_index, follower.max_position) == (-1, 0)
    assert append_raw(follower, raw) == (0, ledger.last_index)
    assert image(tmp_path / "follower") == image(tmp_path)


def test_a_follower_refuses_every_flipped_bit_and_writes_nothing(
    ledger: Ledger, tmp_path: Path
) -> None:
    add(ledger, 2, records=1, size_bytes=10)
    ledger.append_entry(KIND_CONFIGURATION, 2, b"xy")
    follower = new_ledger(tmp_path / "follower")
    raw = ledger.read_range(0, 3, FILE)
    before = image(tmp_path / "follower")
    for _, bad in bit_flips(raw):
        with pytest.raises(ForeignEntryError):
            append_raw(follower, bad)
    assert image(tmp_path / "follower") == before
    assert append_raw(follower, raw) == (0, 2)


def test_an_entry_that_comes_alone_is_refused_with_any_bit_flipped(
    ledger: Ledger, tmp_path: Path
) -> None:
    """Such a one goes a short way, and what it finds wrong is told by the general one."""
    add(ledger)
    add(ledger, 1, records=1, size_bytes=10)
    follower = new_ledger(tmp_path / "follower")
    append_raw(follower, ledger.read_range(0, 1, FILE))
    raw = ledger.read_range(1, 2, 1)
    for _, bad in bit_flips(raw):
        with pytest.raises(ForeignEntryError):
            append_raw(follower, bad)
    for cut in range(len(raw)):
        with pytest.raises(ForeignEntryError):
            append_raw(follower, raw[:cut])
    assert append_raw(follower, raw) == (1, 1)
    with pytest.raises(ForeignEntryError):
        append_raw(follower, raw)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({}, ""),
        ({"magic": 2}, "magic"),
        ({"index": 3}, "index"),
        ({"term": 0}, "term"),
        ({"position": 0}, "position"),
        ({"kind": 3}, "kind"),
        ({"kind": -1}, "kind"),
        ({"body_size": 5}, "size"),
        ({"size": 52}, "size"),
    ],
)
def test_an_entry_that_comes_alone_with_right_checksums_is_not_believed(
    ledger: Ledger, tmp_path: Path, change: dict[str, int], field: str
) -> None:
    """Whoever sends entries can compute checksums: each field is compared by itself."""
    add(ledger)
    follower = new_ledger(tmp_path / "follower")
    ship(ledger, follower)
    add(ledger, records=1)
    raw = ledger.read_range(1, 2, FILE)
    header = changed(raw, change | {"chain": 0})[:48]
    chain = crc32c(follower.tail.link.chain_crc.to_bytes(4, "big") + header)
    made = changed(raw, change | {"chain": chain})
    if not field:
        assert made == raw
        assert append_raw(follower, made) == (1, 1)
    else:
        with pytest.raises(ForeignEntryError) as caught:
            append_raw(follower, made)
        assert caught.value.field == field
        assert follower.last_index == 0


@pytest.mark.parametrize("end", [0, 96, 3 * FILE + 96])
def test_an_entry_that_comes_alone_leaves_room_for_a_blank(end: int) -> None:
    link = NO_LINK._replace(term=1)
    for left in (fmt.BLANK_SIZE_BYTES_MIN, fmt.BLANK_SIZE_BYTES_MIN - 1):
        data, _ = whole_entry(bytes(FILE - end % FILE - 48 - left), KIND_DATA, link, 1, end)
        if left == fmt.BLANK_SIZE_BYTES_MIN:
            assert check_entries(data, end, link, FILE).hi_index == 1
        else:
            with pytest.raises(ForeignEntryError):
                check_entries(data, end, link, FILE)


def test_an_entry_that_comes_alone_is_not_larger_than_entries_are() -> None:
    file_size_bytes = 4 * fmt.ENTRY_SIZE_BYTES_MAX
    link = NO_LINK._replace(term=1)
    for more in (0, 1):
        body = bytes(fmt.ENTRY_SIZE_BYTES_MAX - 48 + more)
        data, _ = whole_entry(body, KIND_DATA, link, 1, 0)
        if not more:
            assert check_entries(data, 0, link, file_size_bytes).hi_index == 1
        else:
            with pytest.raises(ForeignEntryError):
                check_entries(data, 0, link, file_size_bytes)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"magic": -1}, "entry"),
        ({"magic": 2}, "magic"),
        ({"index": 3}, "index"),
        ({"term": 0}, "term"),
        ({"position": 0}, "position"),
        ({"kind": 3}, "kind"),
        ({"chain": 1}, "chain CRC"),
        ({"crc": 1}, "chain CRC"),
        ({"size": 52}, "size"),
        ({"size": -5}, "size"),
        ({"size": 1 << 30, "body_size": (1 << 30) - 48}, "size"),
    ],
)
def test_a_follower_names_what_does_not_fit(
    ledger: Ledger, tmp_path: Path, change: dict[str, int], field: str
) -> None:
    add(ledger)
    follower = new_ledger(tmp_path / "follower")
    ship(ledger, follower)
    ledger.append_entry(KIND_NO_OP, 1, b"abc")
    raw = ledger.read_range(1, 2, FILE)
    with pytest.raises(ForeignEntryError) as caught:
        append_raw(follower, changed(raw, change))
    assert (caught.value.field, caught.value.index) == (field, 1)
    for cut in (b"", raw[:47], raw[:-1], raw + raw[:10]):
        with pytest.raises(ForeignEntryError):
            append_raw(follower, cut)
    assert append_raw(follower, raw) == (1, 1)


def test_a_follower_refuses_a_blank_that_was_not_due(ledger: Ledger) -> None:
    """Sizes alone decide where an entry goes, so a leader that rolls early is wrong."""
    add(ledger)
    link = ChainLink(0, 1, ledger.tail.link.chain_crc)
    with pytest.raises(ForeignEntryError, match="position"):
        append_raw(ledger, encode_entry(KIND_NO_OP, link, FILE, b"small"))
    big = bytes(FILE - 48 - 8)
    with pytest.raises(ForeignEntryError, match="position"):
        append_raw(ledger, encode_entry(KIND_NO_OP, link, ledger.max_position, big))
    assert append_raw(ledger, encode_entry(KIND_NO_OP, link, FILE, big)) == (1, 1)


def test_a_range_lies_in_one_file_and_holds_one_entry_at_least(ledger: Ledger) -> None:
    grow(ledger, Random(3), 3 * FILE)
    last = ledger.last_index
    ends = [ledger.header(n).position + ledger.header(n).size_bytes for n in range(last + 1)]
    for lo in range(0, last + 1, 7):
        for hi in (lo + 1, lo + 5, last + 1, last + 100):
            for limit in (0, 500, 3000, 10 * FILE):
                entry_range = ledger.range_of(lo, hi, limit)
                start = ledger.position_of(lo)
                fits = [
                    n
                    for n in range(lo + 1, min(hi, last + 1))
                    if ends[n] <= min(start + limit, (start // FILE + 1) * FILE)
                ]
                assert entry_range.hi_index == max([lo, *fits]) + 1
                assert (entry_range.position, entry_range.size_bytes) == (
                    start,
                    ends[entry_range.hi_index - 1] - start,
                )
    with pytest.raises(PositionRangeError):
        ledger.read_range(last + 1, last + 2, FILE)
