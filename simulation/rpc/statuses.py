"""The statuses that gRPC itself makes: codes and texts, as grpcio 1.85 gives them.

Clients tell by the text whether a call can have reached a node, so the texts are kept to the
letter; `tests/simulation/rpc` compares them with those of the real library.
"""

from __future__ import annotations

import os
from typing import Any, Final, NamedTuple

import grpc
from grpc._cython import cygrpc

from simulation.rpc.frames import Metadata

OK: Final[int] = 0
CANCELLED: Final[int] = 1
UNKNOWN: Final[int] = 2
DEADLINE_EXCEEDED: Final[int] = 4
RESOURCE_EXHAUSTED: Final[int] = 8
UNIMPLEMENTED: Final[int] = 12
INTERNAL: Final[int] = 13
UNAVAILABLE: Final[int] = 14
_NAMES: Final = {code.value[0]: code.name for code in grpc.StatusCode}

DEADLINE: Final = "Deadline Exceeded"
SOCKET_CLOSED: Final = "Socket closed"
CANCELLING_ALL: Final = "Cancelling all calls"
METHOD_NOT_FOUND: Final = "Method not found!"
TOO_MANY_CALLS: Final = "Concurrent RPC limit exceeded!"
NO_SETTINGS: Final = "connection attempt timed out before receiving SETTINGS frame"
CONNECT_TIMED_OUT: Final = "Failed to connect to remote host: connect() timed out"


class Status(NamedTuple):
    """The end of a call."""

    code: int
    details: str
    metadata: Metadata = ()

    def of_client(self) -> Any:
        """Return it as the Python part of grpcio gets it."""
        debug = f"{_NAMES[self.code]}:{self.details}" if self.code else ""
        return cygrpc.AioRpcStatus(self.code, self.details, self.metadata, debug)


def removed(code: int, why: str) -> Status:
    """Return the status of a call that was on a connection and got no answer."""
    return Status(code, f"Stream removed ({why})")


def lost(error: Exception | None) -> Status:
    """Return the status of a call whose connection was lost."""
    return removed(UNAVAILABLE, reason(error))


def reason(error: Exception | None) -> str:
    """Return gRPC's words for the loss of a connection."""
    if isinstance(error, ConnectionResetError):
        return "recvmsg:Connection reset by peer (104)"
    if isinstance(error, TimeoutError):
        return "recvmsg:Connection timed out (110)"
    return SOCKET_CLOSED


def not_connected(last: str) -> str:
    """Return the text for a call that could not be sent, from that of the last attempt."""
    return f"failed to connect to all addresses; last error: {last}"


def not_resolved(target: str) -> str:
    """Return the text for a call to an unknown name."""
    why = f"[field:hostname lookup error:address lookup failed for {target}: Domain name not found]"
    return f"errors resolving {target}: {why}"


def too_large(side: str, verb: str, size_bytes: int, size_bytes_max: int) -> str:
    """Return the text for a message that is above a limit of one side."""
    return f"{side}: {verb} message larger than max ({size_bytes} vs. {size_bytes_max})"


def connect_reason(error: OSError) -> str:
    """Return gRPC's words for a connection that was not made."""
    if isinstance(error, ConnectionRefusedError):
        return "Connection refused"
    return os.strerror(error.errno or 0)
