"""Small ledgers that tests make, and a reader of their files that shares no code with them."""

import struct
from pathlib import Path
from random import Random

from store.config import StoreConfig
from store.files.file_system import FileSystem
from store.ledger.entry import KIND_CONFIGURATION, KIND_NO_OP
from store.ledger.ledger import Ledger
from store.ledger.recovery import LedgerRecoveryReport, recover_ledger
from tests.store.records import BORN, PAGE, batch, small_config

FILE = 16 * PAGE
CONFIG = small_config(container="ledger", file_size_bytes=FILE)


def open_ledger(
    root: Path,
    durable_position: int | None = 0,
    *,
    fs: FileSystem | None = None,
    config: StoreConfig = CONFIG,
) -> tuple[Ledger, LedgerRecoveryReport]:
    """Open, and take up the last term; `durable_position` 0 says that nothing is known."""
    ledger, report = recover_ledger(
        fs or FileSystem(),
        str(root),
        config,
        durable_position=durable_position,
    )
    ledger.term = max(1, ledger.last_term)
    return ledger, report


def new_ledger(root: Path, config: StoreConfig = CONFIG) -> Ledger:
    return open_ledger(root, config=config)[0]


def add(ledger: Ledger, count: int = 1, *, records: int = 3, size_bytes: int = 40) -> int:
    """Append entries of `records` records each; return the end of the log."""
    for _ in range(count):
        lo = ledger.stamper.next_offsets.get((b"orders", 0), 0)
        ledger.append(batch(lo, lo + records, size_bytes=size_bytes), now_unix_ms=BORN)
    return ledger.max_position


def grow(ledger: Ledger, random: Random, end_position: int) -> None:
    """Append entries of all kinds, sizes and rising terms until the log reaches a position."""
    while ledger.max_position < end_position:
        ledger.term += random.random() < 0.1
        if random.random() < 0.2:
            kind = random.choice([KIND_NO_OP, KIND_CONFIGURATION])
            ledger.append_entry(kind, ledger.term, random.randbytes(random.randint(0, 30)))
        else:
            add(ledger, records=random.randint(1, 9), size_bytes=random.randint(10, 700))


def append_raw(ledger: Ledger, data: bytes) -> tuple[int, int]:
    """Append whole entries of another ledger; return the first and the last index."""
    checked = ledger.check_raw(data, ledger.last_index)
    ledger.write_raw(checked, checked.first_index)
    return checked.first_index, ledger.last_index


def ship(leader: Ledger, follower: Ledger, max_size_bytes: int = 5000) -> None:
    """Bring a follower up to its leader."""
    while follower.last_index < leader.last_index:
        lo = follower.last_index + 1
        raw = leader.read_range(lo, leader.last_index + 1, max_size_bytes)
        first, last = append_raw(follower, raw)
        assert (first, last) == (lo, follower.last_index)


def image(root: Path) -> dict[str, bytes]:
    """Every byte below the ledger's directory, by path, except of the start file."""
    top = root / "dledger-n0"
    return {
        str(path.relative_to(top)): path.read_bytes()
        for path in sorted(top.rglob("*"))
        if path.is_file() and not path.name.startswith("start")
    }


def data_file(root: Path, position: int = 0) -> Path:
    return root / "dledger-n0" / "data" / f"{position:020d}"


def index_file(root: Path, position: int = 0) -> Path:
    return root / "dledger-n0" / "index" / f"{position:020d}"


def copy_ledger(source: Path, target: Path) -> None:
    """Copy the files of a ledger as they are on disk."""
    for path in sorted(source.rglob("*")):
        if path.is_file():
            to = target / path.relative_to(source)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(path.read_bytes())


class DLedgerEntry:
    """An entry as DLedger's own decoder sees it: fields in file order, CRCs ignored."""

    def __init__(self, data: bytes, at: int) -> None:
        self.magic, self.size, self.index, self.term = struct.unpack_from(">iiqq", data, at)
        self.pos, self.channel, _chain, _body_crc, length = struct.unpack_from(
            ">qiiii", data, at + 24
        )
        self.body = data[at + 48 : at + 48 + length]
        assert self.size == 48 + length


def read_as_dledger(root: Path, file_size: int = FILE) -> list[DLedgerEntry]:
    """Read data and index files by storage-formats 7.1, 7.2 and 7.4, and by nothing of ours."""
    entries: list[DLedgerEntry] = []
    paths = sorted((root / "dledger-n0" / "data").iterdir())
    units = b"".join(p.read_bytes() for p in sorted((root / "dledger-n0" / "index").iterdir()))
    for number, path in enumerate(paths):
        data, at = path.read_bytes(), 0
        assert path.name == f"{number * file_size:020d}"
        while at < len(data):
            magic, size = struct.unpack_from(">ii", data, at)
            if magic == -1:
                assert size == len(data) - at
                break
            if size == 0:
                return entries
            entry = DLedgerEntry(data, at)
            assert entry.magic == 1
            assert entry.pos == number * file_size + at
            assert entry.index == len(entries)
            assert not entries or entry.term >= entries[-1].term
            unit = struct.unpack_from(">iqiqq", units, entry.index * 32)
            assert unit == (1, entry.pos, entry.size, entry.index, entry.term)
            entries.append(entry)
            at += size
    return entries
