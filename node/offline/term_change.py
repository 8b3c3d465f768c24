"""Lowers the term of a stopped node, together with all nodes of its group: seal, then lower.

Owns the two steps on one directory. `term_statement` has the argument why this is safe, and
decides; must not know how files reach the other machines. The directory is opened as a start would
open it, so its lock keeps a running node out, a torn tail is cut, and damage is found first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, NamedTuple

from node.config.environment import store_host
from node.config.settings import Settings
from node.offline.term_seal import read_seal, seal, unseal
from node.offline.term_statement import Statement, TermChangeRefusedError, after, target_term
from node.replication.ha.core.types import EPOCH_END, NO_REPLICA, HaBinding, HaSettings
from node.replication.ha.storage.log import HaLog
from node.replication.lives_file import lower_terms
from node.replication.raft.storage.log import LedgerLog
from raft.ceiling import TERM_END
from raft.messages import NO_NODE
from store.files.file_system import FileSystem

_UNFOUNDED: Final = "it takes part in no group yet"


class Lowered(NamedTuple):
    """The result of the change of one directory."""

    directory: str
    node_id: int
    former_term: int
    term: int
    is_repeated: bool
    """Whether an earlier run, which did not come to its end, had lowered it already."""


class _Stopped(NamedTuple):
    """One directory, open."""

    statement: Statement
    """Its statement, without a seal."""
    vote_after: int
    """The vote, or the master, of the directory once lowered."""
    end: int
    """The term that no group reaches."""
    save: Callable[[int], None]
    """Sets the term; durable on return."""


def seal_directory(settings: Settings, fs: FileSystem | None = None) -> Statement:
    """Seal the directory of a stopped node and return its statement. Repeating it changes nothing.

    Raises LockedError while the node runs, TermChangeRefusedError, or what opening raises.
    """
    fs = fs or FileSystem()
    with _stopped(settings, fs) as stopped:
        return replace(stopped.statement, seal=seal(fs, settings.directory))


def unseal_directory(settings: Settings, fs: FileSystem | None = None) -> bool:
    """Give the change up on this node, so that it starts as before; return whether it had a seal.

    Every statement made of the directory is void then. Raises LockedError, or what opening raises.
    """
    fs = fs or FileSystem()
    has_seal = read_seal(settings.directory) is not None
    if has_seal:
        with _stopped(settings, fs):  # No other process uses it.
            unseal(fs, settings.directory)
    return has_seal


def lower_directory(
    settings: Settings, statements: Sequence[Statement], fs: FileSystem | None = None
) -> Lowered:
    """Lower this node to the term that the statements of all members lead to, and remove its seal.
    A run that broke off may be repeated.

    Raises LockedError while the node runs, TermChangeRefusedError, or what opening raises.
    """
    fs = fs or FileSystem()
    root = str(settings.directory)
    name = read_seal(settings.directory)
    if name is None:
        raise TermChangeRefusedError(
            f"{root} is not sealed, so it may have changed since its statement",
            "run 'qlog term seal' on every node of the group first, and then this",
        )
    own = next((one for one in statements if one.node_id == settings.node_id), None)
    if own is None or own.seal != name:
        raise TermChangeRefusedError(
            f"the statement of {root} is not among them, or is of another seal",
            "seal it again, and give the new statement to every node",
        )
    with _stopped(settings, fs) as stopped:
        target = target_term(statements, end=stopped.end)
        found = replace(stopped.statement, seal=name)
        done = after(own, term=target, vote=stopped.vote_after)
        if found not in (own, done):
            raise TermChangeRefusedError(
                f"{root} is not what its statement says", "seal all nodes again, and start over"
            )
        if found == own:
            lower_terms(fs, root, settings.cluster_id, settings.node_id, target)
            stopped.save(target)
        unseal(fs, settings.directory)
    return Lowered(root, settings.node_id, own.term, target, found == done)


# --- Directories of both kinds ---


@contextmanager
def _stopped(settings: Settings, fs: FileSystem) -> Iterator[_Stopped]:
    if not settings.directory.is_dir():
        raise TermChangeRefusedError(f"there is no directory {settings.directory}", "check it")
    opened = _ha(settings, fs) if settings.is_ha else _raft(settings, fs)
    with opened as stopped:
        yield stopped


@contextmanager
def _raft(settings: Settings, fs: FileSystem) -> Iterator[_Stopped]:
    with LedgerLog.open(
        str(settings.directory),
        settings.store_config(store_host(settings)),
        cluster_id=settings.cluster_id,
        node_id=settings.node_id,
        fs=fs,
    ) as log:
        if not log.is_founded:
            raise TermChangeRefusedError(f"{settings.directory}: {_UNFOUNDED}", "leave it out")
        log.start_at(log.base_index)
        initial = log.load()
        newest = initial.configurations[-1:]
        members = {node for at in newest for part in at.configuration for node in part}
        statement = Statement(
            "",
            "raft",
            settings.cluster_id,
            settings.group,
            settings.node_id,
            initial.hard_state.term,
            initial.hard_state.vote,
            initial.last_index,
            initial.runs[-1][1] if initial.runs else initial.base_term,
            tuple(sorted(members)),
        )
        yield _Stopped(
            statement,
            NO_NODE,
            TERM_END,
            lambda term: log.save_hard_state(initial.hard_state._replace(term=term, vote=NO_NODE)),
        )


@contextmanager
def _ha(settings: Settings, fs: FileSystem) -> Iterator[_Stopped]:
    group = HaSettings(
        group=f"{settings.cluster_id}/{settings.group}",
        replica_ids=tuple(sorted(settings.peers or (settings.node_id,))),
        copies=settings.copies,
    )
    with HaLog.open(
        str(settings.directory),
        settings.store_config(store_host(settings)),
        cluster_id=settings.cluster_id,
        node_id=settings.node_id,
        group=group,
        fs=fs,
    ) as log:
        if log.is_new:
            raise TermChangeRefusedError(f"{settings.directory}: {_UNFOUNDED}", "leave it out")
        bound = log.replica.bound
        statement = Statement(
            "",
            "ha",
            settings.cluster_id,
            settings.group,
            settings.node_id,
            bound.number,
            bound.master_id,
            log.end,
            log.epochs.last.number,
            group.replica_ids,
        )
        # A master that acked alone has to know that it did, to count its possible losses.
        master = settings.node_id if bound.master_id == settings.node_id else NO_REPLICA
        yield _Stopped(
            statement, master, EPOCH_END, lambda term: log.lower_binding(HaBinding(term, master))
        )
