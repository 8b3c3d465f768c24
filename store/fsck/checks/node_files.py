"""Checks the small files of a node beside its log: its promises, its state, its epochs.

Owns which of them there are and what must hold within and between them; must not know their
meaning, which is the node's. All of them carry checksums of their own: two generations of a meta
file, texts whose checksums a manifest has, RocketMQ's list of epochs, and the journal and dump of a
replica of the name server. Files that only exist or not, or are for operators (`abort`,
`damage-found`, `node.json`, `*.bak`, dumps), decide nothing by their bytes. Sources: fault-matrix
D5, D10.
"""

import json
import os
import re
import struct
import zlib
from collections.abc import Generator, Iterator
from typing import Any, Final, NamedTuple

from store.durability.identity import BOOT_ID_NAME, boot_id_problem
from store.errors import FileSystemError
from store.files.checksum import crc32c
from store.files.file_system import FileSystem
from store.files.meta_file import meta_problem
from store.files.staging import TEMPORARY_SUFFIX
from store.fsck.types import Finding, Part, Severity
from store.opening import REPLICA_META_NAME, SHIPPED_META_NAME

CONFIG_DIRECTORY: Final = "config"
MANIFEST: Final = f"{CONFIG_DIRECTORY}/stateCheckpoint"
NAMESERVER_DIRECTORY: Final = "nameserver"
EPOCH_FILE: Final = "epochFileCheckpoint"
META_NAMES: Final = (
    REPLICA_META_NAME,
    SHIPPED_META_NAME,
    "haBinding",
    "haLosses",
    "lives",
    MANIFEST,
    f"{NAMESERVER_DIRECTORY}/term",
)
SNAPSHOT_NAMES: Final = ("snapshot.received", "snapshot.installed")
_SIZE_BYTES_MAX: Final = 1 << 30
_EPOCH_LINE: Final = re.compile(rb"(0|[1-9][0-9]*)-(0|[1-9][0-9]*)\n")
_JOURNAL_MAGIC: Final = b"quorumlog-ns-1\n"
_JOURNAL_HEAD: Final = struct.Struct("<IIQQ")
_DUMP_HEAD: Final = re.compile(
    rb"quorumlog-ns-dump 1 ([0-9]{1,19}) ([0-9]{1,19}) ([0-9]{1,9}) ([0-9a-f]{8})\n"
)


class _Generation(NamedTuple):
    """One file of a pair. `number` is 0 where not even that is sure."""

    name: str
    number: int
    payload: dict[str, Any] | None


def check_node_files(fs: FileSystem, root: str) -> Iterator[Finding]:
    """Yield the findings in the small files of a node; none where there is no node."""
    files = _Files(fs, root)
    for name in META_NAMES:
        newest = yield from _check_meta(files, name)
        if name == MANIFEST and newest is not None:
            yield from _check_state(files, newest)
    for name in (EPOCH_FILE, f"{EPOCH_FILE}.bak"):
        data = files.read(name)
        if data is not None:
            yield from _check_epochs(name, data, is_main=name == EPOCH_FILE)
    for name in SNAPSHOT_NAMES:
        data = files.read(name)
        if data is not None and (len(data) < 4 or crc32c(data[:-4]) != _u32(data[-4:])):
            yield _finding(name, max(len(data) - 4, 0), "CRC-32C", "that of its bytes", "another")
    data = files.read(BOOT_ID_NAME)
    if data is not None:
        problem = boot_id_problem(data)
        if problem is not None:
            yield _finding(BOOT_ID_NAME, 0, *problem, severity=Severity.REPAIRABLE)
    yield from _check_nameserver(files)


class _Files:
    """Small files below a root."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs, self._root = fs, root

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a file, none where they cannot be read; None when it is not there."""
        path = os.path.join(self._root, name)
        if not os.path.isfile(path):
            return None
        fd = self._fs.open(path, read_only=True)
        try:
            size_bytes = min(self._fs.size_bytes(fd), _SIZE_BYTES_MAX)
            return self._fs.read_at(fd, path, 0, size_bytes)
        except FileSystemError:
            return b""
        finally:
            self._fs.close(fd)

    def names(self, directory: str) -> list[str]:
        """List a directory below the root."""
        return self._fs.list_directory(os.path.join(self._root, directory))


