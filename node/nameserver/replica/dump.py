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

from node.errors.nameserver import FilesDamagedError
from node.nameserver.directory.fields import CommandRefused, Number, checked
from node.nameserver.replica.journal import Entry
from quorumlog.foreign_json import read_json
from store.files.checksum import crc32c
from store.files.file_system import FileSystem

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
    head = _HEAD.match(content)
    if head is None:
        raise FilesDamagedError(path, "its first line is not that of a dump")
    body = content[head.end() :]
    if len(body) != int(head[3]) or f"{crc32c(body):08x}" != head[4].decode():
        raise FilesDamagedError(path, "its size or its checksum does not fit")
    try:
        dumped = checked(_BODY, read_json(body))
        before_last, last = (
            (base64.b64decode(command, validate=True), index, term)
            for command, index, term in dumped.entries
        )
    except (CommandRefused, ValueError) as error:
        raise FilesDamagedError(path, str(error)) from error
    if last[1:] != (int(head[1]), int(head[2])) or before_last[1] != last[1] - 1:
        raise FilesDamagedError(path, "its entries are not those of its first line")
    return Dump(last, before_last, dumped.directory)


def index_and_term(start: bytes) -> tuple[int, int] | None:
    """Return index and term of the first line; None if it is incomplete or not that of a dump."""
    head = _HEAD.match(start)
    return (int(head[1]), int(head[2])) if head is not None else None
