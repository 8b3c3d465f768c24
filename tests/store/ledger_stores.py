"""Closed stores with a ledger of several files, their intact copy, and ways to damage them."""

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random

from store.config import StoreConfig
from store.errors import CorruptionError, DamageWiderError
from store.ledger.entry import KIND_NO_OP, ChainLink
from store.ledger.ledger import Ledger
from store.ledger.mending.damage import DamagedRange
from store.replicated.ledger_store import ReplicaStore
from store.replicated.repair import RepairSession, find_damage
from store.store import Store
from tests.store.crash_check import must_not_die
from tests.store.ledgers import image, open_ledger
from tests.store.overwrites import flip, overwrite
from tests.store.records import PAGE, batch, small_config

FILE = 2 * PAGE
CONFIG = small_config(container="ledger", file_size_bytes=FILE, durable_mark_interval_ms=0)
COMMON_COUNT = 20
"""Entries of both logs of a branch."""
_OWN_TERM, _OTHER_TERM = 4, 5


@dataclass
class Spot:
    """Where one entry lies."""

    index: int
    position: int
    size_bytes: int
    term: int

    @property
    def end(self) -> int:
        return self.position + self.size_bytes


@dataclass
class Wreck:
    """A closed store that can be damaged, beside an intact one that serves as the peer."""

    intact: Path
    root: Path
    config: StoreConfig
    spots: list[Spot]
    end_position: int

    def data(self, position: int) -> Path:
        directory = self.root / "dledger-n0" / "data"
        return directory / f"{position // FILE * FILE:020d}"

    def write(self, position: int, data: bytes) -> None:
        overwrite(self.data(position), position % FILE, data)

    def flip(self, position: int, bits: int = 1) -> None:
        flip(self.data(position), position % FILE, bits)

    def renew(self) -> "Wreck":
        """Make it whole, and return it."""
        shutil.rmtree(self.root)
        shutil.copytree(self.intact, self.root)
        return self

    def find(self) -> list[DamagedRange]:
        return find_damage(str(self.root), self.config)

    def raw(self, lo: int, hi: int) -> bytes:
        """The intact entries [lo, hi), back to back, as a peer sends them."""
        parts = []
        for spot in self.spots:
            if not lo <= spot.index < hi:
                continue
            path = self.intact / self.data(spot.position).relative_to(self.root)
            at = spot.position % FILE
            parts.append(path.read_bytes()[at : at + spot.size_bytes])
        return b"".join(parts)

    def heal(self) -> None:
        """Make it equal to the intact one again, so that it can be damaged anew."""
        for path in sorted(self.intact.rglob("*")):
            target = self.root / path.relative_to(self.intact)
            if path.is_file() and (not target.exists() or target.read_bytes() != path.read_bytes()):
                shutil.copyfile(path, target)
        shutil.rmtree(self.root / "damaged", ignore_errors=True)

    def repair(self, *, piece_size_bytes: int = 3000) -> list[DamagedRange]:
        """Find the damage and repair all of it from the intact store; return what was found."""
        first = damage = self.find()
        with peer(self.intact, self.config) as source:
            while damage:
                for damaged in damage:
                    with (
                        contextlib.suppress(CorruptionError),  # It was in a wider one.
                        RepairSession(str(self.root), self.config, damaged) as session,
                    ):
                        fetch(session, source, piece_size_bytes)
                damage = self.find()
        return first

    def is_equal(self) -> bool:
        return image(self.root) == image(self.intact)


def fetch(session: RepairSession, source: Ledger, piece_size_bytes: int = 3000) -> None:
    """Do what a node does: fetch until all is there, and more if the damage is wider."""
    while True:
        while not session.is_complete:
            hi = source.last_index + 1
            if session.damaged.after is not None:
                hi = session.damaged.hi_index
            session.add(source.read_range(session.next_index, hi, piece_size_bytes))
        with contextlib.suppress(DamageWiderError):
            session.finish()
            return


