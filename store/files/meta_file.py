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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

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

ReadSmall = Callable[[str], bytes | None]
"""Path -> the bytes of a small file; None when there is no such file."""
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
        generations = read_generations(self._base, self._read)
        unsure = next((older.problem for older in generations if not older.number), None)
        if unsure is not None:
            raise unsure
        if not generations:
            if must_exist:
                raise LayoutError(self._base + ".0", "the meta file of this store", "no such file")
            self._loaded = True
            return None
        older, newest = generations[0], generations[-1]
        if newest.problem is not None:
            raise newest.problem
        if (newest.number > 1 or must_exist) and older is newest:
            expected = f"generation {newest.number - 1} or {newest.number + 1}"
            raise LayoutError(self._path(newest.number + 1), expected, "no such file")
        if newest.number - older.number > 1:
            expected = str(newest.number - 1)
            raise CorruptionError(older.path, 0, "generation", expected, str(older.number))
        self.generation, self._loaded = newest.number, True
        if older is newest:
            self.save(newest.payload)
        return newest.payload

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

    def _read(self, path: str) -> bytes | None:
        if not os.path.exists(path):
            return None
        return self._fs.read_file(path, _HEADER_SIZE_BYTES_MAX + META_SIZE_BYTES_MAX + 1)


class Generation(NamedTuple):
    """One of the two files of an object. `number` is 0 when not even that is sure; `payload` is
    empty with a `problem`."""

    path: str
    number: int
    payload: dict[str, Any]
    problem: CorruptionError | None


def read_generations(base: str, read: ReadSmall) -> list[Generation]:
    """Return the generations of the object `base` that have a file, the newest last."""
    generations = []
    for parity in (0, 1):
        path = f"{base}.{parity}"
        data = read(path)
        if data is not None:
            generations.append(_generation(path, data, parity))
    return sorted(generations, key=lambda generation: generation.number)


def meta_problems(base: str, generations: Sequence[Generation]) -> list[CorruptionError]:
    """Return what is wrong with the files of one object, also where an opening could go on."""
    problems = [generation.problem for generation in generations if generation.problem]
    if problems or not generations:
        return problems
    older, newest = generations[0], generations[-1]
    if older is newest and newest.number > 1:
        path, expected = f"{base}.{1 - newest.number % 2}", f"a generation beside {newest.number}"
        return [CorruptionError(path, 0, "file", expected, "no such file")]
    if older is not newest and newest.number - older.number != 1:
        expected = str(newest.number - 1)
        return [CorruptionError(older.path, 0, "generation", expected, str(older.number))]
    return []


def _generation(path: str, data: bytes, parity: int) -> Generation:
    def damaged(at: int, field: str, expected: str, actual: str, number: int = 0) -> Generation:
        return Generation(path, number, {}, CorruptionError(path, at, field, expected, actual))

    header = _HEADER.match(data)
    if header is None:
        return damaged(0, "header", "a quorumlog-meta line", repr(data[:24]))
    line_crc, number = f"{crc32c(header[1]):08x}", int(header[2])
    if header[5].decode() != line_crc:
        return damaged(header.start(5), "header CRC-32C", line_crc, header[5].decode())
    if number % 2 != parity:
        return damaged(header.start(2), "generation", f"{parity} modulo 2", header[2].decode())
    at, content = header.end(), data[header.end() :]
    if len(content) != int(header[3]):
        return damaged(at, "payload size", header[3].decode(), str(len(content)), number)
    crc = f"{crc32c(content):08x}"
    if crc != header[4].decode():
        return damaged(at, "payload CRC-32C", header[4].decode(), crc, number)
    try:
        payload = json.loads(content)
    except ValueError:
        payload = None
    if not isinstance(payload, dict):
        return damaged(at, "payload", "a JSON object", "something else", number)
    return Generation(path, number, payload, None)


def _encode(generation: int, data: bytes) -> bytes:
    line = b"quorumlog-meta 1 %d %d %08x" % (generation, len(data), crc32c(data))
    return line + b" %08x\n" % crc32c(line) + data
