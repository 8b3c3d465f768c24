"""A node's memory of itself: identity, term and vote, and the members.

Owns the meta file `raft` in the store's directory (two generations, each replaced as a whole and
synced). Must not know how elections go, nor the log. Ordinary appends do not change the file: it is
written at elections, when members change and when old files are deleted.

`configuration_indexes` names the entries of the log that hold a configuration, so that a start does
not search all of the log for them. An index is noted before its entry is written and may stay after
the entry is gone: its reader looks at the entry.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from node.runtime.identity import check_identity
from raft.errors import HardStateNotSavedError
from raft.messages import (
    NO_INDEX,
    NO_TERM,
    Configuration,
    ConfigurationAt,
    Index,
    NodeId,
    Standing,
    Term,
)
from raft.ready import HardState, InitialState, recovering_state
from store.config import StoreConfig
from store.errors import (
    CorruptionError,
    FileSystemError,
    LimitExceededError,
    StoreFullError,
)
from store.files.file_system import FileSystem
from store.files.meta_file import Json, MetaFile
from store.opening import REPLICA_META_NAME, Recovery

NAME: Final = REPLICA_META_NAME
_NEW: Final = HardState()


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """The content of the file.

    `is_founded`: the node takes part in a cluster, as a founder or by joining; otherwise the disk
    is empty and its role has not been decided. `base_configuration` is the one in force where the
    log begins, or where it will begin once a deletion is done. In the latter case
    `former_base_configuration` is the one where it begins until then: the first entry's index tells
    which counts. `may_ack_unsynced`: the node runs with `flush=async`, so a power loss takes memory
    from it. `life`: starts of this disk, see `raft.lives`. `state_fence`: in what the replicated
    state was found to differ from that of a majority, empty if it was not; and
    `state_fence_position`: behind which log position.
    `cut_last_index`: where the log ended before a repair cut entries of the leader of `cut_term`
    that another term's entry has replaced at a majority, so that none of them is ever committed.
    """

    cluster_id: str
    node_id: NodeId
    is_founded: bool = False
    hard_state: HardState = _NEW
    base_configuration: ConfigurationAt | None = None
    configuration_indexes: tuple[Index, ...] = ()
    may_ack_unsynced: bool = False
    former_base_configuration: ConfigurationAt | None = None
    life: int = 0
    state_fence: str = ""
    state_fence_position: int = NO_INDEX
    cut_term: Term = NO_TERM
    cut_last_index: Index = NO_INDEX

    def acked_last_index(self, last_index: Index) -> Index:
        """Return up to where this disk held the log of its term; `last_index`: where it ends now.

        Others compare it with what the node acked in that term. A repair may have cut such entries;
        an old copy of the disk never held them."""
        is_of_term = self.cut_term == self.hard_state.term
        return max(last_index, self.cut_last_index) if is_of_term else last_index


class NodeFile:
    """The file on the disk. One thread."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._directory = directory
        self._meta = MetaFile(fs, directory, NAME)
        self.record: NodeRecord

    def load(self, cluster_id: str, node_id: NodeId, *, must_exist: bool) -> NodeRecord:
        """Read the file, or make the record of an empty disk.

        Raises IdentityMismatchError; LayoutError (a generation is missing: a vote may be lost) or
        CorruptionError.
        """
        payload = self._meta.load(must_exist=must_exist)
        if payload is None:
            self.record = NodeRecord(cluster_id, node_id)
            return self.record
        record = _decode(self._directory, payload)
        check_identity(
            self._directory,
            {"cluster": cluster_id, "node": node_id},
            {"cluster": record.cluster_id, "node": record.node_id},
        )
        self.record = record
        return record

    def load_any(self) -> NodeRecord:
        """Read the file, of any node. Raises LayoutError or CorruptionError."""
        payload = self._meta.load(must_exist=True)
        assert payload is not None, f"{self._directory}: {NAME} must exist"
        self.record = _decode(self._directory, payload)
        return self.record

    def save(self, record: NodeRecord) -> None:
        """Replace the record; durable on return. Writes nothing when it is the same.

        Raises StoreFullError or FileSystemError (the old one stands), SyncFailedError (stop).
        """
        if record != self.record or self._meta.generation == 0:
            self._meta.save(_encode(record))
            self.record = record

    def note_cut(self, term: Term, last_index: Index) -> None:
        """Note in the file of a closed log that a branch is about to be cut, whose entries are of
        `term` and older, and which ends at `last_index`.

        Without an entry of the own term nothing proves that the leader of that term is the one of
        the branch, so what was acked to it still counts. Durable on return. Raises as `load_any`
        and `save`."""
        record = self.load_any()
        if term == record.hard_state.term:
            reached = record.acked_last_index(last_index)
            self.save(replace(record, cut_term=term, cut_last_index=reached))

    def save_hard_state(self, hard_state: HardState) -> None:
        """Replace term, vote and standing; durable on return.

        Raises HardStateNotSavedError (the old ones stand) or SyncFailedError (stop).
        """
        try:
            self.save(replace(self.record, hard_state=hard_state))
        except (StoreFullError, FileSystemError, LimitExceededError) as error:
            raise HardStateNotSavedError(str(error)) from error