class peer:  # noqa: N801  Used as a function.
    """An open ledger of the intact store, for reading only."""

    def __init__(self, root: Path, config: StoreConfig) -> None:
        self.copy = root.parent / f"{root.name}-peer"
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(root, self.copy)
        self.ledger, _ = open_ledger(self.copy, config=config)

    def __enter__(self) -> Ledger:
        return self.ledger

    def __exit__(self, *_: object) -> None:
        self.ledger.close()


def open_store(root: Path, config: StoreConfig = CONFIG) -> Store:
    return Store.open(str(root), config, maintain=False, on_fatal=must_not_die)


def open_replica(root: Path, config: StoreConfig = CONFIG) -> ReplicaStore:
    return ReplicaStore.open(str(root), config, on_fatal=must_not_die)


def make_wreck(directory: Path, seed: int = 1, *, file_count: int = 5) -> Wreck:
    """Fill several files with entries of all sizes and rising terms; close, and copy."""
    intact, random, number = directory / "intact", Random(seed), 0
    with open_store(intact) as store:
        ledger = store.log
        assert isinstance(ledger, Ledger)
        ledger.term = 1
        while ledger.max_position < (file_count - 1) * FILE + FILE // 2:
            ledger.term += random.random() < 0.1
            if random.random() < 0.2:
                body = random.randbytes(random.randint(0, 30))
                ledger.append_entry(KIND_NO_OP, ledger.term, body)
                continue
            count = random.randint(1, 6)
            store.append(batch(number, number + count, size_bytes=random.randint(10, 400)))
            number += count
        spots = [
            Spot(n, header.position, header.size_bytes, header.term)
            for n in range(ledger.last_index + 1)
            for header in [ledger.header(n)]
        ]
        end_position = ledger.max_position
    root = directory / "wreck"
    shutil.copytree(intact, root)
    return Wreck(intact, root, CONFIG, spots, end_position)


def make_restarted(directory: Path, position: int) -> Wreck:
    """A replica that began behind a snapshot, in the middle of a file or at its end."""
    intact, random = directory / "intact", Random(position)
    store = ReplicaStore.open(str(intact), CONFIG, on_fatal=must_not_die)
    with store:
        ledger = store.ledger
        store.restart(position, ChainLink(99, 3, 0x12345678), {})
        while ledger.max_position < position // FILE * FILE + 3 * FILE:
            store.append_own(KIND_NO_OP, 4, random.randbytes(random.randint(0, 900)))
        headers = [ledger.header(n) for n in range(100, ledger.last_index + 1)]
        end_position = ledger.max_position
        store.engine.flush_service.wait(end_position, 10_000)
    spots = [Spot(h.entry_index, h.position, h.size_bytes, h.term) for h in headers]
    shutil.copytree(intact, directory / "wreck")
    return Wreck(intact, directory / "wreck", CONFIG, spots, end_position)


def make_branch(directory: Path) -> Wreck:
    """Two closed replicas: `intact` is the peer, `root` has a branch of several files, and so has
    its copy `before`. No reader has seen any entry."""
    root, intact, random = directory / "branch", directory / "intact", Random(7)
    with open_replica(root) as store:
        _grow(store, 2, COMMON_COUNT // 2, random)
        _grow(store, _OWN_TERM, COMMON_COUNT // 2, random)
    shutil.copytree(root, intact)
    with open_replica(intact) as store:
        _grow(store, _OTHER_TERM, 60, random)
    with open_replica(root) as store:
        _grow(store, _OWN_TERM, 60, random)
        headers = [store.ledger.header(n) for n in range(store.ledger.last_index + 1)]
        end_position = store.ledger.max_position
    shutil.copytree(root, directory / "before")
    spots = [Spot(h.entry_index, h.position, h.size_bytes, h.term) for h in headers]
    return Wreck(intact, root, CONFIG, spots, end_position)


def _grow(store: ReplicaStore, term: int, count: int, random: Random) -> None:
    for _ in range(count):
        store.append_own(KIND_NO_OP, term, random.randbytes(random.randint(0, 900)))
    assert store.engine.flush_service.wait(store.ledger.max_position, 10_000)
