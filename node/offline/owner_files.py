"""The files of a node in the directory of its store, as a check of the directory sees them.

Owns the list of them and the weight of what is wrong; each is checked by the parser of its owner.
Files that only exist or not, or are for operators (`damage-found`, `node.json`, `*.bak`, dumps),
decide nothing by their bytes. Source: fault-matrix D5, D10.
"""

import re
from collections.abc import Iterator
from typing import Final

from node.config.users import RESET_FILE
from node.nameserver.replica import dump, journal
from node.peers.lives_file import FILE_NAMES as LIVES_FILES
from node.peers.lives_file import NAME as LIVES_NAME
from node.replication.ha.storage import epoch_file
from node.replication.ha.storage.losses import LOSS_FILE
from node.replication.raft.storage.received_snapshot import INSTALLED_NAME, RECEIVED_NAME
from node.replication.raft.storage.snapshot import is_checksum_right
from node.runtime.fail_stop import DAMAGE_MARKER, DUMP_PREFIX
from node.runtime.node_file import NODE_FILE
from node.state.checkpoint_files import checkpoint_problems
from store.errors import CorruptionError
from store.files.file_system import FileSystem
from store.files.meta_file import ReadSmall, meta_problems, read_generations
from store.fsck.files import small_reader
from store.fsck.types import Finding, OwnerFiles, Part, Severity, finding_of
from store.opening import REPLICA_META_NAME, SHIPPED_META_NAME

NAMESERVER_DIRECTORY: Final = "nameserver"
_META_NAMES: Final = (
    REPLICA_META_NAME,
    SHIPPED_META_NAME,
    epoch_file.BINDING_FILE,
    LOSS_FILE,
    LIVES_NAME,
    f"{NAMESERVER_DIRECTORY}/{journal.TERM_NAME}",
)
_SNAPSHOTS: Final = (RECEIVED_NAME, INSTALLED_NAME)
_EPOCH_BACKUP: Final = epoch_file.EPOCH_FILE + epoch_file.BACKUP
_NAMES: Final = (
    *LIVES_FILES,
    *(f"{name}.damaged" for name in LIVES_FILES),
    *(f"{name}.{n}" for name in (epoch_file.BINDING_FILE, LOSS_FILE) for n in (0, 1)),
    epoch_file.EPOCH_FILE + epoch_file.TEMPORARY,
    *_SNAPSHOTS,
    NAMESERVER_DIRECTORY,
    NODE_FILE,
    RESET_FILE,
    DAMAGE_MARKER,
)


def _check(fs: FileSystem, root: str) -> Iterator[Finding]:
    read = small_reader(fs, root)
    for error in _problems(read):
        is_backup = error.path == _EPOCH_BACKUP  # Read where there is no main file only.
        severity = Severity.REPAIRABLE if is_backup else Severity.DAMAGE
        yield finding_of(error, severity, Part.NODE)
    for name in fs.list_directory(f"{root}/{NAMESERVER_DIRECTORY}"):
        path = f"{NAMESERVER_DIRECTORY}/{name}"
        data = read(path)
        if data is not None:
            yield from _check_nameserver(name, path, data)


def _problems(read: ReadSmall) -> Iterator[CorruptionError]:
    for name in _META_NAMES:
        yield from meta_problems(name, read_generations(name, read))
    yield from checkpoint_problems(read)
    for name in (epoch_file.EPOCH_FILE, _EPOCH_BACKUP):
        data = read(name)
        if data is not None:
            try:
                epoch_file.decode(name, data)
            except CorruptionError as error:
                yield error
    for name in _SNAPSHOTS:
        data = read(name)
        if data is not None and not is_checksum_right(data):
            at = max(len(data) - 4, 0)
            yield CorruptionError(name, at, "CRC-32C", "that of its bytes", "another")


def _check_nameserver(name: str, path: str, data: bytes) -> Iterator[Finding]:
    if name == journal.NAME:
        read = journal.read_journal(path, data)
        if read.problem is not None:
            severity = Severity.TORN_TAIL if read.is_torn else Severity.DAMAGE
            yield finding_of(read.problem, severity, Part.NODE)
    elif name == dump.NAME or data.startswith(dump.MAGIC):
        try:
            dump.parse_dump(path, data)
        except CorruptionError as error:
            yield finding_of(error, Severity.DAMAGE, Part.NODE)


NODE_FILES: Final = OwnerFiles(
    re.compile("|".join([*map(re.escape, _NAMES), re.escape(DUMP_PREFIX) + r"[0-9]+-[0-9]+\.txt"])),
    _check,
)
