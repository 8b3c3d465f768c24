"""A system as a comparison sees it: started on three processes, driven, killed, stopped.

Owns the words that describe every peer: a load, its result, and the meaning of an ack. Must not
know any peer, nor which rows a comparison has.
"""

from array import array
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

BODY_VARIETY = 16
"""Different random bodies of a load; more would only cost memory."""


class NotOfferedError(Exception):
    """The peer has no counterpart of a row's measurement; its text is the reason."""


class PeerFailedError(Exception):
    """The peer did not start, did not answer in time, or answered wrongly."""


@dataclass(frozen=True, slots=True)
class PeerFacts:
    """The facts in the table beside a peer's figures."""

    name: str
    durability: str
    """State of the message when an append is acked."""
    client: str
    settings: str
    """Settings that differ from the defaults, and matter."""
    memory_share: float = 0.0
    """Bytes of memory of all nodes together for each stored byte."""
    restart_memory_share: float = 0.0
    """Bytes of memory for each stored byte while all nodes start with it."""


@dataclass(frozen=True, slots=True)
class PeerLoad:
    """Appends until the time is over or a count is acked; one of the two is given."""

    body_size_bytes: int = 1024
    seconds: float | None = None
    count: int | None = None
    in_flight_count: int = 1
    """Batches that wait for their acks at the same time; not used with a rate."""
    batch_count: int = 1
    """Messages that are handed over together, in the peer's form of a batch."""
    rate_per_s: float = 0.0
    """Batches begun in a second, with any outcome; 0: the next one when one is acked."""
    topic_count: int = 1
    """Count of topics, to which batches go in turn."""
    key_step: int = 0
    """Messages for each one with a key; 0: none has one. For a `KillablePeer`."""
    tolerates_errors: bool = False
    """Whether a failed append is just no sample; otherwise it ends the run."""

    def __post_init__(self) -> None:
        """Assert that a driver can run the load."""
        assert (self.seconds is None) != (self.count is None), f"neither or both given: {self}"
        assert min(self.in_flight_count, self.batch_count, self.topic_count) > 0, f"nothing: {self}"
        assert not self.rate_per_s or self.seconds is not None, f"a rate needs seconds: {self}"


@dataclass(slots=True)
class ProduceResult:
    """Result of a load: a sample for each batch, in seconds of the monotonic clock."""

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
        """Return the latency of each batch, from its (intended) beginning to its ack."""
        return [took * 1e3 for took in self.took_s]

    def first_ack_after(self, moment_s: float) -> float | None:
        """Return the ack time of the first batch that began after that moment."""
        acks = (b + t for b, t in zip(self.began_s, self.took_s, strict=True) if b >= moment_s)
        return min(acks, default=None)


@dataclass(frozen=True, slots=True)
class ConsumeResult:
    """Result of reading the first topic, from its first message to its last."""

    message_count: int
    size_bytes: int
    seconds: float


class MeasuredPeer(Protocol):
    """One system on three nodes. Every call may raise NotOfferedError or PeerFailedError."""

    facts: PeerFacts

    def pids(self) -> dict[str, int]:
        """Return running processes by name: the nodes', and the client's if it is another one."""

    async def start(self, directory: str, *, topic_count: int = 1) -> None:
        """Start everything below that directory; afterwards appends to all topics are accepted."""

    async def produce(self, load: PeerLoad) -> ProduceResult:
        """Run a load."""

    async def consume(self) -> ConsumeResult:
        """Read the first topic once, as a consumer of the peer would."""

    async def kill_leader(self) -> float:
        """SIGKILL the process that takes the appends; return the moment (monotonic) before."""

    async def restart(self) -> float:
        """Stop all nodes in order and start them; return the moment of the start.

        When it returns, appends are accepted again.
        """

    async def stop(self) -> None:
        """End every process, also after a start that failed. May be called twice."""


@runtime_checkable
class KillablePeer(Protocol):
    """A peer whose messages may have keys, and whose starts after a crash are measured."""

    async def kill(self, *, is_of_all: bool) -> tuple[float, int]:
        """SIGKILL the leader, or all nodes, and start what was killed.

        Return the seconds until all are ready, and the most bytes that one of them has read by
        then (files of any kind)."""
