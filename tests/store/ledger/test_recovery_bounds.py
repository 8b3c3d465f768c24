"""S05 and S16: what is above the durable mark may be cut, what is below it never is."""

import struct
from pathlib import Path
from random import Random

import pytest

from store.errors import CorruptionError
from store.ledger.entry import KIND_NO_OP, ChainLink
from store.ledger.ledger import Ledger
from tests.store.entries import encode_entry
from tests.store.ledgers import (
    FILE,
    add,
    copy_ledger,
    data_file,
    grow,
    image,
    new_ledger,
    open_ledger,
)
from tests.store.overwrites import overwrite


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A log of five entries in one file, and where each begins; the last element is the end."""
    root = tmp_path_factory.mktemp("five")
    ledger = new_ledger(root)
    begins = [0, *(add(ledger, records=2) for _ in range(5))]
    ledger.close()
    return root, begins


DAMAGE = {  # Field: (byte of the entry, what is written there).
    "magic": (0, b"\0\0\0\0"),
    "size": (4, b"\0\0\1\0"),
    "index": (8, struct.pack(">q", 9)),
    "term": (16, struct.pack(">q", -1)),
    "position": (24, struct.pack(">q", 17)),
    "kind": (32, b"\0\0\0\7"),
    "chain CRC": (36, b"ABCD"),
    "body CRC": (60, b"flip"),
}


@pytest.mark.parametrize("field", DAMAGE)
@pytest.mark.parametrize("number", [0, 2, 4])
def test_torn_tail_vs_corruption(
    tmp_path: Path, five: tuple[Path, list[int]], number: int, field: str
) -> None:
    """S05, D7: the same damage is a torn tail above the mark and corruption below it."""
    source, begins = five
    copy_ledger(source, tmp_path)
    path, at = data_file(tmp_path), begins[number]
    good = path.read_bytes()
    offset, wrong = DAMAGE[field]
    bad = good[: at + offset] + wrong + good[at + offset + len(wrong) :]
    path.write_bytes(bad)
    before = image(tmp_path)
    for mark, index in ((begins[number] + 1, -1), (begins[number + 1], number), (0, number)):
        with pytest.raises(CorruptionError) as caught:
            open_ledger(tmp_path, mark, durable_index=index)
        error = caught.value
        assert (error.path, error.field) == (str(path), field)
        assert at <= error.at < at + 48
        assert error.expected != error.actual
        assert image(tmp_path) == before, "the evidence is kept"
    ledger, report = open_ledger(tmp_path, at, durable_index=number - 1)
    assert (ledger.last_index, ledger.max_position) == (number - 1, at)
    assert (report.first_cut_index, report.cut_size_bytes) == (number, begins[-1] - at)
    assert field in report.cut_reason
    ledger.close()
    assert path.read_bytes() == good[:at] + bytes(FILE - at)


def test_damage_in_a_blank_is_corruption_below_the_mark_and_a_tail_above(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path / "a")
    grow(ledger, Random(1), FILE + 1)
    last = ledger.last_index
    before = ledger.header(last - 1)
    lo = before.position + before.size_bytes
    ledger.close()
    path = data_file(tmp_path / "a")
    for at, field in ((lo, "magic"), (lo + 5, "blank size"), (lo + 9, "pad"), (FILE - 1, "pad")):
        target = tmp_path / f"{at}"
        copy_ledger(tmp_path / "a", target)
        bad = bytearray(path.read_bytes())
        bad[at] ^= 0x40
        data_file(target).write_bytes(bad)
        with pytest.raises(CorruptionError) as caught:
            open_ledger(target, lo + 1)
        assert (caught.value.path, caught.value.field) == (str(data_file(target)), field)
        assert caught.value.at == (lo + 4 if field == "blank size" else at if at > lo else lo)
        ledger, report = open_ledger(target, lo)
        assert (ledger.max_position, report.first_cut_index) == (lo, last)
        assert len(ledger.files.files) == 1
        ledger.close()


def test_too_few_bytes_are_corruption_too(tmp_path: Path, five: tuple[Path, list[int]]) -> None:
    copy_ledger(five[0], tmp_path)
    end = five[1][-1]
    with pytest.raises(CorruptionError, match="magic is 0, expected 1"):
        open_ledger(tmp_path, end + 1)
    with pytest.raises(CorruptionError):
        open_ledger(tmp_path, end, durable_index=5)
    for path in (tmp_path / "dledger-n0" / "data").iterdir():
        path.unlink()
    with pytest.raises(CorruptionError, match=r"log end .*expected bytes up to 1"):
        open_ledger(tmp_path, 1)
    with pytest.raises(CorruptionError, match=r"log end .*entries up to 4"):
        open_ledger(tmp_path, 0, durable_index=4)
    ledger, _ = open_ledger(tmp_path, 0)
    assert ledger.last_index == -1


def _revive(ledger: Ledger, old: bytes) -> None:
    """Put old bytes right behind the end, as if they had never been zeroed."""
    last = ledger.files.files[-1]
    at = ledger.max_position - last.position
    overwrite(last, at, old)


def test_a_stale_entry_that_lines_up_never_chains(ledger: Ledger, tmp_path: Path) -> None:
    """Index, term, position and both sizes fit; only the history is another one."""
    ledger.append_entry(KIND_NO_OP, 1, b"aaaa")
    ledger.append_entry(KIND_NO_OP, 1, b"bbbb")
    old = ledger.read_range(1, 2, FILE)
    ledger.truncate_from(0, commit_index=-1)
    ledger.append_entry(KIND_NO_OP, 1, b"AAAA")
    _revive(ledger, old)
    ledger.close()
    ledger, report = open_ledger(tmp_path, 0)
    assert (ledger.last_index, report.cut_size_bytes) == (0, 52)
    assert "chain CRC" in report.cut_reason
    link = ChainLink(0, 1, ledger.tail.link.chain_crc)
    _revive(ledger, encode_entry(KIND_NO_OP, link, ledger.max_position, b"bbbb"))
    ledger.close()
    ledger, _ = open_ledger(tmp_path, 0)
    assert ledger.last_index == 1, "the test can tell: with the right chain it is taken"


@pytest.mark.parametrize("tail", [b"", b"\0\0\0\1", b"\xff" * 300, b"\xff\xff\xff\xff\0\0\1\0"])
@pytest.mark.parametrize("keep", [0, 7, 47, 48, 200])
def test_twice_is_once(
    tmp_path: Path, five: tuple[Path, list[int]], tail: bytes, keep: int
) -> None:
    """S16: the first recovery does all there is to do."""
    source, begins = five
    copy_ledger(source, tmp_path)
    path = data_file(tmp_path)
    path.write_bytes((path.read_bytes()[: begins[3] + keep] + tail).ljust(FILE, b"\0"))
    ledger, first = open_ledger(tmp_path, begins[2])
    ledger.close()
    once = image(tmp_path)
    ledger, second = open_ledger(tmp_path, begins[2])
    ledger.close()
    assert image(tmp_path) == once
    assert (first.end_position, second.end_position) == (begins[3], begins[3])
    assert (second.cut_size_bytes, second.first_cut_index, second.cut_reason) == (0, -1, "")
    assert second.rewritten_unit_count == 0
    assert once[f"data/{0:020d}"] == path.read_bytes()[: begins[3]].ljust(FILE, b"\0")
