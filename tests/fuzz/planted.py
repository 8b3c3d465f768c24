"""Parsers with planted faults, one a target, and one without."""

import os
import re
import struct
import zlib
from collections.abc import Callable
from random import Random
from typing import Final

from tests.fuzz.target import FuzzTarget, claim


class RefusedError(Exception):
    """The typed error of these parsers."""


def _fields(data: bytes) -> dict[int, bytes]:
    """Read fields: a number, a size, the content. The right way."""
    found, at = dict[int, bytes](), 0
    while at + 2 <= len(data):
        hi = at + 2 + data[at + 1]
        if hi > len(data):
            raise RefusedError("cut")
        found[data[at]] = data[at + 2 : hi]
        at = hi
    if at != len(data):
        raise RefusedError("left over")
    return found


def _good(data: bytes) -> None:
    claim(all(len(content) < 256 for content in _fields(data).values()), "a long field")


def _key_error(data: bytes) -> None:
    fields = _fields(data)
    if 7 in fields:
        _ = fields[1]


def _allocation(data: bytes) -> None:
    if len(data) >= 4:
        bytearray(struct.unpack_from(">I", data)[0] & 0xFFFFFF)


def _loop(data: bytes) -> None:
    for content in _fields(data).values():
        if len(content) == 4:
            for _ in range(int.from_bytes(content, "big")):
                pass


def _behind_checksum(data: bytes) -> None:
    if len(data) < 5 or zlib.crc32(data[4:]) != int.from_bytes(data[:4], "big"):
        raise RefusedError("checksum")
    _key_error(data[4:])


def _death(data: bytes) -> None:
    if data[:1] == b"\x09":
        os._exit(9)


def _silence(data: bytes) -> None:
    if len(data) > 2:
        re.match(rb"(a|a)*b", b"a" * 60)


def _examples(_random: Random) -> list[bytes]:
    return [b"\x01\x01a\x07\x02bc", b"\x03\x00\x09\x04\0\0\0\x01"]


def _checked(data: bytes) -> bytes:
    return zlib.crc32(data[4:]).to_bytes(4, "big") + data[4:]


def _checked_examples(random: Random) -> list[bytes]:
    return [_checked(bytes(4) + data) for data in _examples(random)]


def _target(name: str, run: Callable[[bytes], None]) -> FuzzTarget:
    return FuzzTarget(name, name, run, (__name__,), _examples, (RefusedError,))


TARGETS: Final = {
    target.name: target
    for target in (
        _target("good", _good),
        _target("allocation", _allocation),
        _target("loop", _loop),
        _target("death", _death),
        _target("silence", _silence),
        FuzzTarget(
            "behind-checksum",
            "behind a checksum",
            _behind_checksum,
            (__name__,),
            _checked_examples,
            (RefusedError,),
            repaired=_checked,
        ),
    )
}
