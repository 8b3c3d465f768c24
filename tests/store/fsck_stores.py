"""Small closed stores for the tests of fsck, with every kind of file in them, and ways to read."""

import shutil
from pathlib import Path

from store.config import StoreConfig
from store.fsck.check import verify
from store.fsck.layout import GivenSettings
from store.fsck.types import Finding
from store.record.message import encode_message
from store.store import Store
from tests.store import overwrites
from tests.store.crash_check import must_not_die
from tests.store.records import BORN, PAGE, numbers, small_config


class Clock:
    """Store time: each batch 700 ms later, so that seconds in the key index differ."""

    def __init__(self) -> None:
        self.unix_ms = BORN

    def __call__(self) -> int:
        return self.unix_ms


def fsck_config(container: str, **changes: object) -> StoreConfig:
    """Files of one page, queue files of 8 units, index files of 12 entries in 5 chains."""
    settings: dict[str, object] = {
        "container": container,
        "file_size_bytes": PAGE,
        "consume_queue_units_per_file": 8,
        "index_slot_count": 5,
        "index_entry_count": 12,
        "ledger_index_units_per_file": 128,
    }
    return small_config(**{**settings, **changes})


def open_store(root: Path, config: StoreConfig, clock: Clock | None = None) -> Store:
    return Store.open(
        str(root), config, maintain=False, now_unix_ms=clock or Clock(), on_fatal=must_not_die
    )


def fill(store: Store, clock: Clock, lo: int, hi: int, *, property_crc: bool = False) -> None:
    """Put the records [lo, hi), two a batch, into two topics of one queue each."""
    for number in range(lo, hi, 2):
        clock.unix_ms += 700
        store.put(
            b"".join(
                encode_message(
                    f"topic{number // 2 % 2}",
                    0,
                    b"%08d" % n,
                    {"TAGS": "a", "KEYS": f"key{n}"},
                    born_unix_ms=BORN,
                    property_crc=property_crc,
                )
                for n in (number, number + 1)
            )
        )


def make_store(root: Path, config: StoreConfig, count: int = 60) -> None:
    """Make a store of `count` records that was closed well."""
    clock = Clock()
    with open_store(root, config, clock) as store:
        fill(store, clock, 0, count, property_crc=config.property_crc)


def findings(root: Path, given: GivenSettings | None = None) -> list[Finding]:
    return list(verify(str(root), given=given))


def contents(root: Path, config: StoreConfig) -> dict[str, list[int]]:
    """Open the store and return the numbers of the records of each topic, by its queue."""
    numbers_by_topic: dict[str, list[int]] = {}
    with open_store(root, config) as store:
        for topic in ("topic0", "topic1"):
            numbers_by_topic[topic] = []
            offset = 0
            while True:
                result = store.pull(topic, 0, offset, max_count=100)
                if not result.record_count:
                    break
                numbers_by_topic[topic] += numbers(result.data)
                offset = result.next_offset
    return numbers_by_topic


def files_of(root: Path) -> list[str]:
    """Name every file whose bytes a check looks at, below the root."""
    names = [str(p.relative_to(root)) for p in sorted(root.rglob("*")) if p.is_file()]
    names = [n for n in names if not n.startswith("checksums/")]  # They decide nothing.
    return [n for n in names if n not in ("lock", "boot_id", "abort")]


def tree(root: Path) -> dict[str, bytes]:
    """Every file with its bytes, without the lock, whose content is who held it last, and without
    the checksums of derived files, which decide nothing."""
    return {
        str(p.relative_to(root)): p.read_bytes()
        for p in sorted(root.rglob("*"))
        if p.is_file() and p.name != "lock" and "checksums" not in p.parts
    }


def flip(path: Path, bit: int) -> None:
    """Turn one bit of a file over."""
    overwrites.flip(path, bit // 8, 1 << bit % 8)


def damage_record(root: Path, number: int) -> str:
    """Flip a bit of the body of a record; return the name of its file."""
    for name in log_files(root):
        at = (root / name).read_bytes().find(b"%08d" % number)
        if at >= 0:
            flip(root / name, at * 8)
            return name
    raise AssertionError(f"there is no record {number}")


def forget_sums(root: Path) -> None:
    """Leave no checksum of a derived file, as another maker of the directory does."""
    for sums in (root / "checksums").rglob("*"):
        if sums.is_file():
            sums.unlink()


def log_files(root: Path) -> list[str]:
    """Name the data files of the log, in order."""
    return [n for n in files_of(root) if n.startswith(("commitlog/", "dledger-n0/data/"))]


def given_sizes(config: StoreConfig) -> GivenSettings:
    """What an operator knows who has the configuration."""
    return GivenSettings(
        container=config.container,
        self_id=config.self_id if config.container == "ledger" else None,
        file_size_bytes=config.file_size_bytes,
        consume_queue_units_per_file=config.consume_queue_units_per_file,
        index_slot_count=config.index_slot_count,
        index_entry_count=config.index_entry_count,
        ledger_index_units_per_file=config.ledger_index_units_per_file,
    )


def crashed_with_tail(tmp_path: Path, config: StoreConfig) -> tuple[Path, int, int]:
    """A store that was killed with one batch behind its durable mark: (root, mark, end)."""
    clock = Clock()
    with open_store(tmp_path / "store", config, clock) as store:
        fill(store, clock, 0, 20)
        durable = store.log.max_position
        clock.unix_ms += 1000
        store.append(encode_message("topic0", 0, b"%08d" % 20, {"KEYS": "key20"}))
        copy = Path(shutil.copytree(tmp_path / "store", tmp_path / "copy"))
        return copy, durable, store.log.max_position
