"""Finds out from the files alone which container a store has and how large its files are.

Owns the guesses and the source of each; must not judge what is wrong. Every setting can be given
instead. RocketMQ keeps these sizes in the broker's configuration and in no file, and so do we, so a
directory that was copied here must be readable without it. Sources: storage-formats 0.3, 3.1.
"""

import mmap
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final, Literal

from store import format as fmt
from store.config import MIB, StoreConfig
from store.derived.keys.index_files import DIRECTORY as INDEX_DIRECTORY
from store.derived.keys.key_sums import IndexShape
from store.derived.queues.consume_queue import UNIT_SIZE_BYTES
from store.derived.queues.consume_queues import DIRECTORY as QUEUE_DIRECTORY
from store.derived.queues.consume_queues import queue_names
from store.errors import FileSystemError, LayoutError
from store.files.file_system import FileSystem
from store.log.commit_log import DIRECTORY as COMMIT_LOG_DIRECTORY

LEDGER_PREFIX: Final = "dledger-"
_SAMPLE_SIZE_BYTES: Final = MIB
_DEFAULT: Final = StoreConfig()


@dataclass(frozen=True, slots=True)
class GivenSettings:
    """Settings that the caller knows; None is found out. The names are those of StoreConfig."""

    container: Literal["commit_log", "ledger"] | None = None
    self_id: str | None = None
    file_size_bytes: int | None = None
    consume_queue_units_per_file: int | None = None
    index_slot_count: int | None = None
    index_entry_count: int | None = None
    ledger_index_units_per_file: int | None = None
    property_crc: bool | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """The way to read a directory. `source` of each setting: given, files or default."""

    config: StoreConfig
    containers: tuple[str, ...]
    """Directories of the logs found, below the root."""
    source: dict[str, str]

    @property
    def log_directory(self) -> str:
        """Directory of the log's data files, below the root."""
        if self.config.container == "ledger":
            return f"{self.ledger_directory}/data"
        return COMMIT_LOG_DIRECTORY

    @property
    def ledger_directory(self) -> str:
        """Directory of a ledger, below the root."""
        return f"{LEDGER_PREFIX}{self.config.self_id}"


def detect(fs: FileSystem, root: str, given: GivenSettings | None = None) -> Layout:
    """Find out the container and the sizes. Opens files for reading only.

    Raises LayoutError when there is no store, or when there are several logs and none was chosen,
    and when a given value makes no sense.
    """
    given = given or GivenSettings()
    if not os.path.isdir(root):
        raise _refusal(root, "a store directory", "no directory", "check the path")
    values: dict[str, object] = {}
    containers = _containers(fs, root)
    values["container"], values["self_id"] = _choose(fs, root, given, containers)
    is_ledger = values["container"] == "ledger"
    log = f"{LEDGER_PREFIX}{values['self_id']}" if is_ledger else COMMIT_LOG_DIRECTORY
    data = f"{log}/data" if is_ledger else log
    values["file_size_bytes"] = _file_size(fs, os.path.join(root, data), mmap.PAGESIZE)
    if is_ledger:
        unit = fmt.INDEX_UNIT_SIZE_BYTES
        size_bytes = _file_size(fs, os.path.join(root, log, "index"), max(unit, mmap.PAGESIZE))
        values["ledger_index_units_per_file"] = size_bytes and size_bytes // unit
    values["consume_queue_units_per_file"] = _queue_units(fs, os.path.join(root, QUEUE_DIRECTORY))
    shape = _index_shape(fs, os.path.join(root, INDEX_DIRECTORY))
    values["index_slot_count"], values["index_entry_count"] = shape or (None, None)
    values["property_crc"] = _has_property_crc(fs, os.path.join(root, data), is_ledger=is_ledger)
    source: dict[str, str] = {}
    for field in fields(GivenSettings):
        own = getattr(given, field.name)
        source[field.name] = "given" if own is not None else "files"
        if own is not None:
            values[field.name] = own
        elif values.get(field.name) is None:
            values[field.name] = getattr(_DEFAULT, field.name)
            source[field.name] = "default"
    try:
        config = StoreConfig(**values)  # type: ignore[arg-type]
    except ValueError as error:
        expected = "sizes that a store can have"
        raise _refusal(root, expected, str(error), "correct the sizes that are given") from error
    return Layout(config, tuple(containers), source)