def load_node_file(
    node_file: NodeFile,
    recovery: Recovery,
    config: StoreConfig,
    cluster_id: str,
    node_id: NodeId,
) -> None:
    """Read the file, and note a loss of memory before the directory stops showing it.

    Raises as `NodeFile.load` and `NodeFile.save`."""
    must_exist = recovery.end_position > 0
    record = node_file.load(cluster_id, node_id, must_exist=must_exist)
    lost_memory = not recovery.was_clean and not recovery.same_boot
    if record.is_founded and lost_memory and record.may_ack_unsynced:
        state = recovering_state(InitialState(hard_state=record.hard_state))
        record = replace(record, hard_state=state.hard_state)
    record = replace(record, may_ack_unsynced=config.flush == "async")
    node_file.save(record)


def _encode(record: NodeRecord) -> dict[str, Json]:
    base, hard_state = record.base_configuration, record.hard_state
    is_diverged = hard_state.standing is Standing.DIVERGED
    standing = Standing.JOINING if is_diverged else hard_state.standing
    former = record.former_base_configuration
    return {
        "cluster_id": record.cluster_id,
        "node_id": record.node_id,
        "is_founded": record.is_founded,
        "term": hard_state.term,
        "vote": hard_state.vote,
        "standing": standing.name,
        "is_diverged": is_diverged,
        "incarnation": hard_state.incarnation,
        "base_configuration": configuration_json(base) if base is not None else None,
        "configuration_indexes": list(record.configuration_indexes),
        "may_ack_unsynced": record.may_ack_unsynced,
        "former_base_configuration": configuration_json(former) if former is not None else None,
        "life": record.life,
        "state_fence": record.state_fence,
        "state_fence_position": record.state_fence_position,
        "cut_term": record.cut_term,
        "cut_last_index": record.cut_last_index,
    }


def configuration_json(at: ConfigurationAt) -> dict[str, Json]:
    """Return a configuration for a meta file."""
    index, (voters, learners) = at
    return {"index": index, "voters": list(voters), "learners": list(learners)}


def configuration_of(value: Json) -> ConfigurationAt:
    """Return the configuration that `configuration_json` wrote. Raises ValueError for other
    data."""
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is no configuration")
    members = [_integers(value.get(name), lo=1) for name in ("voters", "learners")]
    return ConfigurationAt(_integer(value.get("index"), lo=NO_INDEX), Configuration(*members))


def _text(value: Json) -> str:
    if not isinstance(value, str):
        raise ValueError("a text")
    return value


def _configuration(value: Json) -> ConfigurationAt | None:
    return configuration_of(value) if value is not None else None


_READERS: Final[dict[str, Callable[[Json], Any]]] = {
    "cluster_id": _text,
    "node_id": lambda value: _integer(value, lo=1),
    "term": lambda value: _integer(value, lo=0),
    "vote": lambda value: _integer(value, lo=0),
    "incarnation": lambda value: _integer(value, lo=0),
    "life": lambda value: _integer(value, lo=0),
    "state_fence_position": lambda value: _integer(value, lo=NO_INDEX),
    "cut_term": lambda value: _integer(value, lo=NO_TERM),
    "cut_last_index": lambda value: _integer(value, lo=NO_INDEX),
    "state_fence": _text,
    "standing": lambda value: Standing[str(value)],
    "base_configuration": _configuration,
    "former_base_configuration": _configuration,
    "configuration_indexes": lambda value: _integers(value, lo=0),
}
"""The check of each field that is no flag; a flag that is missing is off."""


def _decode(directory: str, payload: Mapping[str, Json]) -> NodeRecord:
    values: dict[str, Any] = {}
    for field, read in _READERS.items():
        try:
            values[field] = read(payload[field])
        except (KeyError, ValueError) as error:
            actual = repr(payload.get(field))
            raise CorruptionError(directory, 0, f"{NAME}: {field}", str(error), actual) from error
    term, vote, standing, incarnation = map(values.pop, HardState._fields)
    if payload.get("is_diverged") is True:
        standing = Standing.DIVERGED
    return NodeRecord(
        is_founded=payload.get("is_founded") is True,
        hard_state=HardState(term, vote, standing, incarnation),
        may_ack_unsynced=payload.get("may_ack_unsynced") is True,
        **values,
    )


def _integer(value: Json, *, lo: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < lo:
        raise ValueError(f"a number of {lo} or more")
    return value


def _integers(values: Json, *, lo: int) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise ValueError("a list of numbers")
    return tuple(_integer(value, lo=lo) for value in values)
