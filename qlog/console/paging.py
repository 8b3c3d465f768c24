"""Pages of long lists."""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from starlette.requests import Request

from qlog.console.shield import RefusedError
from qlog.parsed import parse_time

_T = TypeVar("_T")


class PageOf(NamedTuple, Generic[_T]):
    """A part of a list, and which part it is."""

    rows: Sequence[_T]
    number: int
    """From 1 on."""
    page_count: int
    row_count: int


def page_of(rows: Sequence[_T], request: Request, size: int) -> PageOf[_T]:
    """Return the page of a list that the address names, the last one at most."""
    page_count = max(1, -(-len(rows) // size))
    number = min(whole(request, "page", 1, 1), page_count)
    return PageOf(rows[(number - 1) * size : number * size], number, page_count, len(rows))


def whole(request: Request, name: str, default: int, lo: int, hi: int = (1 << 63) - 1) -> int:
    """Return a whole number of the address. Raises RefusedError."""
    text = request.query_params.get(name, "")
    return number_of(name, text, lo, hi) if text else default


def time_of(name: str, text: str) -> int:
    """Return the Unix ms of a time as the command line takes it. Raises RefusedError."""
    try:
        return parse_time(text)
    except ValueError as error:
        raise RefusedError(400, f"{name}: {error}.") from error


def number_of(name: str, text: str, lo: int = 0, hi: int = (1 << 63) - 1) -> int:
    """Return the whole number that a stranger's text means. Raises RefusedError."""
    digits = text.removeprefix("-")
    is_number = digits.isascii() and digits.isdecimal() and len(digits) < 20
    if not is_number or not lo <= int(text) <= hi:
        raise RefusedError(400, f"{name} is a whole number from {lo} to {hi}.")
    return int(text)
