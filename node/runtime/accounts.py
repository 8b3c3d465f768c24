"""Accounts: what a node holds for its callers, in number and in bytes, and who pays for it.

Owns the sums and their limits, on three levels: a connection, the address that it comes from, and
the node. A part that keeps something for a caller charges the caller's account where it makes it,
and gives the charge back where it ends. An address may use half of what the node has, and a
connection an eighth, unless the kind says otherwise: so two other addresses always get service.
Must not know what is kept. For one event loop, without I/O.

An account is forgotten when it is closed and empty. What outlives its connection, such as a batch
under way, stays charged to the address until it ends.
"""

import ipaddress
import logging
import resource
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from node.errors.common import BusyError
from node.runtime.logs.rate_limited_log import RateLimitedLog

KIB: Final = 1 << 10
MIB: Final = 1 << 20
_refusals: Final = RateLimitedLog(logging.getLogger(__name__))
ANY: Final = 1 << 62
"""No limit of its own."""
ROW_SIZE_BYTES: Final = 512
"""Objects and index entries of a row, without its texts."""
CALL_SIZE_BYTES: Final = 32 * KIB
"""Memory of a call of gRPC under way beside its request: stream and arena, metadata, and its task.
33 KB measured for each of 8,000 receives that wait."""
LEASE_COUNT: Final = 8
LEASE_SIZE_BYTES: Final = 64 * KIB
"""Steps in which the hot path takes from an account."""


class Kind(IntEnum):
    """What is held for a caller."""

    CONNECTIONS = 0
    """Connections of frames, unfinished handshakes included; bytes: of idle ones."""
    CALLS = 1
    """Calls under way, parked ones included; bytes: their requests."""
    FRAMES = 2
    """Bytes that arrived and were not handed on."""
    DOCUMENTS = 3
    """Documents that were parsed, and calls of gRPC beside their requests, as long as the call is
    under way; bytes: in memory, about."""
    ANSWERS = 4
    """Answers, relays and notices that the receiver has not taken."""
    FORWARDED = 5
    """Classic requests that another node answers for this one; bytes: of the requests."""
    MEMBERS = 6
    """Members of groups with their subscriptions."""
    LOCKS = 7
    """Locks of queues."""
    ROWS = 8
    """Rows of other tables in memory: counters, moves of offsets, offsets that clients know, checks
    of transactions."""
    TRANSACTIONS = 9
    """Transactions that are open. Durable."""
    DELIVERIES = 10
    """Messages that pop handed out and that are not acknowledged. Durable."""
    NAMES = 11
    """Topics and groups that a caller without administration made. Durable."""
    OFFSETS = 12
    """Offsets of groups. Durable."""
    PRODUCERS = 13
    """Names of producers, which are never forgotten. Durable."""
    DELAYED = 14
    """Messages that wait for their time. Durable."""
    HALF_STREAMS = 15
    """Messages of gRPC streams of which a part arrived; bytes: estimated, over a limit too until
    the streams are ended."""
    KEYS = 16
    """Keys of the configuration that clients of RocketMQ keep. Durable."""
    VALUES = 17
    """Bytes of values in the name server's directory, by their number. Durable."""


_KINDS: Final = len(Kind)


