"""The common part of targets of streams: a stream cut in any way gives the same frames.

Owns the cutting; must not know a protocol.
"""

import zlib
from collections.abc import Callable, Iterator
from random import Random
from typing import TypeVar

from tests.fuzz.target import claim

_Frame = TypeVar("_Frame")
Frames = Callable[[Iterator[bytes], list[_Frame]], None]
"""Parses pieces of a stream with a new parser, appends its frames, raises the parser's error."""


def pieces_of(data: bytes, cuts: Random | None) -> Iterator[bytes]:
    """Yield a stream whole, or in pieces, most of them small."""
    at = 0
    while at < len(data):
        size = len(data) if cuts is None else cuts.choice((1, 2, 3, 5, 8, 13, 40, 200, 5_000))
        yield data[at : at + size]
        at += size


def same_however_cut(
    data: bytes, parse: Frames[_Frame], errors: tuple[type[Exception], ...]
) -> list[_Frame]:
    """Parse a stream whole and in pieces; return its frames, or raise the error, if both agree."""
    outcomes: list[tuple[list[_Frame], Exception | None]] = []
    for cuts in (None, Random(zlib.crc32(data))):
        frames: list[_Frame] = []
        error: Exception | None = None
        try:
            parse(pieces_of(data, cuts), frames)
        except errors as caught:
            error = caught
        outcomes.append((frames, error))
    (whole, error), (cut, cut_error) = outcomes
    claim(type(error) is type(cut_error), f"{error!r} whole, {cut_error!r} in pieces")
    claim(whole == cut, f"{len(whole)} frames whole, {len(cut)} in pieces")
    if error is not None:
        raise error
    return whole