def _containers(fs: FileSystem, root: str) -> list[str]:
    """Name the logs of a directory: `commitlog` and `dledger-<id>`, those with files first."""
    containers = []
    for name in fs.list_directory(root):
        is_log = name == COMMIT_LOG_DIRECTORY or name.startswith(LEDGER_PREFIX)
        if is_log and os.path.isdir(os.path.join(root, name)):
            data = name if name == COMMIT_LOG_DIRECTORY else os.path.join(name, "data")
            names = fs.list_directory(os.path.join(root, data))
            containers.append((not any(n.isdecimal() for n in names), name))
    return [name for _, name in sorted(containers)]


def _choose(
    fs: FileSystem, root: str, given: GivenSettings, containers: list[str]
) -> tuple[str, str | None]:
    ledgers = [name for name in containers if name.startswith(LEDGER_PREFIX)]
    if given.container == "commit_log":
        return "commit_log", None
    if given.self_id is not None:
        return "ledger", given.self_id
    if given.container == "ledger":
        if len(ledgers) > 1:
            expected = "the id of one ledger to be given"
            raise _refusal(root, expected, ", ".join(ledgers), "choose one with --self-id")
        return "ledger", ledgers[0].removeprefix(LEDGER_PREFIX) if ledgers else None
    if not containers:
        below = [os.path.join(root, name) for name in sorted(os.listdir(root))]
        stores = [path for path in below if os.path.isdir(path) and _containers(fs, path)]
        remedy = f"name a directory of a store: {' or '.join(stores) or 'it has such a log in it'}"
        raise _refusal(root, "a log (commitlog or dledger-<id>)", "none", remedy)
    if len(containers) > 1:
        expected = "one log, or the container to be given"
        raise _refusal(root, expected, ", ".join(containers), "choose one with --container")
    if containers[0] == COMMIT_LOG_DIRECTORY:
        return "commit_log", None
    return "ledger", containers[0].removeprefix(LEDGER_PREFIX)


def _refusal(root: str, expected: str, actual: str, remedy: str) -> LayoutError:
    error = LayoutError(root, expected, actual)
    error.remedy = remedy
    return error


def _rolling(fs: FileSystem, directory: str) -> list[tuple[int, int]]:
    """List (position, size in bytes) of the files of a sequence."""
    return [
        (int(name), os.stat(os.path.join(directory, name)).st_size)
        for name in fs.list_directory(directory)
        if fmt.is_file_name(name)
    ]


def _file_size(fs: FileSystem, directory: str, multiple_of: int) -> int | None:
    """Return the size that explains most sizes and names of a sequence; None without files."""
    return _best_size([_rolling(fs, directory)], multiple_of)


def _best_size(sequences: Sequence[list[tuple[int, int]]], multiple_of: int) -> int | None:
    votes: Counter[int] = Counter()
    for files in sequences:
        for number, (position, size_bytes) in enumerate(files):
            votes[size_bytes] += 1
            if number:  # A name is as good a witness as a size, and is not cut short.
                votes[position - files[number - 1][0]] += 1
    good = {size: n for size, n in votes.items() if size > 0 and size % multiple_of == 0}
    return max(good, key=lambda size: (good[size], size)) if good else None


def _queue_units(fs: FileSystem, directory: str) -> int | None:
    queues = [f"{directory}/{topic}/{queue_id}" for topic, queue_id in queue_names(fs, directory)]
    sequences = [_rolling(fs, queue) for queue in queues if os.path.isdir(queue)]
    size_bytes = _best_size(sequences, UNIT_SIZE_BYTES)
    return size_bytes and size_bytes // UNIT_SIZE_BYTES


def index_names(fs: FileSystem, directory: str) -> list[str]:
    """List the key index files of a directory, in order."""
    names = fs.list_directory(directory)
    return [n for n in names if len(n) == fmt.INDEX_FILE_NAME_DIGITS and n.isdecimal()]


def _index_shape(fs: FileSystem, directory: str) -> IndexShape | None:
    """Return the shape that most key index files prove; None when none does."""
    default = IndexShape(_DEFAULT.index_slot_count, _DEFAULT.index_entry_count)
    votes: Counter[IndexShape] = Counter()
    for name in index_names(fs, directory):
        path = os.path.join(directory, name)
        size_bytes = os.stat(path).st_size
        if size_bytes == default.size_bytes:
            votes[default] += 1
            continue
        fd = fs.open(path, read_only=True)
        try:
            shape = _shape_of(fs, fd, path, size_bytes)
        except FileSystemError:
            shape = None
        finally:
            fs.close(fd)
        if shape is not None:
            votes[shape] += 1
    return max(votes, key=lambda shape: votes[shape]) if votes else None


