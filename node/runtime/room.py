"""The room of a table of fixed size, of which the callers of one address may use half.

Owns who uses how much, by address. For what is limited beside the accounts: waiting readers, reads
and receives, and bytes of waiting appends. For one event loop, without I/O.
"""

from collections import Counter
from typing import Final

from node.errors.common import BusyError
from node.runtime.accounts import caller

ADDRESS_PART: Final = 2


class Room:
    """The room of one table. The node's own work may use all of it."""

    __slots__ = ("_by_host", "_what", "limit", "used")

    def __init__(self, what: str, limit: int) -> None:
        """`what` is in errors, in the plural."""
        self._what, self.limit = what, limit
        self.used = 0
        self._by_host: Counter[str] = Counter()

    def take(self, count: int = 1) -> str:
        """Take room for the running call; return what `give_back` needs. Raises BusyError."""
        if self.used + count > self.limit:
            raise BusyError(self._what, self.used, self.limit)
        account = caller()
        if account is None:
            host = ""
        else:
            host = account.address.what
            used, limit = self._by_host[host], max(1, self.limit // ADDRESS_PART)
            if used + count > limit:
                raise BusyError(f"{self._what} of {host}", used, limit)
            self._by_host[host] = used + count
        self.used += count
        return host

    def give_back(self, host: str, count: int = 1) -> None:
        """Give room back."""
        self.used -= count
        if host:
            self._by_host[host] -= count
            if not self._by_host[host]:
                del self._by_host[host]
