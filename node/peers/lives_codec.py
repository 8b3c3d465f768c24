"""Lives as bytes, for handshakes and for a frame of their own.

Owns the mapping of `raft.lives` to protobuf and the ranges of the fields. Must not judge which node
is believed.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from quorumlog.pb import peer_pb2 as pb
from raft.lives import PAST_MAX, Known, ToldLife
from raft.messages import NO_INDEX, NO_NODE, NodeId, Standing

KNOWN_LIVES_MAX: Final = 256
"""Nodes that a node remembers: as many as a configuration can have."""

NUMBER_MAX: Final = (1 << 63) - 1
_NUMBERS: Final = frozenset({"life", "incarnation", "joined", "start_term", "term", "acked_term"})
_INDEXES: Final = frozenset({"start_last_index", "last_index", "acked", "committed"})
_STANDINGS: Final = {int(standing): standing for standing in Standing}
NOTHING: Final = ToldLife(0, 0, 0, NO_INDEX, 0, NO_INDEX, Standing.FULL, 0, 0)
"""Stands for a node that is not part of a cluster yet."""


class LivesFormatError(Exception):
    """Bytes that are no lives. Callers translate it into an error of the handshake or the frame."""


class ToldBuild(NamedTuple):
    """What a handshake tells of a process beside its life."""

    level: int = 0
    """The highest of its build; 0: without levels."""
    reset: bytes = b""
    """The user, encoded, of the reset of the admin that lies there; empty: none does."""
    users: str = ""
    """`off`, `prepare` or `on`; empty: its build does not tell."""


NO_BUILD: Final = ToldBuild()


def encode_lives(
    own: ToldLife, memory: Mapping[NodeId, Known], build: ToldBuild = NO_BUILD
) -> bytes:
    """Return the bytes of a node's own life, of its memory of others, and of its build."""
    others = [pb.KnownLife(node_id=node, **life._asdict()) for node, life in memory.items()]
    made = pb.Lives(own=pb.Life(**own._asdict()), known=others, **build._asdict())
    return made.SerializeToString()


def decode_lives(data: bytes) -> tuple[ToldLife, dict[NodeId, Known], ToldBuild]:
    """Return the decoded lives, and the sender's build. Raises LivesFormatError."""
    try:
        message = pb.Lives.FromString(data)
    except DecodeError as error:
        raise LivesFormatError(f"no lives: {error}") from error
    if message.own.standing not in _STANDINGS:
        raise LivesFormatError(f"standing {message.own.standing}")
    told = ToldLife(*_values(message.own, ToldLife._fields))
    memory: dict[NodeId, Known] = {}
    for life in message.known:
        if life.node_id == NO_NODE or len(memory) == KNOWN_LIVES_MAX:
            raise LivesFormatError(f"node {life.node_id} after {len(memory)} others")
        memory[life.node_id] = Known(*_values(life, Known._fields))
    standing = _STANDINGS[message.own.standing]
    told = told._replace(standing=standing, past=tuple(told.past[:PAST_MAX]))
    return told, memory, ToldBuild(message.level, message.reset, message.users)


def _values(life: pb.Life | pb.KnownLife, names: Iterable[str]) -> Iterator[Any]:
    """Yield the fields of a message in their ranges. Raises LivesFormatError."""
    for name in names:
        value = getattr(life, name)
        if name in _INDEXES and value < NO_INDEX:
            raise LivesFormatError(f"index {value}")
        if name in _NUMBERS and value > NUMBER_MAX:
            raise LivesFormatError(f"number {value}, above {NUMBER_MAX}")
        yield value