@dataclass(frozen=True, slots=True)
class Limit:
    """What a node holds of one kind for all callers, and the parts of it that one address and one
    connection may use. Frozen; a wrong value raises ValueError."""

    name: str
    """In errors, in the plural."""
    count_max: int = ANY
    size_bytes_max: int = ANY
    address_part: int = 2
    """An address may use one of this many parts."""
    connection_part: int = 8

    def __post_init__(self) -> None:
        numbers = (self.count_max, self.size_bytes_max, self.address_part, self.connection_part)
        if min(numbers) < 1:
            raise ValueError(f"limit of {self.name}: use 1 or more")

    def part(self, part: int) -> tuple[int, int]:
        """Return count and bytes of one of this many parts."""
        return max(1, self.count_max // part), max(1, self.size_bytes_max // part)


LIMITS: Final[Mapping[Kind, Limit]] = MappingProxyType(
    {
        Kind.CONNECTIONS: Limit("connections", 16_384, 512 * MIB),
        Kind.CALLS: Limit("calls under way", 16_384, 192 * MIB),
        Kind.FRAMES: Limit("frames half sent", ANY, 256 * MIB, connection_part=2),
        Kind.DOCUMENTS: Limit("documents", ANY, 256 * MIB, connection_part=4),
        Kind.ANSWERS: Limit("answers not taken", ANY, 256 * MIB, connection_part=16),
        Kind.FORWARDED: Limit("forwarded requests", 16_384, 128 * MIB, connection_part=4),
        Kind.MEMBERS: Limit("members of groups", 16_384, 64 * MIB),
        Kind.LOCKS: Limit("locks of queues", 131_072, 128 * MIB),
        Kind.ROWS: Limit("rows in memory", 65_536, 32 * MIB),
        Kind.TRANSACTIONS: Limit("open transactions", 20_000),
        Kind.DELIVERIES: Limit("messages handed out", 131_072),
        Kind.NAMES: Limit("topics and groups of clients", 10_000, address_part=10),
        Kind.OFFSETS: Limit("offsets of groups", 200_000),
        Kind.PRODUCERS: Limit("names of producers", 10_000, address_part=10),
        Kind.DELAYED: Limit("delayed messages", 2_000_000),
        Kind.HALF_STREAMS: Limit("half messages of streams", ANY, 256 * MIB, connection_part=2),
        Kind.KEYS: Limit("keys of the configuration", 10_000, address_part=8),
        # Each replica of the directory, which has 256 KiB, takes 32 KiB of one address.
        Kind.VALUES: Limit("bytes of values of the name server", 1 * MIB, address_part=32),
    }
)
"""The limits of a node. Where an operator may set one, `limits_of` takes it."""


def row_size_bytes(*texts: str) -> int:
    """Return the bytes of a row of a table in memory, about: its objects, and its texts."""
    return ROW_SIZE_BYTES + sum(map(sys.getsizeof, texts))


def affordable_connections() -> int:
    """Return how many connections callers of one port may have: half of the descriptors that this
    process may have, so that strangers at a port never take the last one, which the log needs."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # The node raises its own limit to it.
    count_max = LIMITS[Kind.CONNECTIONS].count_max
    return count_max if hard == resource.RLIM_INFINITY else max(1, min(count_max, hard // 2))


def limits_of(call_count_max: int) -> Mapping[Kind, Limit]:
    """Return the limits of a node that serves at most `call_count_max` calls at once, half of them
    over gRPC, whose calls need memory of their own."""
    calls, documents = LIMITS[Kind.CALLS], LIMITS[Kind.DOCUMENTS]
    connections = replace(LIMITS[Kind.CONNECTIONS], count_max=affordable_connections())
    size_bytes_max = max(documents.size_bytes_max, call_count_max * CALL_SIZE_BYTES // 2)
    return {
        **LIMITS,
        Kind.CONNECTIONS: connections,
        Kind.CALLS: replace(calls, count_max=call_count_max),
        Kind.DOCUMENTS: replace(documents, size_bytes_max=size_bytes_max),
    }


class Level:
    """Sums of one level, and their limits in number and bytes. By kind."""

    __slots__ = ("counts", "limits", "sizes", "what")

    def __init__(self, what: str, limits: list[tuple[int, int]]) -> None:
        self.what, self.limits = what, limits
        self.counts = [0] * _KINDS
        self.sizes = [0] * _KINDS
        """In bytes."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held."""
        return not any(self.counts) and not any(self.sizes)


class Accounts:
    """The accounts of all callers of a node. One per node."""

    def __init__(self, limits: Mapping[Kind, Limit] = LIMITS) -> None:
        self.limits: Final = {kind: limits.get(kind, LIMITS[kind]) for kind in Kind}
        parts = [
            [self.limits[kind].part(part) for kind, part in of]
            for of in (
                [(kind, 1) for kind in Kind],
                [(kind, self.limits[kind].address_part) for kind in Kind],
                [(kind, self.limits[kind].connection_part) for kind in Kind],
            )
        ]
        self.total: Final = Level("all callers", parts[0])
        self._of_address, self._of_connection = parts[1:]
        self.addresses: dict[str, Address] = {}
        """Those for which something is held, or that are connected."""
        self._remotes: dict[str, Account] = {}
        self.leases: dict[Lease, None] = {}
        """Those that took something since `settle`."""
        self.has_settled_early = False
        """Whether a lease without room settled all, since they were settled at an interval."""
        self.refused: Final[Counter[str]] = Counter({kind.name.lower(): 0 for kind in Kind})
        """Charges that were refused, by kind."""

    def open(self, host: str) -> "Account":
        """Return a new account of a connection from an IP address, or whatever stands for it. One
        machine has a whole network of IPv6 addresses, so these count as one."""
        what = network_of(host)
        address = self.addresses.get(what) or Address(self, what, self._of_address)
        account = Account(self, address, self._of_connection)
        self.count(account, 1)
        return account

    def of_remote(self, host: str, remote: str) -> "Account":
        """Return the account of a client that another node speaks for, by its address with port.

        It is closed when `settle` finds it empty."""
        account = self._remotes.get(remote)
        if account is None:
            account = self._remotes[remote] = self.open(host)
        return account

    def held(self, kind: Kind) -> tuple[int, int]:
        """Return count and bytes that are held of a kind."""
        return self.total.counts[kind], self.total.sizes[kind]

    def settle(self) -> None:
        """Take back what leases do not use, and close accounts of remotes without anything. Called
        at intervals."""
        leases, self.leases = self.leases, {}
        self.has_settled_early = False
        for lease in leases:
            lease.settle()
        for remote in [remote for remote, one in self._remotes.items() if one.is_empty]:
            self._remotes.pop(remote).close()

    def count(self, account: "Account", change: int) -> None:
        """Count an account that is opened (1), or closed and empty (-1)."""
        address = account.address = self.addresses.setdefault(account.address.what, account.address)
        address.account_count += change
        account.levels = (account, address, self.total)
        self.forget_if_unused(address)

    def forget_if_unused(self, address: "Address") -> None:
        """Forget an address that has no account and holds nothing."""
        if not address.account_count and address.is_empty:
            del self.addresses[address.what]

    def refusal(self, kind: Kind, whose: str, held: int, limit: int, unit: str = "") -> BusyError:
        """Return the error for more of a kind than a limit allows, and count it."""
        self.refused[kind.name.lower()] += 1
        error = BusyError(f"{unit}{self.limits[kind].name} of {whose}", held, limit)
        _refusals.warn(f"a limit of callers, {kind.name.lower()}", str(error))
        return error


def network_of(host: str) -> str:
    """Return what an address counts as: an IPv6 address as its /64, or as the IPv4 address that it
    stands for."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback:
        return host
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


class UserAccount:
    """What is held for one user: its connections, in number. `users.rates` has its rates."""

    __slots__ = ("connection_count",)

    def __init__(self) -> None:
        self.connection_count = 0

    @property
    def is_limited(self) -> bool:
        """Whether the number of its connections has a limit."""
        return False


class Address(Level):
    """The sums of one address: those of its connections, and what outlives them."""

    __slots__ = ("account_count", "accounts")

    def __init__(self, accounts: Accounts, host: str, limits: list[tuple[int, int]]) -> None:
        super().__init__(host, limits)
        self.accounts: Final = accounts
        self.account_count = 0

    def room(self, kind: Kind) -> int:
        """Return how many more of a kind may be held."""
        return min(level.limits[kind][0] - level.counts[kind] for level in self._levels)

    def take(self, kind: Kind, count: int) -> None:
        """Hold more, beyond connections. Raises BusyError."""
        self.check(kind, count)
        self.hold(kind, count)

    def check(self, kind: Kind, count: int = 1) -> None:
        """Raise BusyError if that many more may not be held."""
        for level in self._levels:
            held, (limit, _) = level.counts[kind], level.limits[kind]
            if held + count > limit:
                raise self.accounts.refusal(kind, level.what, held, limit)

    def hold(self, kind: Kind, change: int) -> None:
        """Change what is held beyond connections: over a limit, too."""
        holder = self.accounts.addresses.setdefault(self.what, self)
        for level in self._levels:
            level.counts[kind] += change
            assert level.counts[kind] >= 0, f"{kind.name} given back twice"
        self.accounts.forget_if_unused(holder)

    @property
    def _levels(self) -> tuple[Level, Level]:
        """The one object of this address, which may be another if nothing was held, and all."""
        return self.accounts.addresses.get(self.what, self), self.accounts.total


class Account(Level):
    """What is held for one connection. Made by `Accounts.open`."""

    __slots__ = ("_context", "_is_counted", "accounts", "address", "is_closed", "levels", "user")

    def __init__(self, accounts: Accounts, address: Address, limits: list[tuple[int, int]]) -> None:
        super().__init__("one connection", limits)
        self.accounts: Final = accounts
        self._context: Context | None = None
        self.address = address
        self.levels: tuple[Level, ...] = ()
        """This one, its address and the node."""
        self.is_closed, self._is_counted = False, True
        self.user: UserAccount | None = None
        """Whose connection it is; None: of no user."""

    def belong(self, user: UserAccount | None) -> None:
        """Count the connection for a user, and for no other one; None: for none."""
        if self.user is not None:
            self.user.connection_count -= 1
        self.user = None if self.is_closed else user
        if self.user is not None:
            self.user.connection_count += 1

    def charge(self, kind: Kind, size_bytes: int = 0, count: int = 1) -> "Charge":
        """Hold something for this caller until the charge is released. Raises BusyError."""
        self.take(kind, size_bytes, count)
        return Charge(self, kind, size_bytes, count)

    def take(self, kind: Kind, size_bytes: int, count: int = 1) -> None:
        """Add to what is held, without a charge: the caller keeps the numbers. Raises BusyError."""
        if not self._is_counted:  # Its connection is gone, and a part of it still works.
            self._is_counted = True
            self.accounts.count(self, 1)
        for level in self.levels:
            count_max, size_bytes_max = level.limits[kind]
            held, size_held = level.counts[kind], level.sizes[kind]
            if held + count > count_max:
                error = self.accounts.refusal(kind, level.what, held, count_max)
            elif size_held + size_bytes > size_bytes_max:
                what = level.what
                error = self.accounts.refusal(kind, what, size_held, size_bytes_max, "bytes of ")
            else:
                continue
            if self.is_closed:
                self._forget_if_empty()
            raise error
        for level in self.levels:
            level.counts[kind] += count
            level.sizes[kind] += size_bytes

    def give_back(self, kind: Kind, size_bytes: int, count: int = 1) -> None:
        """Take from what is held."""
        for level in self.levels:
            level.counts[kind] -= count
            level.sizes[kind] -= size_bytes
            assert level.counts[kind] >= 0 <= level.sizes[kind], f"{kind.name} given back twice"
        if self.is_closed:
            self._forget_if_empty()

    def set_size(self, kind: Kind, size_bytes: int) -> None:
        """Set the bytes that are held of a kind, as the part found them: over a limit, too."""
        grown = size_bytes - self.sizes[kind]
        for level in self.levels:
            level.sizes[kind] += grown
        if self.is_closed:
            self._forget_if_empty()

    def excess(self, kind: Kind, size_bytes: int = 0) -> "Level | None":
        """Return the lowest level whose bytes of a kind would exceed their limit; None: none."""
        for level in self.levels:
            if level.sizes[kind] + size_bytes > level.limits[kind][1]:
                return level
        return None

    def is_under_half(self, kind: Kind) -> bool:
        """Whether less than half of every limit of a kind is held."""
        return all(
            2 * level.counts[kind] < level.limits[kind][0]
            and 2 * level.sizes[kind] < level.limits[kind][1]
            for level in self.levels
        )

    def close(self) -> None:
        """Note the end of the connection: nothing more is charged."""
        if not self.is_closed:
            self.is_closed = True
            self.belong(None)
            self._forget_if_empty()

    def _forget_if_empty(self) -> None:
        if self._is_counted and self.is_empty:
            self._is_counted = False
            self.accounts.count(self, -1)

    @property
    def context(self) -> Context:
        """The context in which calls of this caller run: there `caller` returns this account."""
        if self._context is None:
            self._context = copy_context()
            self._context.run(_caller.set, self)
        return self._context


class Charge:
    """Something that is held for a caller."""

    __slots__ = ("account", "count", "kind", "size_bytes")

    def __init__(self, account: Account, kind: Kind, size_bytes: int, count: int) -> None:
        self.account, self.kind = account, kind
        self.size_bytes, self.count = size_bytes, count

    def release(self) -> None:
        """Give it back. A repeated call does nothing."""
        count, size_bytes, self.count, self.size_bytes = self.count, self.size_bytes, 0, 0
        if count or size_bytes:
            self.account.give_back(self.kind, size_bytes, count)

    def resize(self, size_bytes: int) -> None:
        """Change its bytes. Raises BusyError; then it is as before."""
        grown = size_bytes - self.size_bytes
        if grown > 0:
            self.account.take(self.kind, grown, 0)
        else:
            self.account.give_back(self.kind, -grown, 0)
        self.size_bytes = size_bytes


class Lease:
    """Calls under way of one connection, on the hot path: an addition and a comparison each.

    `count` and `size_bytes` are what is used; the user adds and subtracts, and calls `grow` where
    one exceeds what was granted. What is granted and not used is taken back at intervals.
    """

    __slots__ = ("_account", "_accounts", "count", "count_granted", "size_bytes", "size_granted")

    def __init__(self, account: Account) -> None:
        self._account, self._accounts = account, account.accounts
        self.count = self.count_granted = 0
        self.size_bytes = self.size_granted = 0

    def grow(self) -> None:
        """Have as much granted as is used, and some more if there is plenty. Raises BusyError."""
        count = max(0, self.count - self.count_granted)
        size_bytes = max(0, self.size_bytes - self.size_granted)
        more, more_bytes = count, size_bytes
        if self._account.is_under_half(Kind.CALLS):  # Else what one keeps, another lacks.
            more = max(count, LEASE_COUNT) if count else 0
            more_bytes = max(size_bytes, LEASE_SIZE_BYTES) if size_bytes else 0
        try:
            self._account.take(Kind.CALLS, more_bytes, more)
        except BusyError:
            self._accounts.refused[Kind.CALLS.name.lower()] -= 1  # It is no refusal yet.
            if not self._accounts.has_settled_early:  # It walks all leases.
                self._accounts.settle()
                self._accounts.has_settled_early = True
            more, more_bytes = count, size_bytes
            self._account.take(Kind.CALLS, more_bytes, more)
        self.count_granted += more
        self.size_granted += more_bytes
        self._accounts.leases[self] = None

    def settle(self) -> None:
        """Give back what is granted and not used."""
        count = max(0, self.count_granted - self.count)
        size_bytes = max(0, self.size_granted - self.size_bytes)
        self.count_granted -= count
        self.size_granted -= size_bytes
        if self.count_granted or self.size_granted:
            self._accounts.leases[self] = None
        self._account.give_back(Kind.CALLS, size_bytes, count)


_caller: ContextVar[Account | None] = ContextVar("caller", default=None)


set_caller: Final = _caller.set
"""Runs the rest of the current task as a call of this account."""


caller: Final = _caller.get
"""Returns the account of the caller whose call is running; None: the node's own work."""


def caller_host() -> str:
    """Return the address of the running call; empty for the node's own work."""
    account = _caller.get()
    return "" if account is None else account.address.what


@contextmanager
def on_behalf_of(account: Account) -> Iterator[None]:
    """Run a block as a call of this account."""
    token = _caller.set(account)
    try:
        yield
    finally:
        _caller.reset(token)
