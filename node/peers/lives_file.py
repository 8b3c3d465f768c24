"""A node's memory of lives, on disk: its own, and what it saw of the others.

Owns the meta file `lives`. The own life is also in `raft` or `haBinding`: one file may be lost or
stay behind, and the higher number is right. The memory of others helps them and not this node, so a
damaged file does not prevent a start: it is set aside, and learned again.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from node.peers.lives_codec import KNOWN_LIVES_MAX
from raft.lives import APART_MAX, PAST_MAX, Known
from raft.messages import NO_INDEX, Index, NodeId
from store.errors import CorruptionError, LayoutError
from store.files.file_system import FileSystem
from store.files.meta_file import Json, MetaFile

NAME: Final = "lives"
FILE_NAMES: Final = (f"{NAME}.0", f"{NAME}.1")
_log: Final = structlog.get_logger(component="lives")


@dataclass(frozen=True, slots=True)
class LivesRecord:
    """The content of the file."""

    cluster_id: str
    node_id: NodeId
    life: int = 0
    """Number of starts of this disk."""
    nonces: tuple[int, ...] = ()
    """Nonces of this life and earlier ones, the newest first."""
    joined: int = 0
    """The incarnation in which this node last began without memory; 0: never."""
    lost: str = ""
    """In what respect this disk was found to be an old copy, and by which node; empty if it was
    not."""
    committed: Index = NO_INDEX
    """This node's log was committed and durable up to here, in this incarnation; so a leader that
    contradicts it is recognized also after a crash."""
    incarnation: int = 0
    known: Mapping[NodeId, Known] = field(default_factory=dict)
    apart: Mapping[NodeId, tuple[Known, ...]] = field(default_factory=dict)
    """Memories of other lives of these nodes, maybe of another disk: see `raft.lives`."""


class LivesFile:
    """The file on the disk. One thread at a time."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs, self._directory = fs, directory
        self._meta = MetaFile(fs, directory, NAME)

    def load(self, cluster_id: str, node_id: NodeId) -> LivesRecord:
        """Return the record; a fresh one if the file is damaged, or of another cluster or node.

        Raises FileSystemError."""
        fresh = LivesRecord(cluster_id, node_id)
        try:
            payload = self._meta.load(must_exist=False)
            if payload is None:
                return fresh
            record = _decode(self._directory, payload)
        except (CorruptionError, LayoutError) as error:
            _log.error("what was remembered of other nodes is lost", error=str(error))
            self._set_aside()
            return fresh
        # A restore gave this directory to a node of another cluster: those others are no peers of
        # it.
        return record if (record.cluster_id, record.node_id) == (cluster_id, node_id) else fresh

    def save(self, record: LivesRecord) -> None:
        """Replace the file; durable on return.

        Raises StoreFullError or FileSystemError (the old one stands), SyncFailedError (stop)."""
        self._meta.save(_encode(record))

    def _set_aside(self) -> None:
        for name in FILE_NAMES:
            path = os.path.join(self._directory, name)
            if os.path.exists(path):
                self._fs.rename(path, path + ".damaged")
        self._meta = MetaFile(self._fs, self._directory, NAME)
        self._meta.load(must_exist=False)


_FIELDS: Final = Known._fields
_LOWEST: Final = Known(acked=NO_INDEX, committed=NO_INDEX)


def _encode(record: LivesRecord) -> dict[str, Json]:
    fields: dict[str, Any] = {name: getattr(record, name) for name in LivesRecord.__slots__}
    lives = record.apart.items()
    return fields | {
        "nonces": list(record.nonces),
        "known": {str(node): life._asdict() for node, life in record.known.items()},
        "apart": {str(node): [life._asdict() for life in several] for node, several in lives},
    }


def _decode(directory: str, payload: Mapping[str, Json]) -> LivesRecord:
    try:
        nonces, views, apart = payload["nonces"], _nodes(payload["known"]), _nodes(payload["apart"])
        if not isinstance(nonces, list) or len(nonces) > PAST_MAX + 1:
            raise ValueError(f"{nonces!r} are no lives")
        return LivesRecord(
            cluster_id=str(payload["cluster_id"]),
            node_id=_integer(payload["node_id"], 1),
            life=_integer(payload["life"], 0),
            nonces=tuple(_integer(nonce, 0) for nonce in nonces),
            joined=_integer(payload["joined"], 0),
            lost=str(payload["lost"]),
            committed=_integer(payload["committed"], NO_INDEX),
            incarnation=_integer(payload["incarnation"], 0),
            known={int(node): _known(found) for node, found in views.items()},
            apart={int(node): _several(found) for node, found in apart.items()},
        )
    except (KeyError, ValueError) as error:
        raise CorruptionError(directory, 0, NAME, "a field in its range", str(error)) from error


def _nodes(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict) or len(value) > KNOWN_LIVES_MAX:
        raise ValueError(f"{value!r} is no list of nodes")
    return value


def _several(value: Json) -> tuple[Known, ...]:
    if not isinstance(value, list) or len(value) > APART_MAX:
        raise ValueError(f"{value!r} are no lives of a node")
    return tuple(_known(one) for one in value)


def _known(value: Json) -> Known:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is no life")
    fields = zip(_FIELDS, _LOWEST, strict=True)
    return Known(*(_integer(value[name], lowest) for name, lowest in fields))


def _integer(value: Json, lowest: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
        raise ValueError(f"{value!r} is no number of {lowest} or more")
    return value
