"""Lives as bytes, for handshakes and for a frame of their own.

Owns the mapping of `raft.lives` to protobuf and the ranges of the fields. Must not judge which node
is believed.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from google.protobuf.message import DecodeError

from quorumlog.pb import peer_pb2 as pb
from raft.lives import PAST_MAX, Known, ToldLife
from raft.messages import NO_INDEX, NO_NODE, NodeId, Standing

KNOWN_LIVES_MAX: Final = 256
"""Nodes that a node remembers: as many as a configuration can have."""

NUMBER_MAX: Final = (1 << 63) - 1
_STANDINGS: Final = {int(standing): standing for standing in Standing}
NOTHING: Final = ToldLife(0, 0, 0, NO_INDEX, 0, NO_INDEX, Standing.FULL, 0, 0)
"""Stands for a node that is not part of a cluster yet."""


class LivesFormatError(Exception):
    """Bytes that are no lives. Callers translate it into an error of the handshake or the frame."""


def encode_lives(own: ToldLife, known: Mapping[NodeId, Known]) -> bytes:
    """Return the bytes of a node's own life and of its memory of others."""
    made = pb.Lives(
        own=pb.Life(
            life=own.life,
            nonce=own.nonce,
            start_term=own.start_term,
            start_last_index=own.start_last_index,
            term=own.term,
            last_index=own.last_index,
            standing=own.standing,
            incarnation=own.incarnation,
            joined=own.joined,
            past=own.past,
        )
    )
    for node, found in known.items():
        made.known.append(pb.KnownLife(node_id=node, **found._asdict()))
    return made.SerializeToString()


def decode_lives(data: bytes) -> tuple[ToldLife, dict[NodeId, Known]]:
    """Return the decoded lives. Raises LivesFormatError."""
    try:
        message = pb.Lives.FromString(data)
    except DecodeError as error:
        raise LivesFormatError(f"no lives: {error}") from error
    own = message.own
    standing = _STANDINGS.get(own.standing)
    if standing is None:
        raise LivesFormatError(f"standing {own.standing}")
    statement = ToldLife(
        own.life,
        own.nonce,
        own.start_term,
        own.start_last_index,
        own.term,
        own.last_index,
        standing,
        own.incarnation,
        own.joined,
        tuple(own.past[:PAST_MAX]),
    )
    _check(
        (
            statement.life,
            statement.start_term,
            statement.term,
            statement.incarnation,
            statement.joined,
        ),
        (statement.start_last_index, statement.last_index),
    )
    return statement, _known(message.known)


def _known(listed: Iterable[pb.KnownLife]) -> dict[NodeId, Known]:
    views: dict[NodeId, Known] = {}
    for one in listed:
        if one.node_id == NO_NODE or len(views) == KNOWN_LIVES_MAX:
            raise LivesFormatError(f"node {one.node_id} after {len(views)} others")
        view = Known(
            one.life,
            one.nonce,
            one.incarnation,
            one.term,
            one.acked_term,
            one.acked,
            one.committed,
        )
        _check(
            (view.life, view.incarnation, view.term, view.acked_term),
            (view.acked, view.committed),
        )
        views[one.node_id] = view
    return views


def _check(numbers: Iterable[int], indexes: Iterable[int]) -> None:
    for number in numbers:
        if number > NUMBER_MAX:
            raise LivesFormatError(f"number {number}, above {NUMBER_MAX}")
    for index in indexes:
        if index < NO_INDEX:
            raise LivesFormatError(f"index {index}")
