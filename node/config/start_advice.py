"""Advice about a file that keeps a node from starting, by the file and the mode of the node.

Owns the advice; must not know how damage is found. An error of the store names the fault and its
place. The remedy depends on the purpose of the file and on where else its content exists: on the
nodes of a Raft cluster, on the replicas of a master-slave group, or nowhere.
"""

import enum
import os
from typing import Final

from node.config.settings import Settings
from node.errors.common import NodeError
from store.errors import CorruptionError, DerivedFileError, LayoutError, StoreError

_META: Final = "raft"
_HA_META: Final = ("haReplica", "haBinding")


class Mode(enum.Enum):
    """How a node is set up."""

    RAFT = "raft"
    MASTER_SLAVE = "master-slave"
    SINGLE = "single"
    """One node alone, of either mode, by its settings; its log may name members added since."""


_IF_GROWN: Final = (
    "if nodes were added to this one since, they have it: replace this node (docs/operations.md, "
    "replace a node); else "
)
_REPLACE: Final = {
    Mode.RAFT: (
        "replace this node: move the directory aside, remove the node from the cluster's members, "
        "and let it join again with an empty one (docs/operations.md, replace a node)"
    ),
    Mode.MASTER_SLAVE: (
        "move the directory aside and start this replica with an empty one: it joins as a replica "
        "with a new disk, and the master ships everything"
    ),
    Mode.SINGLE: (
        f"{_IF_GROWN}what was in it is lost: restore a backup with 'qlog store restore', or put "
        f"the file back from a copy of this moment"
    ),
}
_LOG: Final = {
    Mode.RAFT: (
        "the other nodes have these entries: see that they run and can be reached, and start "
        "again; what they cannot give is named by 'qlog store verify'"
    ),
    Mode.MASTER_SLAVE: _REPLACE[Mode.MASTER_SLAVE],
    Mode.SINGLE: (
        f"{_IF_GROWN}restore a backup with 'qlog store restore'; 'qlog store repair' shows what "
        f"can be kept of the log, and what would be lost"
    ),
}
_MARKS: Final = {
    **_REPLACE,
    Mode.SINGLE: "run 'qlog store repair': it checks the whole log, then rebuilds the file from it",
}
_DERIVED: Final = (
    "move the directories consumequeue and index aside and start again: they are built from the log"
)


def mode_of(settings: Settings) -> Mode:
    """Return how a node is set up."""
    if not settings.join and not set(settings.peers) - {settings.node_id}:
        return Mode.SINGLE
    return Mode.MASTER_SLAVE if settings.is_ha else Mode.RAFT


def advice_of(error: Exception, mode: Mode) -> str | None:
    """Return what to do about an error at start; None if the error says that itself."""
    if isinstance(error, DerivedFileError):
        return _DERIVED
    if not isinstance(error, CorruptionError | LayoutError):
        return None
    name = os.path.basename(error.path)
    base = name.removesuffix(".0").removesuffix(".1")
    parent = os.path.basename(os.path.dirname(error.path))
    if base in (_META, *_HA_META) or name.startswith("epochFileCheckpoint"):
        return _REPLACE[mode]
    if isinstance(error, CorruptionError) and error.field.startswith(f"{_META}: "):
        return _REPLACE[mode]
    if base == "haLosses":
        return "move haLosses.0 and haLosses.1 aside: only reports for people are in them"
    if "config" in (name, parent):
        return _REPLACE[mode]
    if name == "marks":
        return _MARKS[mode]
    parents = error.path.split(os.sep)
    is_log = "commitlog" in parents or any(part.startswith("dledger-") for part in parents)
    if base == "start" or is_log:
        return _LOG[mode] if isinstance(error, CorruptionError) else None
    return None


def told(error: Exception, mode: Mode) -> str:
    """Return the text of an error at start; advice for this mode replaces the error's own."""
    advice = advice_of(error, mode)
    if advice is None or not isinstance(error, StoreError | NodeError):
        return str(error)
    what, _, _ = str(error).partition("; ")
    return f"{what}; {advice}"
