"""The seal of a directory: its node does not start until terms were lowered everywhere.

Owns the file `term-seal` and the errors of a start; must not know what a change of terms checks
(`term_change`). A node that ran between the first and the last step of such a change could give a
promise that the others then forget, so the seal has to outlive a crash and a loss of power.
"""

import json
import os
import secrets
from pathlib import Path
from typing import Final

from node.errors.common import NodeError
from node.replication.ha.core.types import EPOCH_END, EPOCH_NOTABLE
from raft.ceiling import TERM_END, TERM_NOTABLE
from store.files.file_system import FileSystem

SEAL_FILE: Final = "term-seal"
_TEMPORARY: Final = f"{SEAL_FILE}.tmp"
_SIZE_BYTES_MAX: Final = 4096


class SealedError(NodeError):
    """The directory takes part in a change of terms that is not over. The node does not start."""

    code, status = "node.sealed", "FAILED_PRECONDITION"

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.directory = directory

    def __str__(self) -> str:
        return (
            f"{self.directory} is sealed for a change of terms; finish it with 'qlog term lower', "
            f"or give it up with 'qlog term unseal'"
        )


class TermEndError(NodeError):
    """The term or epoch on the disk is the end of its range: no node can be elected with it."""

    code, status = "node.term_end", "FAILED_PRECONDITION"

    def __init__(self, directory: str, what: str, number: int) -> None:
        super().__init__(directory, what, number)
        self.directory, self.what, self.number = directory, what, number

    def __str__(self) -> str:
        return (
            f"{self.directory}: {self.what} {self.number} is the end of its range, and no "
            f"elections explain it: it was forged; close the peer port to strangers, stop all "
            f"nodes of the group, and lower them together with 'qlog term' (docs/operations.md)"
        )


def refuse_term_end(directory: str, term: int) -> None:
    """Raise TermEndError for a term above which a node has none to campaign for."""
    if term + 1 >= TERM_END:
        raise TermEndError(directory, "term", term)


def refuse_epoch_end(directory: str, number: int) -> None:
    """Raise TermEndError for the last epoch of a master-slave group."""
    if number + 1 >= EPOCH_END:
        raise TermEndError(directory, "epoch", number)


def term_warnings(term: int) -> tuple[str, ...]:
    """Return warnings for the operator about a term that works but was not reached by elections."""
    return _warnings("term", term) if term >= TERM_NOTABLE else ()


def epoch_warnings(number: int) -> tuple[str, ...]:
    """Return the same warnings for an epoch of a master-slave group."""
    return _warnings("epoch", number) if number >= EPOCH_NOTABLE else ()


def _warnings(what: str, number: int) -> tuple[str, ...]:
    return (
        f"no elections explain {what} {number}: check which hosts can reach the peer port; "
        f"'qlog term' lowers it in a planned stop",
    )


def refuse_if_sealed(directory: Path) -> None:
    """Raise SealedError for a directory whose node must not start."""
    if (directory / SEAL_FILE).exists():
        raise SealedError(str(directory))


def seal(fs: FileSystem, directory: Path) -> str:
    """Seal a directory, durably, and return the name of the seal. A readable seal is kept.

    Raises as FileSystem does."""
    found = read_seal(directory)
    if found:
        return found
    name = secrets.token_hex(8)
    temporary, path = str(directory / _TEMPORARY), str(directory / SEAL_FILE)
    if os.path.exists(temporary):
        fs.unlink(temporary)
    fd = fs.open(temporary, create=True)
    try:
        fs.write_at(fd, temporary, 0, json.dumps({"seal": name}).encode())
        fs.sync(fd, temporary)
    finally:
        fs.close(fd)
    fs.rename(temporary, path)
    fs.sync_directory(str(directory))
    return name


def read_seal(directory: Path) -> str | None:
    """Return the name of the seal; None if there is none, empty if it cannot be read. An unreadable
    seal is still a seal, but no statement belongs to it."""
    try:
        data = (directory / SEAL_FILE).read_bytes()[:_SIZE_BYTES_MAX]
    except FileNotFoundError:
        return None
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return ""
    name = found.get("seal") if isinstance(found, dict) else None
    return name if isinstance(name, str) else ""


def unseal(fs: FileSystem, directory: Path) -> None:
    """Remove the seal, durably. Raises as FileSystem does."""
    if (directory / SEAL_FILE).exists():
        fs.unlink(str(directory / SEAL_FILE))
        fs.sync_directory(str(directory))
