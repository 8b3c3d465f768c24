"""The digest of the replicated state: equal states give equal digests, one for each table.

Owns what is digested and how, whatever way a state took: applied all along, out of a checkpoint, or
out of a snapshot. Must not know what compares digests. An image is digested row by row, in portions
between which the interpreter lock is given away, since it runs beside the loop that serves clients.
Counters of changes are left out: no rule reads them, and builds may count differently.
"""

import json
import time
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from node.state.state import StateImage
from quorumlog.pb import state_pb2 as pb

FORM: Final = 2
"""Number of what is digested, and how. Every change of either raises it: replicas of two builds
would otherwise take each other for diverged."""
DIGEST_SIZE_BYTES: Final = 16
TABLE_COUNT_MAX: Final = 64
"""Tables of a digest of another node; this build has 13."""
NAME_SIZE_CHARACTERS_MAX: Final = 64
_POSITION_MAX: Final = 1 << 60
_WEIGHT_AT_ONCE: Final = 512
"""Values that are encoded at once, some 150 us, as the loop may wait for the lock so long. A row is
encoded whole: the largest, a window of pop, takes 2 ms."""
_SMALL_COUNT: Final = 16
_encode: Final = json.JSONEncoder(
    check_circular=False, allow_nan=False, sort_keys=True, separators=(",", ":")
).encode


class Digest(NamedTuple):
    """The digest of a state right behind the digest point at a log position."""

    position: int
    form: int
    tables: tuple[tuple[str, bytes], ...]
    """Name and digest of each table, in the order of the names."""

    def differing(self, other: "Digest") -> tuple[str, ...]:
        """Return the names of the tables in which two digests of one form differ."""
        return tuple(sorted({name for name, _ in {*self.tables} ^ {*other.tables}}))


class DigestFormatError(Exception):
    """A message of another node is no digest. Its receiver translates it."""


def digest_of(image: StateImage, position: int) -> Digest:
    """Return the digest of an image. Takes as long as its size; any thread."""
    tables: dict[str, Any] = {
        "topics": image.topics,
        "groups": image.groups,
        "producers": image.producers,
        "members": image.members,
        **{name: table.content for name, table in image.tables.items()},
    }
    digests = ((name, _table_digest(tables[name])) for name in sorted(tables))
    return Digest(position, FORM, tuple(digests))


def _table_digest(content: Any) -> bytes:
    """Return the digest of a table, with pauses in which other threads run."""
    digest = blake2b(digest_size=DIGEST_SIZE_BYTES)
    rows: list[Any] = []
    weight = 0
    for row in _rows(content):
        rows.append(row)
        weight += _weight(row)
        if weight >= _WEIGHT_AT_ONCE:
            digest.update(_encoded(rows))
            rows.clear()
            weight = 0
            time.sleep(0)
    digest.update(_encoded(rows))
    return digest.digest()


def _encoded(rows: list[Any]) -> bytes:
    """Return the rows as JSON, each with a comma behind it, however many come at once."""
    return f"{_encode(rows)[1:-1]},".encode() if rows else b""


def _rows(content: Any) -> Iterator[Any]:
    """Yield the values of two levels of a table in the order of their keys, or as they are listed.

    A container of the second level is announced with its size, so no two contents have equal rows.
    """
    if not isinstance(content, dict):
        yield from content
        return
    for key in sorted(content):
        value = content[key]
        if isinstance(value, dict):
            yield key, "{", len(value)
            for inner in sorted(value):
                yield inner, value[inner]
        elif isinstance(value, list | tuple):
            yield key, "[", len(value)
            yield from value
        else:
            yield key, value


def _weight(value: Any) -> int:
    """Return about how many values a row has, so that portions take equally long.

    Only small containers are looked into: long ones hold plain values, or rows of a few."""
    if not isinstance(value, list | tuple | dict):
        return 1
    if len(value) > _SMALL_COUNT:
        return len(value)
    return 1 + sum(map(_weight, value.values() if isinstance(value, dict) else value))


def to_pb(digest: Digest) -> pb.StateDigest:
    """Return a digest for the log or a frame."""
    tables = [pb.TableDigest(table=name, digest=found) for name, found in digest.tables]
    return pb.StateDigest(position=digest.position, form=digest.form, tables=tables)


def from_pb(message: pb.StateDigest) -> Digest:
    """Return the digest of a message. Raises DigestFormatError for one out of bounds."""
    if not 0 <= message.position <= _POSITION_MAX:
        raise DigestFormatError(f"position {message.position}")
    if len(message.tables) > TABLE_COUNT_MAX:
        raise DigestFormatError(f"{len(message.tables)} tables")
    for one in message.tables:
        if not 0 < len(one.table) <= NAME_SIZE_CHARACTERS_MAX:
            raise DigestFormatError(f"a table's name of {len(one.table)} characters")
        if len(one.digest) != DIGEST_SIZE_BYTES:
            raise DigestFormatError(f"a table's digest of {len(one.digest)} bytes")
    tables = tuple(sorted((one.table, one.digest) for one in message.tables))
    if len({name for name, _ in tables}) != len(tables):
        raise DigestFormatError("a table twice")
    return Digest(message.position, message.form, tables)
