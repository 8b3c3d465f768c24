"""Privacy of a node's files: no other user of the machine may read them.

Owns the modes of new files, the closing of a directory that is open to others, and the refusal of
secrets that others may read. Must not know the content of a file. `store.files.file_system` keeps
the store's own files private.
"""

import os
import stat
from pathlib import Path
from typing import Final

import structlog

_OTHERS: Final = 0o077
_OTHERS_OF_ROOTS_FILE: Final = 0o037
"""A file of root may be readable by its group: so an operator gives a secret to one user, and
Kubernetes to a pod with `fsGroup`. The same rule as PostgreSQL's for its keys."""
_log: Final = structlog.get_logger(component="node")


def make_private(directory: Path) -> None:
    """Make a node's directory for its user alone, and make all later files of this process private.

    An existing directory that others may read is closed to them; a warning names a directory that
    cannot be closed or is shared like /tmp. Raises OSError when the directory cannot be made.
    """
    os.umask(_OTHERS)
    directory.mkdir(parents=True, exist_ok=True)
    mode = stat.S_IMODE(directory.stat().st_mode)
    if not mode & _OTHERS:
        return
    fields = {"directory": str(directory), "mode": f"{mode:04o}"}
    if mode & stat.S_ISVTX and mode & stat.S_IWOTH:
        do = "give the node a directory of its own"
        _log.warning("others can look into the directory", **fields, do=do)
        return
    try:
        directory.chmod(mode & ~_OTHERS)
    except PermissionError:
        do = "give it to the user of the node, or close it as its owner"
        _log.warning("others can look into the directory", **fields, uid=os.geteuid(), do=do)
    else:
        _log.warning("closed the directory to others", **fields)


def changeable(path: Path) -> tuple[str, str] | None:
    """Return why a file is refused that others may not change, and what to do; None if it is
    accepted or missing."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can change {path}, its mode is {mode:04o}", f"chmod 600 {path}"
    return None


def unusable(path: Path) -> tuple[str, str] | None:
    """Return why a file with a secret is refused, and what to do; None if it is accepted or
    missing."""
    try:
        status = path.stat()
    except OSError:
        return None  # The check for missing files reports it.
    mode = stat.S_IMODE(status.st_mode)
    if mode & (_OTHERS if status.st_uid else _OTHERS_OF_ROOTS_FILE):
        do = f"chmod 600 {path}"
        if not status.st_uid:
            do += ", or 640 with a group of this node's user alone (Kubernetes: defaultMode 0440)"
        return f"others can read {path}, its mode is {mode:04o}", do
    if not os.access(path, os.R_OK):
        what = f"{path} cannot be read by user {os.geteuid()}"
        return what, "give the file to the user of the node"
    return None
