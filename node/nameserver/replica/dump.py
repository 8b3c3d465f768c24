"""The dump of a name server replica: the whole directory at one entry, as a checked text file.

Owns the format: a line `quorumlog-ns-dump 1 <index> <term> <size> <CRC-32C of the rest>` and JSON.
PySyncObj keeps the dump as its "full dump" and sends it to replicas that are far behind, so the
first line names the entry of the dump. A dump contains no pickle, so loading it runs no code. Must
not know when a dump is made.
"""

import base64
import json
import os
import re
from dataclasses import dataclass
from typing import Any, Final

from pydantic import TypeAdapter

from node.nameserver.directory.fields import CommandRefused, Number, checked
from node.nameserver.replica.journal import Entry, files_damaged
from quorumlog.foreign_json import read_json
from store.errors import CorruptionError
from store.files.checksum import crc32c
from store.files.file_system import FileSystem

NAME: Final = "dump"
MAGIC: Final = b"quorumlog-ns-dump"
_HEAD: Final = re.compile(
    rb"quorumlog-ns-dump 1 ([0-9]{1,19}) ([0-9]{1,19}) ([0-9]{1,9}) ([0-9a-f]{8})\n"
)


@dataclass(frozen=True, slots=True)
class Dump:
    """A directory, and the two entries at which PySyncObj continues."""

    last: Entry
    before_last: Entry
    directory: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Body:
    entries: tuple[tuple[str, Number, Number], tuple[str, Number, Number]]
    directory: dict[str, Any]


_BODY: Final = TypeAdapter(_Body)


def write_dump(fs: FileSystem, path: str, dump: Dump) -> None:
    """Write a file and sync it; the caller renames it. Raises a store error."""
    pair = dump.before_last, dump.last
    entries = [(base64.b64encode(command).decode(), *place) for command, *place in pair]
    body = json.dumps({"entries": entries, "directory": dump.directory}).encode()
    _, index, term = dump.last
    head = b"quorumlog-ns-dump 1 %d %d %d %08x\n" % (index, term, len(body), crc32c(body))
    fs.write_file(path, head + body)


def read_dump(fs: FileSystem, path: str) -> Dump:
    """Read, check and sync a file, which may have been received a moment ago.

    Raises FilesDamagedError or a store error.
    """
    fd = fs.open(path)
    try:
        content = fs.read_at(fd, path, 0, fs.size_bytes(fd))
        fs.sync(fd, path)
    finally:
        fs.close(fd)
    fs.sync_directory(os.path.dirname(path))
    try:
        return parse_dump(path, content)
    except CorruptionError as error:
        raise files_damaged(error) from error


def parse_dump(path: str, content: bytes) -> Dump:
    """Return the dump in the bytes of a file. Raises CorruptionError."""
    head = _HEAD.match(content)
    if head is None:
        raise CorruptionError(path, 0, "first line", "that of a dump", repr(content[:24]))
    body, crc = content[head.end() :], head[4].decode()
    if len(body) != int(head[3]) or f"{crc32c(body):08x}" != crc:
        actual = f"{len(body)} bytes, CRC-32C {crc32c(body):08x}"
        expected = f"{head[3].decode()} bytes, CRC-32C {crc}"
        raise CorruptionError(path, head.start(3), "content", expected, actual)
    try:
        dumped = checked(_BODY, read_json(body))
        before_last, last = (
            (base64.b64decode(command, validate=True), index, term)
            for command, index, term in dumped.entries
        )
    except (CommandRefused, ValueError) as error:
        expected = "two entries and a directory"
        raise CorruptionError(path, head.end(), "content", expected, str(error)) from error
    if last[1:] != (int(head[1]), int(head[2])) or before_last[1] != last[1] - 1:
        actual = f"{head[1].decode()} {head[2].decode()}"
        raise CorruptionError(path, head.start(1), "index and term", str([*last[1:]]), actual)
    return Dump(last, before_last, dumped.directory)


def index_and_term(start: bytes) -> tuple[int, int] | None:
    """Return index and term of the first line; None if it is incomplete or not that of a dump."""
    head = _HEAD.match(start)
    return (int(head[1]), int(head[2])) if head is not None else None
