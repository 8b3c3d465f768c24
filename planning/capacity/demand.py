"""The demand: what is to be stored, read and survived, and the size of a host.

Owns the inputs of a plan, their ranges and defaults. A default is the choice that asks for more
hardware, unless a docstring says otherwise.
"""

from dataclasses import dataclass, field
from typing import Final

COPIES_MAX: Final = 9
"""Limit of the nodes of a group (deploy/local.py)."""

_CORE_COUNT_MAX: Final = 65_536


class DemandError(ValueError):
    """A demand makes no sense. The text says what, why and what to do, joined by `; `."""

    def __init__(self, what: str, why: str, do: str) -> None:
        super().__init__(what, why, do)
        self.what, self.why, self.do = what, why, do

    def __str__(self) -> str:
        return f"{self.what}: {self.why}; {self.do}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSize:
    """The resources of one host that are there for nodes."""

    cores: int = 4
    memory_size_bytes: int = 16 << 30
    disk_size_bytes: int = 1 << 40
    network_bytes_per_s: float = 125e6
    """In each direction; 1 Gbit/s is 125 MB/s."""

    def __post_init__(self) -> None:
        for name in ("cores", "memory_size_bytes", "disk_size_bytes", "network_bytes_per_s"):
            if getattr(self, name) <= 0:
                raise DemandError(
                    f"the host has {name} = {getattr(self, name)}",
                    "a node needs some of it",
                    "use a number above 0",
                )
        if self.cores > _CORE_COUNT_MAX:
            raise DemandError(
                f"the host has {self.cores:.3g} cores",
                f"no host has more than {_CORE_COUNT_MAX}",
                "use the number of its cores",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The load and what it has to survive. Raises DemandError by name."""

    peak_msgs_per_s: float
    average_msgs_per_s: float
    """Decides what is retained; at most the peak."""
    body_size_bytes: int
    retention_s: float
    topic_size_bytes: int = 32
    properties_size_bytes: int = 64
    key_count: int = 1
    """Keys of a message that the key index holds."""
    batch_count: int = 1
    """Messages of a batch, which is one entry."""
    copies: int = 3
    consumer_count: int = 1
    """Consumer groups, each of which reads every message once."""
    zones: int = 1
    host_failures: int = 1
    """Hosts that may be away at the same time without the service ending."""
    zone_failures: int = 0
    """Zones that may be away at the same time. Not the safe default: with one zone it is absurd."""
    outage_s: float = 3_600.0
    """Time for which a node is away before it catches up."""
    round_trip_ms: float = 1.0
    """Between two hosts, of two zones if there are several."""
    utilisation: float = 0.6
    """Share of a resource that may be in use at the peak."""
    read_memory_s: float = 60.0
    """Age of messages that consumers still find in memory."""
    host: HostSize = field(default_factory=HostSize)

    def __post_init__(self) -> None:
        for name, lo, hi in _RANGES:
            value = getattr(self, name)
            if not lo <= value <= hi:
                raise DemandError(
                    f"{name} is {value}", f"a plan takes {lo:g} to {hi:g}", "use a value in there"
                )
        if self.average_msgs_per_s > self.peak_msgs_per_s:
            raise DemandError(
                f"the average, {self.average_msgs_per_s:g} msg/s, is above the peak",
                f"the peak is {self.peak_msgs_per_s:g} msg/s",
                "give the highest rate as the rate",
            )
        if self.zone_failures >= self.zones and self.zone_failures:
            raise DemandError(
                f"{self.zone_failures} of {self.zones} zones may fail",
                "nothing is left then",
                "plan for more zones, or for fewer that fail",
            )

    @property
    def quorum(self) -> int:
        """Copies that have to be there for an append."""
        return self.copies // 2 + 1

    @property
    def tolerated_count(self) -> int:
        """Copies that may be away."""
        return self.copies - self.quorum

    @property
    def copies_of_zone_max(self) -> int:
        """Copies of a group in one zone at most, spread as evenly as can be."""
        return -(-self.copies // self.zones)


_RANGES: Final = (
    ("peak_msgs_per_s", 1e-3, 1e12),
    ("average_msgs_per_s", 0, 1e12),
    ("body_size_bytes", 0, 4 << 20),
    ("retention_s", 1, 100 * 366 * 86_400),
    ("topic_size_bytes", 1, 255),
    ("properties_size_bytes", 0, 32_767),
    ("key_count", 0, 1_000),
    ("batch_count", 1, 100_000),
    ("copies", 1, COPIES_MAX),
    ("consumer_count", 0, 10_000),
    ("zones", 1, 100),
    ("host_failures", 0, 100),
    ("zone_failures", 0, 99),
    ("outage_s", 0, 366 * 86_400),
    ("round_trip_ms", 0, 10_000),
    ("utilisation", 0.01, 1),
    ("read_memory_s", 0, 366 * 86_400),
)
