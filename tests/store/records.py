"""Records that tests write: small, deterministic, and checkable from their content alone."""

from pathlib import Path

from store import format as fmt
from store.config import StoreConfig
from store.record.check import check_records
from store.record.message import Message, decode_message, encode_message

PAGE = 4096
BORN = 1_700_000_000_000


NEVER_MS = 3_600_000


def small_config(**changes: object) -> StoreConfig:
    """A store with files of a few pages, so that tests roll often; nothing is synced by a timer."""
    settings: dict[str, object] = {
        "file_size_bytes": 4 * PAGE,
        "consume_queue_units_per_file": 50,
        "index_slot_count": 64,
        "index_entry_count": 200,
        "ledger_index_units_per_file": 128,
        "warm_up": False,
        "preallocate_file_count": 0,
        "flush_interval_ms": NEVER_MS,
        "flush_thorough_interval_ms": NEVER_MS,
        "derived_flush_interval_ms": NEVER_MS,
        "commit_interval_ms": NEVER_MS,
    }
    return StoreConfig(**{**settings, **changes})  # type: ignore[arg-type]


def record(
    number: int,
    *,
    topic: str = "orders",
    queue_id: int = 0,
    size_bytes: int = 40,
    property_crc: bool = False,
) -> bytes:
    """One encoded record whose body says its number."""
    body = (b"%08d" % number).ljust(size_bytes, b".")
    properties = {"TAGS": f"tag{number % 3}", "KEYS": f"key{number:04d}"}
    return encode_message(
        topic, queue_id, body, properties, born_unix_ms=BORN + number, property_crc=property_crc
    )


def batch(lo: int, hi: int, **how: object) -> bytes:
    """Records [lo, hi) as one batch."""
    return b"".join(record(n, **how) for n in range(lo, hi))  # type: ignore[arg-type]


def numbers(data: bytes) -> list[int]:
    """The numbers of the records that lie back to back in `data`."""
    return [int(message.body[:8]) for message in messages(data)]


def messages(data: bytes) -> list[Message]:
    """Decode the records that lie back to back in `data`."""
    decoded, at = [], 0
    while at < len(data):
        decoded.append(decode_message(data, at))
        at += decoded[-1].size_bytes
    return decoded


def is_good(data: bytes, position: int) -> bool:
    """Whether `data` is whole records that belong at `position`."""
    checked = check_records(data, position)
    return checked.problem is None and checked.end == len(data)


def damage(root: Path, record: bytes, at: int = fmt.BODY_AT) -> None:
    """Damage a byte of a stored record, in the one log file below a directory that has it."""
    (path,) = [file for file in root.rglob("0" * 20) if record in file.read_bytes()]
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(record) + at)
        file.write(b"!")
