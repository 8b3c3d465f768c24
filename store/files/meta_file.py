"""A small file that is replaced as a whole and never half: for state that an answer rests on.

Owns the way to disk of one JSON object (S12): temporary file, sync, rename, directory sync, two
generations. Must not know what the object says. Generations live in turn in `<name>.0` and
`<name>.1`, so that the old one is never touched by writing the new one. Reading is strict, because
a vote or an identity may be in there: if the newest could be missing or torn, nothing is returned.
A rename is atomic, so a crash never makes such a state; a damaged disk or a bad restore does. The
first save makes both generations, so that one alone tells of a loss from then on.

Content: one line `quorumlog-meta 1 <generation> <size> <CRC-32C of payload> <CRC-32C of line>`,
then the payload. Both checksums are hexadecimal; a person can read and compare the files.
"""

import json
import os
import re
from collections.abc import Mapping
from typing import Any, Final

from store.errors import (
    CorruptionError,
    FileSystemError,
    LayoutError,
    LimitExceededError,
    StoreFullError,
    SyncFailedError,
)
from store.files.checksum import crc32c
from store.files.failpoints import hit
from store.files.file_system import FileSystem
from store.files.staging import TEMPORARY_SUFFIX

META_SIZE_BYTES_MAX: Final = 1024 * 1024  # Meta is small; a large one is a mistake of its owner.
_HEADER: Final = re.compile(
    rb"(quorumlog-meta 1 ([0-9]{1,19}) ([0-9]{1,7}) ([0-9a-f]{8})) ([0-9a-f]{8})\n"
)
_HEADER_SIZE_BYTES_MAX: Final = 80

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class MetaFile:
    """One named object in a directory. One thread at a time."""

    def __init__(self, fs: FileSystem, directory: str, name: str) -> None:
        self._fs, self._directory = fs, directory
        self._base = os.path.join(directory, name)
        self._failure: SyncFailedError | None = None
        self._loaded = False
        self.generation = 0
        """Generation of the newest payload; 0 without one."""

    def load(self, *, must_exist: bool) -> dict[str, Json] | None:
        """Return the newest payload; None when none was ever saved.

        Call it once before `save`. `must_exist`: a save returned in the past. Raises LayoutError
        when a generation is missing, CorruptionError when one is damaged so that it may have been
        the newest, or when the two do not follow each other. Do not start then: a vote may be lost.
        A first save that a crash cut short is finished.
        """
        found: dict[int, dict[str, Json]] = {}
        damaged: dict[int, CorruptionError] = {}
        for parity in (0, 1):
            path = self._path(parity)
            if os.path.exists(path):
                generation, payload = self._read(path, parity)
                if isinstance(payload, CorruptionError):
                    damaged[generation] = payload
                else:
                    found[generation] = payload
        if not found and not damaged:
            if must_exist:
                raise LayoutError(self._base + ".0", "the meta file of this store", "no such file")
            self._loaded = True
            return None
        newest = max([*found, *damaged])
        if newest in damaged:
            raise damaged[newest]
        if (newest > 1 or must_exist) and len(found) + len(damaged) < 2:
            raise LayoutError(
                self._path(newest + 1), f"generation {newest - 1} or {newest + 1}", "no such file"
            )
        if newest - min([*found, *damaged]) > 1:
            older = min([*found, *damaged])
            raise CorruptionError(self._path(older), 0, "generation", str(newest - 1), str(older))
        self.generation, self._loaded = newest, True
        if len(found) + len(damaged) < 2:
            self.save(found[newest])
        return found[newest]

    def save(self, payload: Mapping[str, Json]) -> int:
        """Replace the object and return its generation; durable on return. The first is 2.

        Raises LimitExceededError, StoreFullError or FileSystemError: nothing has changed then.
        SyncFailedError: what a restart will find is unknown; stop the process. Every later save
        raises it, too.
        """
        assert self._loaded, f"{self._base} is saved before it was loaded"
        if self._failure is not None:
            failed = self._failure
            raise SyncFailedError(failed.path, failed.errno_value) from failed
        data = json.dumps(payload, indent=1, sort_keys=True, allow_nan=False).encode()
        if len(data) > META_SIZE_BYTES_MAX:
            raise LimitExceededError(self._base, len(data), META_SIZE_BYTES_MAX)
        try:
            if self.generation == 0:
                self._write(1, data)
            try:
                self._write(max(2, self.generation + 1), data)
            except (StoreFullError, FileSystemError, OSError):
                if self.generation == 0:
                    self._fs.unlink(self._path(1))
                raise
        except SyncFailedError as error:
            self._failure = error
            raise
        self.generation = max(2, self.generation + 1)
        return self.generation

    def _path(self, generation: int) -> str:
        return f"{self._base}.{generation % 2}"

    def _write(self, generation: int, data: bytes) -> None:
        path, content = self._path(generation), _encode(generation, data)
        temporary = path + TEMPORARY_SUFFIX
        try:
            self._fs.write_file(temporary, content)
            hit("meta_file.before_rename")
            self._fs.rename(temporary, path)
        except BaseException:
            if os.path.exists(temporary):
                self._fs.unlink(temporary)
            raise
        self._fs.sync_directory(self._directory)
        hit("meta_file.after_rename")

    def _read(self, path: str, parity: int) -> tuple[int, dict[str, Json] | CorruptionError]:
        """Return (generation, payload, or what is wrong with it).

        Raises CorruptionError when not even the generation is sure.
        """
        content = self._fs.read_file(path, _HEADER_SIZE_BYTES_MAX + META_SIZE_BYTES_MAX + 1)
        problem = meta_problem(content, parity)
        if problem is None:
            generation, payload = meta_content(content)
            assert isinstance(payload, dict), f"{path} was saved as {type(payload)}"
            return generation, payload
        at, field, expected, found = problem
        header = _HEADER.match(content)
        if header is not None and field.startswith("payload"):
            return int(header[2]), CorruptionError(path, at, field, expected, found)
        if field == "generation":
            expected = f"one that ends {path}"
        raise CorruptionError(path, 0, field, expected, found)


def meta_problem(data: bytes, parity: int) -> tuple[int, str, str, str] | None:
    """Return what is wrong with one generation: (byte, field, expected, found), or None."""
    header = _HEADER.match(data)
    if header is None:
        return 0, "header", "a quorumlog-meta line", repr(data[:24])
    line_crc, payload = f"{crc32c(header[1]):08x}", data[header.end() :]
    if header[5].decode() != line_crc:
        return header.start(5), "header CRC-32C", line_crc, header[5].decode()
    if int(header[2]) % 2 != parity:
        return header.start(2), "generation", f"{parity} modulo 2", header[2].decode()
    if len(payload) != int(header[3]):
        return header.end(), "payload size", header[3].decode(), str(len(payload))
    crc = f"{crc32c(payload):08x}"
    if crc != header[4].decode():
        return header.end(), "payload CRC-32C", header[4].decode(), crc
    return None


def meta_content(data: bytes) -> tuple[int, Any]:
    """Return (number, payload) of a generation without a problem. ValueError: it is no JSON."""
    line, _, payload = data.partition(b"\n")
    return int(line.split()[2]), json.loads(payload)


def _encode(generation: int, data: bytes) -> bytes:
    line = b"quorumlog-meta 1 %d %d %08x" % (generation, len(data), crc32c(data))
    return line + b" %08x\n" % crc32c(line) + data
