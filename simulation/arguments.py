"""Numbers of both command lines of simulation; argparse prints why one is refused."""

from argparse import ArgumentTypeError
from functools import partial
from typing import Final, TypeVar

_Number = TypeVar("_Number", int, float)
MAX: Final = 1 << 62


def _number(kind: type[_Number], least: _Number, text: str) -> _Number:
    try:
        if least <= (value := kind(text)) < MAX:
            return value
    except ValueError:
        pass
    noun = {int: "whole number", float: "number"}[kind]
    raise ArgumentTypeError(f"{text!r} is no {noun} from {least} on")


seed: Final = partial(_number, int, 0)
count: Final = partial(_number, int, 1)
seconds: Final = partial(_number, float, 0.001)


def seeds(text: str) -> range:
    """Return the seeds of `A..B`, or of one number. Raises ArgumentTypeError."""
    first, dots, last = text.partition("..")
    found = range(seed(first), seed(last if dots else first) + 1)
    if not found:
        raise ArgumentTypeError(f"{text!r} has no seeds; A..B is wanted, with A up to B")
    return found
