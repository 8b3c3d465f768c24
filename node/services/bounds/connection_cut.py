"""The TCP connections that gRPC has accepted: the bytes on each, and the end of one.

gRPC has no call for either. Owns the way to the connections: among the descriptors of this process,
by both addresses of each. Must not know why a connection is cut. To gRPC the cut looks as if the
client had closed the connection.
"""

import contextlib
import ipaddress
import os
import socket
import stat
import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, NamedTuple
from urllib.parse import unquote

from store.files.spare_descriptors import NONE_LEFT, SPARE

_DESCRIPTORS: Final = "/proc/self/fd"
_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)
_COUNTED: Final = struct.Struct("=QQ")
_COUNTED_AT: Final = 120
"""tcpi_bytes_acked and tcpi_bytes_received of Linux's struct tcp_info, since 4.1."""

TcpAddress = tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]
Cut = Callable[[str], bool]
"""Ends the connection of a peer; returns whether it was found."""


class Traffic(NamedTuple):
    """The bytes that the kernel has counted on a connection."""

    received: int
    sent: int


NO_TRAFFIC: Final = Traffic(0, 0)


def cut_connection(peer: str, local_port: int) -> bool:
    """End the connection of a gRPC peer (`ipv4:HOST:PORT`) to a port; return whether it was found.

    The search fails when there is no such connection, or no descriptor left to look for it with."""
    wanted = address_of(peer)
    return wanted is not None and cut_connections({wanted}, local_port) == 1


def cut_connections(wanted: Collection[TcpAddress], local_port: int) -> int:
    """End the connections of clients at these addresses to a port; return how many were found."""
    count = 0
    for descriptor in _sockets(_descriptors() or ()):
        # A copy of the descriptor cannot change its file, while gRPC may close and reuse the
        # number. An error means that it was closed meanwhile, or is not a connection.
        with (
            contextlib.suppress(OSError),
            socket.socket(fileno=_copy(descriptor)) as link,
        ):
            if link.family not in _FAMILIES:
                continue
            if link.getsockname()[1] == local_port and _of(link.getpeername()) in wanted:
                link.shutdown(socket.SHUT_RDWR)
                count += 1
                if count == len(wanted):
                    break
    return count


def descriptor_count() -> int:
    """Return how many descriptors the process has; 0 without one left to count with."""
    return len(_descriptors() or ())


def traffic_of(local_port: int) -> dict[TcpAddress, Traffic] | None:
    """Return the traffic of each connection to a port, by its client's address; None while the
    process has no descriptor left to look with.

    Takes about 10 us for each socket of the process."""
    traffic: dict[TcpAddress, Traffic] = {}
    descriptors = _descriptors()
    if descriptors is None:
        return None
    for descriptor in _sockets(descriptors):
        with contextlib.suppress(OSError, struct.error):
            # No copy: a copy would keep a connection open for a moment after gRPC closed it.
            link = socket.socket(fileno=descriptor)
            try:
                if link.family not in _FAMILIES or link.getsockname()[1] != local_port:
                    continue
                client = _of(link.getpeername())
                counted = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                sent, received = _COUNTED.unpack_from(counted, _COUNTED_AT)
                traffic[client] = Traffic(received, sent)
            finally:
                link.detach()
    return traffic


def _copy(descriptor: int) -> int:
    return SPARE.lend(lambda: os.dup(descriptor))


def _descriptors() -> list[int] | None:
    """Return the descriptors of the process; None without one left to read their list with."""
    try:
        names = SPARE.lend(lambda: os.listdir(_DESCRIPTORS))
    except OSError as error:
        if error.errno not in NONE_LEFT:
            raise
        return None
    SPARE.fill()
    return [int(name) for name in names]


def _sockets(descriptors: Iterable[int]) -> Iterator[int]:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                yield descriptor


def address_of(peer: str) -> TcpAddress | None:
    """Return the address in a peer name of gRPC; None if it is not a TCP address."""
    kind, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6"):
        return None
    try:
        return _of((host.strip("[]"), int(port)))
    except ValueError:
        return None


def _of(address: tuple[str, int, *tuple[int, ...]]) -> TcpAddress:
    """Return an address with one form for IPv4, also for one mapped into IPv6."""
    host = ipaddress.ip_address(address[0].partition("%")[0])
    mapped = host.ipv4_mapped if isinstance(host, ipaddress.IPv6Address) else None
    return mapped or host, address[1]
