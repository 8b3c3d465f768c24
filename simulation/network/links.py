"""The network between machines: which machine reaches which, and how fast.

Owns addresses, names and the state of each direction of each link. Streams ask it when bytes
arrive. A stream keeps its order as TCP does; loss shows as delay, a partition as silence until it
is over or the stream gives up.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

from simulation.kernel.hub import NS_PER_MS, NS_PER_US, Hub

if TYPE_CHECKING:
    from simulation.kernel.machine import Machine

ANY: Final = "0.0.0.0"
LOOPBACK: Final = "127.0.0.1"
RETRANSMIT_NS: Final = 200 * NS_PER_MS
"""What one lost segment costs a stream; each further loss of it twice as much."""
LOSSES_MAX: Final = 5


@dataclass
class Direction:
    """One direction of a link."""

    latency_ns: int = 100 * NS_PER_US
    jitter_ns: int = 100 * NS_PER_US
    loss: float = 0.0
    """Share of segments that get lost once more."""
    bytes_per_s: int = 1_000_000_000
    is_cut: bool = False


class Links:
    """The links between all machines of one world."""

    def __init__(self, hub: Hub) -> None:
        self.hub: Final = hub
        self.random: Final = Random(hub.random.getrandbits(64))
        self.usual: Final = Direction()
        self._directions: dict[tuple[str, str], Direction] = {}
        self._names: dict[str, str] = {}
        self._machines: dict[str, Machine] = {}
        self.listeners: Final[dict[tuple[str, int], Any]] = {}
        self._next_port = 20_000

    # --- Names and addresses ---

    def register(self, machine: Machine) -> None:
        """Connect a machine."""
        self._names[machine.name] = machine.address
        self._machines[machine.address] = machine

    def has_power(self, address: str) -> bool:
        """Whether the machine at an address answers at all."""
        return address in self._machines and self._machines[address].has_power

    def resolve(self, name: str) -> str:
        """Return the address of a name; addresses are their own. Raises socket.gaierror."""
        if name in self._names:
            return self._names[name]
        if name.replace(".", "").isdigit():
            return name
        if name == "localhost":
            return LOOPBACK
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    def infos(
        self, host: Any, port: Any, family: int, kind: int, protocol: int, flags: int
    ) -> list[Any]:
        """Return what `getaddrinfo` returns: there are only streams of IPv4."""
        if (
            family not in (0, socket.AF_INET)
            or kind not in (0, socket.SOCK_STREAM)
            or protocol not in (0, socket.IPPROTO_TCP)
            or flags not in (0, socket.AI_PASSIVE)
        ):
            asked = f"family {family}, type {kind}, proto {protocol}, flags {flags}"
            raise NotImplementedError(f"getaddrinfo with {asked} is not simulated")
        found = (self.resolve(str(host or ANY)), int(port or 0))
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", found)]

    def free_port(self) -> int:
        """Return a port that was never used before."""
        self._next_port += 1
        return self._next_port

    # --- Links ---

    def direction(self, source: str, target: str) -> Direction:
        """Return the direction of the link from one address to another, to look at or change."""
        key = (source, target)
        if key not in self._directions:
            self._directions[key] = Direction(**vars(self.usual))
        return self._directions[key]

    def cut(self, source: str, target: str, *, both: bool = True) -> None:
        """Let nothing through from one address to another, and back if `both`."""
        self.direction(source, target).is_cut = True
        if both:
            self.direction(target, source).is_cut = True

    def heal(self) -> None:
        """Make all links whole and as usual."""
        self._directions.clear()

    def is_cut(self, source: str, target: str) -> bool:
        """Whether nothing gets through from one address to another."""
        return source != target and self.direction(source, target).is_cut

    def delay_ns(self, source: str, target: str, size_bytes: int) -> int:
        """Return how long a segment takes that leaves now, through a link that is not cut."""
        if source == target:
            return self.random.randrange(5, 20) * NS_PER_US
        way, random = self.direction(source, target), self.random
        delay_ns = way.latency_ns + size_bytes * 1_000_000_000 // way.bytes_per_s
        if way.jitter_ns:
            delay_ns += random.randrange(way.jitter_ns)
        pause_ns = RETRANSMIT_NS
        for _ in range(LOSSES_MAX):
            if not way.loss or random.random() >= way.loss:
                break
            delay_ns += pause_ns
            pause_ns *= 2
        return delay_ns
