"""What a system is to a comparison: started on three processes, driven, killed, stopped.

Owns the words that every peer is described in: a load, what came of it, and what an ack means. Must
not know any peer, nor which rows a comparison has.
"""

from array import array
from dataclasses import dataclass, field
from typing import Protocol

BODY_VARIETY = 16
"""Different random bodies of a load; more would only cost memory."""


class NotOfferedError(Exception):
    """The peer has nothing like what a row measures; its text is the reason."""


class PeerFailedError(Exception):
    """The peer did not start, did not answer in time, or answered wrongly."""


class PeerMissingError(PeerFailedError):
    """Its program, or its client, is not on this machine."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What stands in the table beside a peer's figures."""

    name: str
    durability: str
    """What is true when an append is acked."""
    client: str
    settings: str
    """The settings that are not the defaults, and matter."""
    memory_share: float = 0.0
    """Bytes of memory that all nodes together need for a byte that is kept."""
    restart_memory_share: float = 0.0
    """Likewise, while they start with it."""


@dataclass(frozen=True, slots=True)
class Load:
    """Appends until the time is over or so many are acked; one of the two is given."""

    body_size_bytes: int = 1024
    seconds: float | None = None
    count: int | None = None
    in_flight_count: int = 1
    """Batches that wait for their acks at the same time; not used with a rate."""
    batch_count: int = 1
    """Messages that are handed over together, in what the peer has for it."""
    rate_per_s: float = 0.0
    """Begin so many a second whatever becomes of them; 0: the next when one is acked."""
    topic_count: int = 1
    """Batches go to as many topics in turn."""
    tolerates_errors: bool = False
    """An append that fails is no sample; otherwise it ends the run."""

    def __post_init__(self) -> None:
        """Check what no driver could make sense of."""
        assert (self.seconds is None) != (self.count is None), f"neither or both given: {self}"
        assert min(self.in_flight_count, self.batch_count, self.topic_count) > 0, f"nothing: {self}"
        assert not self.rate_per_s or self.seconds is not None, f"a rate needs seconds: {self}"


@dataclass(slots=True)
class Produced:
    """What came of a load: a sample for each batch, in seconds of the monotonic clock."""

    message_count: int = 0
    seconds: float = 0.0
    error_count: int = 0
    began_s: "array[float]" = field(default_factory=lambda: array("d"))
    took_s: "array[float]" = field(default_factory=lambda: array("d"))

    @property
    def per_second(self) -> float:
        """Acked messages a second."""
        return self.message_count / self.seconds if self.seconds else 0.0

    def latencies_ms(self) -> list[float]:
        """Of each batch, from its (intended) beginning to its ack."""
        return [took * 1e3 for took in self.took_s]

    def first_ack_after(self, moment_s: float) -> float | None:
        """When the first batch was acked that began after that moment."""
        acks = (b + t for b, t in zip(self.began_s, self.took_s, strict=True) if b >= moment_s)
        return min(acks, default=None)


@dataclass(frozen=True, slots=True)
class Consumed:
    """What was read of the first topic, from its first message to the last one there was."""

    message_count: int
    size_bytes: int
    seconds: float


class Peer(Protocol):
    """One system on three nodes. Every call may raise NotOfferedError or PeerFailedError."""

    facts: Facts

    def pids(self) -> dict[str, int]:
        """Running processes by name: the nodes', and the client's if that is not this one."""

    async def start(self, directory: str, *, topic_count: int = 1) -> None:
        """Start everything below that directory; afterwards appends to so many topics are taken."""

    async def produce(self, load: Load) -> Produced:
        """Run a load."""

    async def consume(self) -> Consumed:
        """Read the first topic once, as a consumer of the peer would."""

    async def kill_leader(self) -> float:
        """SIGKILL the process that takes the appends; return the moment (monotonic) before."""

    async def restart(self) -> float:
        """Stop all nodes in order and start them; return the moment of the start.

        When it returns, appends are taken again.
        """

    async def stop(self) -> None:
        """End every process, also after a start that failed. May be called twice."""
