"""The names of the transports of a client.

Owns the three names; must not know what each does (`quorumlog/cluster/framed`), nor load gRPC: the
command line shows them in its help.
"""

from typing import Final, Literal

from quorumlog.errors import InvalidRequestError

Transport = Literal["auto", "framed", "grpc"]
"""Of the calls on the path of a message: frames where they can be had, only frames, only gRPC."""
TRANSPORTS: Final[tuple[Transport, ...]] = ("auto", "framed", "grpc")


def transport_of(name: str) -> Transport:
    """Return the transport of that name. Raises InvalidRequestError."""
    for transport in TRANSPORTS:
        if name == transport:
            return transport
    raise InvalidRequestError(f"transport is {name!r:.100}; use one of {', '.join(TRANSPORTS)}")
