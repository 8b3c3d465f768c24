"""Puts the reset of the admin into the directories of stopped nodes: the way back when no user that
may change users is left.

Owns what the directories have to be, and the file in each. Nodes decide when it counts
(`node.broker.users.first_user`): a majority of the voters has to have the same file, so no disk
alone opens a cluster.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from node.config.users import RESET_FILE, read_first_user, reset_id_of
from node.errors.common import NodeError
from node.replication.ha.storage.replica_file import read_replica_file
from node.replication.raft.storage.configurations import decode_configuration
from node.replication.raft.storage.hard_state import NodeFile, NodeRecord
from quorumlog.user_files import UserFileError, read_user_file
from raft.messages import NO_INDEX, Configuration, ConfigurationAt, NodeId
from store.durability.identity import DirectoryLock
from store.errors import PositionRangeError
from store.files.file_system import FileSystem
from store.files.staging import TEMPORARY_SUFFIX
from store.format import ENTRY_HEADER_SIZE_BYTES
from store.ledger.entry import KIND_CONFIGURATION, unpack_header
from store.microscope.directory import LogDirectory
from store.opening import REPLICA_META_NAME, SHIPPED_META_NAME


class ResetRefusedError(NodeError):
    """The admin is not reset. No directory was changed."""

    code, status = "node.reset_refused", "FAILED_PRECONDITION"
    text = "{what}: {why}; {do}"
    what: str
    why: str
    do: str


class AdminReset(NamedTuple):
    """What lies in the directories now."""

    cluster_id: str
    user: str
    reset_id: str
    """16 bytes as hexadecimal digits: the same on all machines for the same file."""
    voters: tuple[NodeId, ...]
    """Of the newest configuration in the directories; all replicas of a master-slave group."""
    node_ids: tuple[NodeId, ...]
    """The voters whose directories were named."""

    @property
    def is_majority(self) -> bool:
        """Whether these directories alone are enough."""
        return 2 * len(self.node_ids) > len(self.voters)


def reset_admin(directories: Sequence[Path], users_file: Path) -> AdminReset:
    """Put `users_file` into each of the directories; durable on return. Repeating it changes
    nothing.

    Raises ResetRefusedError, LockedError (a process uses a directory), LayoutError, CorruptionError
    or FileSystemError before a directory is changed; StoreFullError or FileSystemError later.
    """
    try:
        user, content = read_first_user(users_file), read_user_file(users_file)
    except UserFileError as error:
        raise ResetRefusedError(str(users_file), error.what, error.do) from error
    fs, clusters = FileSystem(), dict[NodeId, str]()
    newest = ConfigurationAt(NO_INDEX - 1, Configuration(()))
    with ExitStack() as locks:
        for directory in directories:
            is_ha = _is_ha(directory)
            lock = DirectoryLock(fs, str(directory))
            lock.acquire()
            locks.callback(lock.release)
            if is_ha:  # Its replicas are the same for the life of a group.
                cluster_id, node_id, replicas = read_replica_file(fs, str(directory))
                known = [ConfigurationAt(NO_INDEX, Configuration(replicas))]
            else:
                record = NodeFile(fs, str(directory)).load_any()
                cluster_id, node_id = record.cluster_id, record.node_id
                known = [*_configurations(directory, record)]
            if node_id in clusters:
                do = "name one directory of each node, of one broker group"
                raise ResetRefusedError(str(directory), f"a second one of node {node_id}", do)
            clusters[node_id] = cluster_id
            newest = max(newest, *known, key=lambda at: at.index)
        cluster_ids, voters = {*clusters.values()}, newest.configuration[0]
        strange = sorted(clusters.keys() - set(voters))
        if len(cluster_ids) > 1 or strange:
            why = f"they are of {' and '.join(sorted(cluster_ids))}"
            if len(cluster_ids) == 1:
                why = f"{strange} are not among the voters {list(voters)}"
            do = "name the directories of voters of one broker group"
            raise ResetRefusedError("the directories do not belong together", why, do)
        for directory in directories:
            _write(fs, directory, content)
    node_ids = tuple(sorted(clusters))
    reset_id = reset_id_of(user.SerializeToString(deterministic=True)).hex()
    return AdminReset(cluster_ids.pop(), user.name, reset_id, voters, node_ids)


def _is_ha(directory: Path) -> bool:
    """Whether it is of a master-slave group. Raises ResetRefusedError if it is of no node."""

    def has(name: str) -> bool:
        return any((directory / f"{name}.{n}").exists() for n in (0, 1))

    is_ha = has(SHIPPED_META_NAME)
    if not is_ha and not has(REPLICA_META_NAME):
        do = "name what the setting 'directory' of a node names"
        raise ResetRefusedError(str(directory), "it is no directory of a cluster's node", do)
    return is_ha


def _configurations(directory: Path, record: NodeRecord) -> Iterator[ConfigurationAt]:
    """Yield the configurations that a stopped node has saved."""
    if record.base_configuration is not None:
        yield record.base_configuration
    if not record.configuration_indexes:
        return
    with LogDirectory.of(str(directory)) as there:
        for index in record.configuration_indexes:
            try:
                entry = there.entry(index)[0].data
            except PositionRangeError:
                continue  # Noted, and never written, or cut.
            if unpack_header(entry[:ENTRY_HEADER_SIZE_BYTES]).kind == KIND_CONFIGURATION:
                configuration = decode_configuration(entry[ENTRY_HEADER_SIZE_BYTES:])
                if configuration is not None:
                    yield ConfigurationAt(index, configuration)


def _write(fs: FileSystem, directory: Path, content: bytes) -> None:
    target = str(directory / RESET_FILE)
    temporary, owner = target + TEMPORARY_SUFFIX, directory.stat()
    fs.write_file(temporary, content)
    os.chown(temporary, owner.st_uid, owner.st_gid)  # The node has to read what root wrote.
    fs.rename(temporary, target)
    fs.sync_directory(str(directory))
