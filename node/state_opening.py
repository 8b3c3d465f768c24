"""The replicated state that a node begins with: its newest checkpoint, or nothing.

Owns what follows from a checkpoint that is damaged. As long as the log reaches back to its first
entry every command is in there, so the state is built anew and the damaged files are kept for
people. A log whose beginning is gone has nothing to build it from: the node does not start.
Source: fault-matrix D8.
"""

import os
import time
from typing import Final

import structlog

from node.checkpoint_files import CheckpointDamagedError, CheckpointFiles
from node.state import StateImage
from raft.messages import NO_INDEX, Index
from store.file_system import FileSystem
from store.fsck.meta import DAMAGED_DIRECTORY

_log: Final = structlog.get_logger(component="node")


def load_state(
    fs: FileSystem, root: str, base_index: Index
) -> tuple[CheckpointFiles, StateImage | None]:
    """Return the checkpoint of a directory and what is in it; None: apply the log from its start.

    `base_index` is the entry before the first one of the log. Raises CheckpointDamagedError when
    that is not NO_INDEX, CorruptionError for a checkpoint of another version, FileSystemError,
    SyncFailedError.
    """
    files = CheckpointFiles(fs, root)
    try:
        return files, files.load()
    except CheckpointDamagedError as error:
        if base_index != NO_INDEX:
            raise
        kept = _set_aside(fs, root, files.directory)
        what = "the checkpoint was damaged; the state is built from the log"
        _log.warning(what, error=str(error), kept=kept)
    files = CheckpointFiles(fs, root)
    return files, files.load()


def _set_aside(fs: FileSystem, root: str, directory: str) -> str:
    """Move the files out of the way, durably; return where to."""
    damaged = os.path.join(root, DAMAGED_DIRECTORY)
    fs.make_directory(damaged)
    aside = os.path.join(damaged, f"{os.path.basename(directory)}-{time.time_ns() // 1_000_000}")
    fs.rename(directory, aside)
    fs.sync_directory(damaged)
    fs.sync_directory(root)
    return aside