def _u32(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _finding(
    path: str,
    at: int,
    field: str,
    expected: str,
    actual: str,
    severity: Severity = Severity.DAMAGE,
) -> Finding:
    return Finding(path, at, field, expected, actual, severity, Part.NODE)


# --- Meta files ---


def _check_meta(files: _Files, base: str) -> Generator[Finding, None, dict[str, Any] | None]:
    """Check both generations; return the payload of the newest if that is sure."""
    generations: list[_Generation] = []
    bad: list[tuple[str, tuple[int, str, str, str]]] = []
    for parity in (0, 1):
        name = f"{base}.{parity}"
        data = files.read(name)
        if data is None:
            continue
        problem = meta_problem(data, parity)
        if problem is None:
            number, payload = _parsed(data)
            if payload is None:
                problem = (data.index(b"\n") + 1, "payload", "a JSON object", "something else")
            generations.append(_Generation(name, number, payload))
        if problem is not None:
            bad.append((name, problem))
    newest = max(generations, key=lambda generation: generation.number, default=None)
    for name, (at, field, expected, text) in bad:
        yield _finding(name, at, field, expected, text)
    if bad or newest is None:
        return None if newest is None or len(bad) == len(generations) else newest.payload
    if len(generations) == 1 and newest.number > 1:
        other = f"{base}.{1 - newest.number % 2}"
        yield _finding(other, 0, "file", f"a generation beside {newest.number}", "no such file")
    elif len(generations) == 2 and newest.number - min(one.number for one in generations) != 1:
        older = min(generations, key=lambda generation: generation.number)
        yield _finding(older.name, 0, "generation", str(newest.number - 1), str(older.number))
    return newest.payload


def _parsed(data: bytes) -> tuple[int, dict[str, Any] | None]:
    line, _, payload = data.partition(b"\n")
    try:
        found = json.loads(payload)
    except ValueError:
        found = None
    return int(line.split()[2]), found if isinstance(found, dict) else None


# --- The state ---


def _check_state(files: _Files, manifest: dict[str, Any]) -> Iterator[Finding]:
    """Compare the texts of the state with the sizes and checksums in the manifest."""
    written = manifest.get("files")
    if not isinstance(written, dict):
        yield _finding(f"{MANIFEST}.0", 0, "files", "a table of files", repr(written)[:40])
        return
    for table, row in written.items():
        name = f"{CONFIG_DIRECTORY}/{table}"
        expected = f"{row[1]} bytes, CRC-32C {row[2]:08x}"
        found = "no such file"
        for suffix in ("", TEMPORARY_SUFFIX):
            data = files.read(name + suffix)
            if data is None:
                continue
            if (len(data), crc32c(data)) == (row[1], row[2]):
                found = expected
                break
            found = f"{len(data)} bytes, CRC-32C {crc32c(data):08x}"
        if found != expected:
            yield _finding(name, 0, "content", expected, found)


# --- Epochs ---


def _check_epochs(name: str, data: bytes, *, is_main: bool) -> Iterator[Finding]:
    """Check RocketMQ's list of epochs: count, CRC-32, lines. The backup is read where there is no
    main file only."""
    severity = Severity.DAMAGE if is_main else Severity.REPAIRABLE
    head = data.split(b"\n", 2)
    if len(head) < 3:
        yield _finding(name, 0, "text", "count, CRC-32 and lines", repr(data[:24]), severity)
        return
    count, crc, lines = head
    entries = _EPOCH_LINE.findall(lines)
    at = len(count) + len(crc) + 2
    if b"".join(b"%b-%b\n" % entry for entry in entries) != lines:
        yield _finding(name, at, "lines", "epoch-position", repr(lines[:40]), severity)
        return
    wanted = b"%d" % (zlib.crc32(lines) & 0x7FFFFFFF)
    if crc not in (wanted, b"0"):  # 0: RocketMQ does not verify.
        yield _finding(name, len(count) + 1, "CRC-32", wanted.decode(), repr(crc), severity)
    if count != b"%d" % len(entries):
        yield _finding(name, 0, "count", str(len(entries)), repr(count), severity)


# --- The name server ---


def _check_nameserver(files: _Files) -> Iterator[Finding]:
    directory = NAMESERVER_DIRECTORY
    for name in files.names(directory):
        data = files.read(f"{directory}/{name}")
        if data is None:
            continue
        if name == "journal":
            yield from _check_journal(f"{directory}/{name}", data)
        elif data.startswith(b"quorumlog-ns-dump") or name == "dump":
            yield from _check_dump(f"{directory}/{name}", data)


def _check_journal(name: str, data: bytes) -> Iterator[Finding]:
    if not data.startswith(_JOURNAL_MAGIC):
        yield _finding(name, 0, "magic", repr(_JOURNAL_MAGIC), repr(data[:15]))
        return
    at, before = len(_JOURNAL_MAGIC), 0
    while at < len(data):
        size_bytes = _journal_record(data, at)
        if size_bytes == 0:
            is_torn = not any(_journal_record(data, n) for n in range(at + 1, len(data)))
            severity = Severity.TORN_TAIL if is_torn else Severity.DAMAGE
            yield _finding(name, at, "record", "a whole one", data[at : at + 8].hex(), severity)
            return
        index = _JOURNAL_HEAD.unpack_from(data, at)[2]
        if before and index != before + 1:
            yield _finding(name, at + 8, "index", str(before + 1), str(index))
        before = index
        at += size_bytes


def _journal_record(data: bytes, at: int) -> int:
    """Return the size of the whole record at a byte; 0 when there is none."""
    if len(data) - at < _JOURNAL_HEAD.size:
        return 0
    size_bytes, crc, _, _ = _JOURNAL_HEAD.unpack_from(data, at)
    hi = at + _JOURNAL_HEAD.size + size_bytes
    is_whole = size_bytes > 0 and hi <= len(data) and crc32c(data[at + 8 : hi]) == crc
    return hi - at if is_whole else 0


def _check_dump(name: str, data: bytes) -> Iterator[Finding]:
    head = _DUMP_HEAD.match(data)
    if head is None:
        yield _finding(name, 0, "first line", "that of a dump", repr(data[:24]))
        return
    body = data[head.end() :]
    if len(body) != int(head[3]) or f"{crc32c(body):08x}" != head[4].decode():
        found = f"{len(body)} bytes, CRC-32C {crc32c(body):08x}"
        expected = f"{head[3].decode()} bytes, CRC-32C {head[4].decode()}"
        yield _finding(name, head.start(3), "content", expected, found)
        return
    entries = json.loads(body).get("entries") or [[]]
    if entries[-1][1:] != [int(head[1]), int(head[2])]:
        found = f"{head[1].decode()} {head[2].decode()}"
        yield _finding(name, head.start(1), "index and term", str(entries[-1][1:]), found)
