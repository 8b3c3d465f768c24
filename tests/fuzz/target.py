"""A fuzz target: a parser, the claim that holds for any bytes, and how to make good ones.

Owns the shape of a target, and the check of one input; must not know how inputs are searched.
"""

import importlib
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from types import FrameType
from typing import Any, Final, TypeVar

KIB: Final = 1 << 10
_Value = TypeVar("_Value")


class ClaimBrokenError(Exception):
    """A parser answered, and its answer breaks the claim of the target."""


def claim(holds: object, what: str) -> None:
    """Raise ClaimBrokenError unless the claim holds."""
    if not holds:
        raise ClaimBrokenError(what)


def same_again(
    decode: Callable[[bytes], _Value], encode: Callable[[_Value], bytes]
) -> Callable[[bytes], None]:
    """Return a run with the claim that what is read reads the same after it is written again."""

    def run(data: bytes) -> None:
        value = decode(data)
        again = decode(encode(value))
        claim(again == value, f"{value} becomes {again}")

    return run


@dataclass(frozen=True, slots=True)
class FuzzTarget:
    """A parser under attack. For any bytes `run` returns, or raises one of `errors`, within the
    bounds of memory and steps; everything else is a finding."""

    name: str
    states: str
    """The claim, as a sentence."""
    run: Callable[[bytes], None]
    """Parses the bytes and checks the answer. Raises ClaimBrokenError for a wrong one."""
    modules: tuple[str, ...]
    """Modules whose lines count as steps."""
    examples: Callable[[Random], Sequence[bytes]]
    """Returns good inputs, from our own encoders where there are any."""
    errors: tuple[type[Exception], ...] = ()
    """Typed errors: a refusal is a right answer."""
    repaired: Callable[[bytes], bytes] | None = None
    """Puts sizes and checksums right again, so that mutations reach what is behind them."""
    mutated: Callable[[Random, bytes], bytes] | None = None
    """A mutation that knows the structure, used as often as those of bytes."""
    words: tuple[bytes, ...] = ()
    """Pieces that the parser gives a meaning to."""
    size_bytes_max: int = 4 * KIB
    memory_base_bytes: int = 512 * KIB
    memory_factor: int = 64
    """Memory of one input: at most the base and the factor times its size."""
    step_base_count: int = 20_000
    step_factor: int = 256
    """Lines of `modules` that one input runs: at most the base and the factor times its size."""

    def check(self, data: bytes) -> None:
        """Run one input. Raises ClaimBrokenError for a wrong answer or a bound that is passed, and
        lets each error through that is not typed."""
        step_count_max = self.step_base_count + self.step_factor * len(data)
        memory_bytes_max = self.memory_base_bytes + self.memory_factor * len(data)
        tracemalloc.start(1)
        try:
            with _step_limit(self.modules, step_count_max):
                self.run(data)
        except self.errors:
            pass
        except StepsExceededError:
            claim(False, f"{len(data)} bytes ran more than {step_count_max} lines")
        finally:
            peak_bytes = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        claim(peak_bytes <= memory_bytes_max, f"{len(data)} bytes took {peak_bytes} of memory")


class StepsExceededError(BaseException):
    """An input ran more lines than it may. No parser catches it: it is no Exception."""


@contextmanager
def _step_limit(modules: Sequence[str], step_count_max: int) -> Iterator[None]:
    """Raise StepsExceededError after so many lines of the modules."""
    paths = {importlib.import_module(name).__file__ for name in modules}
    left_count = step_count_max

    def on_line(_frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal left_count
        left_count -= event == "line"
        if left_count < 0:
            raise StepsExceededError
        return on_line

    former = sys.gettrace()
    sys.settrace(lambda frame, _event, _arg: on_line if frame.f_code.co_filename in paths else None)
    try:
        yield
    finally:
        sys.settrace(former)


# --- Streams: cut in any way, they give the same frames ---

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
