"""The replicated state in a directory: from its checkpoint, a snapshot, or the log alone.

Owns the choice between them, and the consequence of a damaged checkpoint. As long as the log
reaches back to its first entry it holds every command: the start rebuilds the state from it, and
keeps the damaged files for the operator. A log whose beginning is deleted cannot replace a
checkpoint: the node does not start. Source: fault-matrix D8.
"""

import os
from dataclasses import replace
from typing import Final

import structlog

from node.config.limits import Limits
from node.replication.raft.storage.hard_state import NodeFile
from node.replication.raft.storage.log import LedgerLog
from node.runtime.clock import unix_ms
from node.state.checkpoint_files import DIRECTORY, CheckpointDamagedError, CheckpointFiles
from node.state.machine import StateMachine
from node.state.state import StateImage
from raft.messages import NO_INDEX
from store.files.file_system import FileSystem
from store.fsck.checks.meta import DAMAGED_DIRECTORY

BUILT_ANEW: Final = "; built anew since, and not compared yet"
"""End of the reason of a fence whose state was rebuilt: the evidence was kept by then. Nodes store
the text, so it stays as it is."""
_log: Final = structlog.get_logger(component="node")


def open_state(
    fs: FileSystem, root: str, log: LedgerLog, limits: Limits
) -> tuple[CheckpointFiles, StateMachine]:
    """Return the checkpoint of a directory, and the state; later entries are not applied yet.

    A state that differed from that of a majority is rebuilt if the log, or a snapshot that was
    installed, has all of it. Raises CheckpointDamagedError when the checkpoint is damaged, missing
    or older than the beginning of the log and nothing else has the state, CorruptionError for one
    of another version, FileSystemError, SyncFailedError.
    """
    installed = log.received.installed
    has_all = log.base_index == NO_INDEX or installed is not None
    if has_all:
        _set_aside_differing(fs, root, log.node_file)
    files, image = load_checkpoint(fs, root, is_needed=not has_all)
    machine = StateMachine(log.store.reads, limits, image)
    if installed is not None and machine.applied_index < installed.state_index:
        machine.restore(installed.state, installed.meta.index)
    if machine.applied_index < log.base_index:
        actual = f"{machine.applied_index}, and the log begins behind it"
        expected = f"{log.base_index} or more"
        raise CheckpointDamagedError(files.directory, 0, "applied index", expected, actual)
    return files, machine


def _set_aside_differing(fs: FileSystem, root: str, node_file: NodeFile) -> None:
    """Set the checkpoint aside, once, if the state in it differed from that of a majority."""
    record = node_file.record
    fence = record.state_fence
    if fence and not fence.endswith(BUILT_ANEW):
        kept = _set_aside(fs, root, os.path.join(root, DIRECTORY))
        what = "the state differed from that of a majority; it is rebuilt"
        _log.warning(what, differed=fence, kept=kept)
        node_file.save(replace(record, state_fence=fence + BUILT_ANEW))


def load_checkpoint(
    fs: FileSystem, root: str, *, is_needed: bool
) -> tuple[CheckpointFiles, StateImage | None]:
    """Return the checkpoint of a directory and the state in it, None if it has none.

    A damaged one that is not needed is set aside. Errors as `open_state`.
    """
    files = CheckpointFiles(fs, root)
    try:
        return files, files.load()
    except CheckpointDamagedError as error:
        if is_needed:
            raise
        kept = _set_aside(fs, root, files.directory)
        what = "the checkpoint was damaged; the state is built from the log"
        _log.warning(what, error=str(error), kept=kept)
    files = CheckpointFiles(fs, root)
    return files, files.load()


def _set_aside(fs: FileSystem, root: str, directory: str) -> str:
    """Move the files aside, durably; return the new path. Empty: there are none."""
    if not os.path.exists(directory):
        return ""
    damaged = os.path.join(root, DAMAGED_DIRECTORY)
    fs.make_directory(damaged)
    aside = os.path.join(damaged, f"{os.path.basename(directory)}-{unix_ms()}")
    fs.rename(directory, aside)
    fs.sync_directory(damaged)
    fs.sync_directory(root)
    return aside
