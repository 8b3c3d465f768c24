"""Who makes room where a table is full: one of the address that has most in it."""

from collections.abc import Callable, Iterable
from typing import TypeVar

_T = TypeVar("_T")


def of_busiest(
    items: Iterable[_T], host_of: Callable[[_T], str], size_of: Callable[[_T], int] = lambda _: 1
) -> _T:
    """Return the first item of the address with most of them, by their sizes or their number; there
    is at least one."""
    by_host: dict[str, list[_T]] = {}
    for item in items:
        by_host.setdefault(host_of(item), []).append(item)
    return max(by_host.values(), key=lambda same: sum(map(size_of, same)))[0]
