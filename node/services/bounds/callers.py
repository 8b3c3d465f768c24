"""The callers of a gRPC server: one for each connection, with its account and its calls under way.

Owns when an account begins and ends: gRPC does not tell of connections, so an account is opened
with the first call of one and closed at the look that finds it without a call and empty: what
outlives its calls, as an open transaction, counts for as long as it is there. Must not know what a
call is.
"""

from typing import Final

from node.runtime.accounts import LEASE_SIZE_BYTES, Account, Accounts, Lease, set_caller
from node.services.bounds.connection_cut import TcpAddress, address_of
from node.services.bounds.look_timer import LookTimer

_LOOK_MS: Final = 1_000


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

    def __init__(self, accounts: Accounts) -> None:
        self.accounts: Final = accounts
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
        for peer, caller in list(self._by_peer.items()):
            if not caller.count and caller.account.is_empty:
                del self._by_peer[peer]
                caller.account.close()
