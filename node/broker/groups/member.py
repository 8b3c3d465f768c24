"""A member of a consumer group as the leader knows it, and what nodes report of members.

Owns the row and what it costs; must not know the other members of its group.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from node.runtime.accounts import Charge
from quorumlog.pb import consumer_pb2 as pb

Queues = frozenset[tuple[str, int]]
_FILTER_LENGTH_MAX: Final = 64
_ROW_SIZE_BYTES: Final = 700
_TOPIC_SIZE_BYTES: Final = 250
_QUEUE_SIZE_BYTES: Final = 250
_FILTER_SIZE_BYTES: Final = 350
_ENTRY_SIZE_BYTES: Final = 100
"""Memory of a member, of a topic with its name, of a queue here and in the index of its group, of a
filter and of its entry for one more topic, at most about."""
NO_TOPICS: Final = frozenset[str]()
NO_QUEUES: Final = Queues()
Filters = Mapping[str, str]
"""By topic; empty: everything."""
NO_FILTERS: Final[Filters] = MappingProxyType({})


class MemberKind(IntEnum):
    """How a member gets messages: those of one kind share a group."""

    SHARING = pb.MEMBER_KIND_SHARING
    BROADCASTING = pb.MEMBER_KIND_BROADCASTING
    POPPING = pb.MEMBER_KIND_POPPING


class Reported(NamedTuple):
    """The members of a group at one node, and what they read."""

    kinds: Mapping[str, MemberKind]
    """By client id."""
    filters: Mapping[str, Filters]
    """By client id: one object for all members that read the same."""
    refused: Collection[str] = ()
    """Client ids of those that the last leader refused."""
    twice: Collection[str] = ()
    """Client ids of those that are two clients each."""


class GroupMember:
    """One member, of any protocol."""

    __slots__ = (
        "charge",
        "filters",
        "instance",
        "is_refused",
        "kind",
        "nodes",
        "queues",
        "spoke_ms",
        "strategy",
        "topics",
        "until_ms",
    )

    def __init__(self, kind: MemberKind, charge: Charge | None) -> None:
        self.kind, self.charge = kind, charge
        self.until_ms = 0
        """When it counts as gone, if it sends heartbeats."""
        self.instance, self.spoke_ms = 0, 0
        """The consumer that sends them, and when it sent the last one."""
        self.nodes: set[int] = set()
        """Those that report it; none: it sends heartbeats."""
        self.topics, self.strategy = NO_TOPICS, ""
        self.filters = NO_FILTERS
        self.is_refused = False
        """Whether its node reports that a leader refused it, or it says that none let it in."""
        self.queues: Queues = frozenset()
        """Queues that the member reads: no other member begins with them, and no classic client
        moves their offsets back."""

    def is_of(self, instance: int) -> bool:
        """Whether it is this consumer, which sends its heartbeats itself."""
        return not self.nodes and self.instance == instance

    def resize(self, topics: frozenset[str], filters: Filters, queues: Queues) -> None:
        """Charge what it names. Raises BusyError."""
        if self.charge is not None:
            self.charge.resize(size_bytes_of(topics, filters, queues))


def comparable(tags: Iterable[str], sql: str) -> str:
    """Return a filter by tags or by an expression as the leader compares it with those of other
    members, of every protocol; empty: everything. Of one that is longer than 64
    characters it returns a digest, as filters are only compared."""
    text = sql.strip().removeprefix("*") or " || ".join(sorted(set(tags)))
    return text if len(text) <= _FILTER_LENGTH_MAX else hashlib.sha256(text.encode()).hexdigest()


def size_bytes_of(topics: frozenset[str], filters: Filters, queues: Queues) -> int:
    """Return the memory of a member that names these, in bytes."""
    size_bytes = _ROW_SIZE_BYTES + _TOPIC_SIZE_BYTES * len(topics)
    texts = {*filters.values()} - {""}
    size_bytes += _FILTER_SIZE_BYTES * len(texts) + _ENTRY_SIZE_BYTES * len(filters)
    return size_bytes + _QUEUE_SIZE_BYTES * len(queues)