def _shape_of(fs: FileSystem, fd: int, path: str, size_bytes: int) -> IndexShape | None:
    """Find where the entries begin, in two ways, so that one damaged field does not hide it.

    The entries end with the file. So the last one that is not zero, and the count of the header,
    give the place of the first one; the begin position of the header gives it, too.
    """
    if size_bytes < IndexShape(1, 2).size_bytes:
        return None
    header = fs.read_at(fd, path, 0, fmt.INDEX_HEADER_SIZE_BYTES)
    _, _, begin_position, _, _, count = fmt.INDEX_HEADER.unpack(header)
    step = fmt.INDEX_ENTRY_SIZE_BYTES
    last_at = _last_entry_at(fs, fd, path, size_bytes)
    if last_at is None:
        return None
    by_count = last_at - step * (count - 1)
    if _fits(fs, fd, path, size_bytes, by_count, last_at):
        return _shape(size_bytes, by_count)
    first = begin_position.to_bytes(8, "big", signed=True) + bytes(8)
    at = fmt.INDEX_HEADER_SIZE_BYTES
    while at < size_bytes:
        data = fs.read_at(fd, path, at, min(_SAMPLE_SIZE_BYTES + step, size_bytes - at))
        start = data.find(first)
        while start >= 0:
            by_begin = at + start - 4 - step
            if _fits(fs, fd, path, size_bytes, by_begin, last_at):
                return _shape(size_bytes, by_begin)
            start = data.find(first, start + 1)
        at += _SAMPLE_SIZE_BYTES
    return None


def _last_entry_at(fs: FileSystem, fd: int, path: str, size_bytes: int) -> int | None:
    hi = size_bytes
    while hi > fmt.INDEX_HEADER_SIZE_BYTES:
        lo = max(fmt.INDEX_HEADER_SIZE_BYTES, hi - _SAMPLE_SIZE_BYTES)
        kept = fs.read_at(fd, path, lo, hi - lo).rstrip(b"\0")
        if kept:
            step = fmt.INDEX_ENTRY_SIZE_BYTES
            from_end = size_bytes - (lo + len(kept) - 1)
            return size_bytes - (from_end + step - 1) // step * step
        hi = lo
    return None


def _shape(size_bytes: int, entries_at: int) -> IndexShape:
    slots_size_bytes = entries_at - fmt.INDEX_HEADER_SIZE_BYTES
    return IndexShape(
        slots_size_bytes // fmt.INDEX_SLOT_SIZE_BYTES,
        (size_bytes - entries_at) // fmt.INDEX_ENTRY_SIZE_BYTES,
    )


def _fits(
    fs: FileSystem, fd: int, path: str, size_bytes: int, entries_at: int, last_at: int
) -> bool:
    """Whether entries can begin at a byte: entry 0 is zero, and a slot names the last one."""
    step, slots_at = fmt.INDEX_ENTRY_SIZE_BYTES, fmt.INDEX_HEADER_SIZE_BYTES
    slots_size_bytes = entries_at - slots_at
    if slots_size_bytes < 4 or slots_size_bytes % 4 or (size_bytes - entries_at) % step:
        return False
    number, rest = divmod(last_at - entries_at, step)
    if rest or number < 1 or fs.read_at(fd, path, entries_at, step) != bytes(step):
        return False
    # The last few: a damaged one has another hash, and so another slot.
    for entry in range(number, max(0, number - 3), -1):
        value = fmt.INDEX_ENTRY.unpack(fs.read_at(fd, path, entries_at + entry * step, step))[0]
        slot_at = slots_at + value % (slots_size_bytes // 4) * 4
        if fmt.INT32.unpack(fs.read_at(fd, path, slot_at, 4))[0] == entry:
            return True
    return False


def _has_property_crc(fs: FileSystem, directory: str, *, is_ledger: bool) -> bool | None:
    """Whether most records at the start of the oldest file carry a property CRC; None: unknown."""
    if is_ledger:
        return False  # Every byte of an entry has a checksum already.
    files = [(p, size_bytes) for p, size_bytes in _rolling(fs, directory) if size_bytes]
    if not files:
        return None
    path = os.path.join(directory, fmt.file_name(files[0][0]))
    try:
        data = fs.read_file(path, _SAMPLE_SIZE_BYTES)
    except FileSystemError:
        return None
    count = data.count(fmt.MAGIC_V1.to_bytes(4, "big")) + data.count(
        fmt.MAGIC_V2.to_bytes(4, "big")
    )
    return 2 * data.count(fmt.PROPERTY_CRC_PREFIX) > count
