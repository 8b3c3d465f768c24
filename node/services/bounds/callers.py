"""The callers of a gRPC server: one for each connection, with its account and its calls under way.

Owns when an account begins and ends: gRPC does not tell of connections, so an account is opened
with the first call of one and closed at the look that finds it without a call and empty: what
outlives its calls, as an open transaction, counts for as long as it is there. That of a user with a
limit of connections is closed only once the kernel has the connection no more, else who waits a
moment between calls would have any number. Must not know what a call is.
"""

from collections.abc import Callable, Collection
from typing import Final

from node.runtime.accounts import LEASE_SIZE_BYTES, Account, Accounts, Lease, set_caller
from node.services.bounds.connection_cut import TcpAddress, address_of
from node.services.bounds.look_timer import LookTimer

_LOOK_MS: Final = 1_000
_SOCKETS_PER_LOOK: Final = 1_000
"""A look at this number takes 10 ms; with more of them only some looks ask the kernel."""


class GrpcCaller(Lease):
    """One connection: its account, and its calls under way with the bytes of their requests."""

    __slots__ = ("account", "peer")

    def __init__(self, peer: str, account: Account) -> None:
        super().__init__(account)
        self.peer, self.account = peer, account

    @property
    def host(self) -> str:
        """The address of the connection, as accounts count it."""
        return self.account.address.what

    def begin(self) -> None:
        """Have a counted call granted; the rest of the task is in this caller's name. Raises
        BusyError."""
        if self.count > self.count_granted:
            self.grow()
        set_caller(self.account)

    def took(self, size_bytes: int) -> None:
        """Count the bytes of a request. Raises BusyError; they are counted all the same."""
        self.size_bytes += size_bytes
        if self.size_bytes > self.size_granted:
            self.grow()

    def spent(self, size_bytes: int) -> None:
        """Count the bytes of a request that is gone; others need those of a large one at once."""
        self.size_bytes -= size_bytes
        if size_bytes > LEASE_SIZE_BYTES:
            self.settle()


class GrpcCallers:
    """The callers of one server. For one event loop."""

    def __init__(
        self, accounts: Accounts, connected: Callable[[], Collection[TcpAddress] | None]
    ) -> None:
        """`connected` returns the addresses of all connections to the port; None: not now."""
        self.accounts: Final = accounts
        self._connected = connected
        self._looks_to_skip = 0
        self._by_peer: Final[dict[str, GrpcCaller]] = {}
        self._timer = LookTimer(_LOOK_MS, self.look, lambda: self._by_peer, None)

    def of(self, peer: str) -> GrpcCaller:
        """Return the caller of a peer name of gRPC."""
        return self._by_peer.get(peer) or self._open(peer)

    def _open(self, peer: str) -> GrpcCaller:
        address = address_of(peer)
        account = self.accounts.open(peer if address is None else str(address[0]))
        caller = self._by_peer[peer] = GrpcCaller(peer, account)
        self._timer.go_on()
        return caller

    def busy(self) -> set[TcpAddress]:
        """Return the addresses of connections with calls under way."""
        addresses = (address_of(peer) for peer, caller in self._by_peer.items() if caller.count)
        return {address for address in addresses if address is not None}

    def look(self) -> None:
        """Close the accounts of connections without a call for which nothing is held."""
        self.accounts.settle()
        idle = [one for one in self._by_peer.values() if not one.count and one.account.is_empty]
        limited = [one for one in idle if (user := one.account.user) and user.is_limited]
        open_still = self._open_still(limited) if limited else ()
        for caller in idle:
            if caller not in open_still:
                del self._by_peer[caller.peer]
                caller.account.close()

    def _open_still(self, callers: Collection[GrpcCaller]) -> Collection[GrpcCaller]:
        """Return those that are connected, or all if this look cannot tell."""
        if self._looks_to_skip:
            self._looks_to_skip -= 1
            return callers
        there = self._connected()
        if there is None:
            return callers
        self._looks_to_skip = len(there) // _SOCKETS_PER_LOOK
        return {caller for caller in callers if address_of(caller.peer) in there}
