"""Types of single settings: addresses, sizes with a unit, times with a unit, lists and peers.

Owns the notation of each in a file, a variable or a flag, and the error text for a wrong value.
Must not know which settings exist.
"""

import ipaddress
import re
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, PlainValidator

_SIZES = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_TIMES = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_WILDCARDS = frozenset({"", "0.0.0.0", "::", "*"})


class Address(NamedTuple):
    """The address where a socket listens or is reached. Port 0: any free one, to listen only."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        """Whether the address names all interfaces, so that no client can dial it."""
        return self.host in _WILDCARDS

    @classmethod
    def parse(cls, text: object) -> "Address":
        """Read `host:port` or `[v6]:port`. Raises ValueError."""
        if isinstance(text, cls):
            return text
        match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:\[\]]*)):([0-9]{1,5})", str(text))
        if not isinstance(text, str) or match is None or int(match[3]) > 65535:
            raise ValueError("use host:port, for example 127.0.0.1:8081 or [::1]:8081")
        return cls(match[1] or match[2], int(match[3]))


def _with_unit(units: dict[str, int], example: str) -> Any:
    def parse(value: object) -> object:
        if not isinstance(value, str):
            return value
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", value)
        unit = units.get(match[2]) if match else None
        if match is None or unit is None:
            raise ValueError(f"use a number, or one with a unit, for example {example}")
        try:
            return round(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit
        except (OverflowError, ValueError):  # The latter of more digits than Python reads.
            raise ValueError(f"use a smaller number, for example {example}") from None

    return BeforeValidator(parse)


def _split(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _parse_peers(value: object) -> object:
    """Read `1=host:40911/host:8081,2=...`: peer address, then client address."""
    if not isinstance(value, str):
        return value
    peers: dict[str, dict[str, str]] = {}
    for part in filter(None, (part.strip() for part in value.split(","))):
        match = re.fullmatch(r"([0-9]+)=([^/]+)/([^/]+)", part)
        if match is None:
            raise ValueError(
                f"{part!r} is no peer; use ID=PEER_HOST:PORT/CLIENT_HOST:PORT, joined by commas"
            )
        peers[match[1]] = {"peer_address": match[2], "address": match[3]}
    return peers


def _parse_or_off(value: object) -> Address | None:
    return None if value is None or value == "off" else Address.parse(value)


AUTO: Final = "auto"
"""The address follows from other settings."""
AddressText = Annotated[Address, PlainValidator(Address.parse), PlainSerializer(str)]
AddressOrOff = Annotated[
    Address | None,
    PlainValidator(_parse_or_off),
    PlainSerializer(lambda address: "off" if address is None else str(address)),
]
AddressAutoOrOff = Annotated[
    Address | str | None,
    PlainValidator(lambda value: AUTO if value == AUTO else _parse_or_off(value)),
    PlainSerializer(lambda address: "off" if address is None else str(address)),
]
Addresses = Annotated[tuple[AddressText, ...], BeforeValidator(_split)]
SizeBytes = Annotated[int, _with_unit(_SIZES, "64MiB")]
DurationMs = Annotated[int, _with_unit(_TIMES, "500ms, 10s, 72h or 3d")]
NodeNumber = Annotated[int, Field(ge=1, le=2**31 - 1)]
NodeNumbers = Annotated[tuple[NodeNumber, ...], BeforeValidator(_split)]


class Peer(BaseModel):
    """The addresses of one node of the cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: AddressText
    """The address of its client service."""
    peer_address: AddressText
    """The address of its peer link."""


Peers = Annotated[dict[NodeNumber, Peer], BeforeValidator(_parse_peers)]


def plain(value: object) -> object:
    """Return the value of a setting in the form that a TOML file would hold."""
    if isinstance(value, Address):
        return str(value)
    if isinstance(value, BaseModel):
        return {name: plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return [plain(inner) for inner in value]
    return value


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a port at `host`.

    A name other than localhost counts as open: without resolving it the answer is unknown.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
