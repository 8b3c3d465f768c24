"""Makes the first node of a new cluster out of a backup of any node of an old one.

Owns the order: copy, check every byte, take the new identity, apply all entries, and write the
entry that makes this node the only voter. Must not know how a backup was made. The new directory
appears under its name when all of it is durable, or not at all.

Why one node and not all: two backups differ in their tails, and nodes made from both would hold
different entries at one index of one term. So the others join with empty disks, as they would join
any cluster, and copy this one's log. Why another cluster id: nodes of the old cluster, and clients
that know it, must not take the new one for the old (fault-matrix D18, M7).
"""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from node.config.environment import store_host
from node.config.limits import Limits
from node.config.settings import Settings
from node.config.users import RESET_FILE
from node.errors.common import NodeError
from node.offline.directory_copy import copy_directory, files_below
from node.offline.owner_files import NAMESERVER_DIRECTORY, NODE_FILES
from node.peers.lives_file import FILE_NAMES as LIVES_FILES
from node.replication.raft.opening import open_state
from node.replication.raft.storage.hard_state import NodeFile, NodeRecord
from node.replication.raft.storage.log import LedgerLog
from node.runtime.fail_stop import DAMAGE_MARKER, DUMP_PREFIX
from node.runtime.node_file import NODE_FILE
from node.state.command_records import CommandEncoder
from quorumlog.pb.state_pb2 import Command
from raft.ceiling import TERM_END
from raft.messages import NO_INDEX, NO_TERM, Configuration, Index, Standing, Term
from raft.ready import EntryKind, HardState
from store.config import StoreConfig
from store.durability.identity import BOOT_ID_NAME, LOCK_NAME
from store.files.file_system import DIRECTORY_MODE, FileSystem
from store.fsck.check import verify
from store.fsck.files import refuse_if_locked
from store.fsck.layout import GivenSettings, detect
from store.fsck.plan import plan
from store.fsck.repair import apply
from store.fsck.types import Progress, Severity, no_progress
from store.opening import REPLICA_META_NAME, SHIPPED_META_NAME

WORK_SUFFIX: Final = ".restoring"
"""Suffix of the directory's name until it is complete."""
# Files of a process or of a place, or not of the log. Without the boot id the opening believes
# nothing that a loss of power could have taken, wherever the backup comes from.
_LEFT_OUT: Final = frozenset(
    {
        LOCK_NAME,
        BOOT_ID_NAME,
        NODE_FILE,
        RESET_FILE,
        DAMAGE_MARKER,
        NAMESERVER_DIRECTORY,
        *LIVES_FILES,
    }
)


class RestoreError(NodeError):
    """A backup was not restored. The backup is unchanged, and the new directory does not exist."""

    code, status = "node.restore_refused", "FAILED_PRECONDITION"
    text = "{what}: {why}; {do}"
    what: str
    why: str
    do: str


class Restored(NamedTuple):
    """The contents of the new directory. Indexes are of the old log, whose entries are all
    there."""

    directory: str
    cluster_id: str
    node_id: int
    former_cluster_id: str
    former_node_id: int
    former_standing: str
    """Unless `full`, the backed-up node knew that it may lack acknowledged entries."""
    first_index: Index
    last_index: Index
    last_term: Term
    topic_count: int
    group_count: int
    forgotten_node_ids: tuple[int, ...]
    """Nodes of the old cluster; the state no longer has their addresses."""


def restore(backup: Path, settings: Settings, progress: Progress = no_progress) -> Restored:
    """Make `settings.directory` from a backup: a closed directory of a node, or a file system
    snapshot of one. The node starts with these settings, leads alone, and takes in others.

    Raises RestoreError, StrangeFileError (a link, a pipe) and what `Store.open`, a check and
    `FileSystem` raise: LockedError (a process uses the backup), LayoutError, CorruptionError,
    StoreFullError, HardStateNotSavedError. Nothing is left then.
    """
    # Real paths, so that overlapping places are found and a linked directory is replaced.
    fs, target = FileSystem(), Path(os.path.realpath(settings.directory))
    backup = Path(os.path.realpath(backup))
    work = target.with_name(target.name + WORK_SUFFIX)
    _check_places(backup, target)
    if settings.is_ha:
        raise RestoreError(
            "replication is not raft",
            "a master-slave group has nothing that a restored node could prove itself by",
            "restore into a cluster of the mode raft",
        )
    for _ in files_below(backup, _belongs):
        pass  # Before any file in it is opened: opening a pipe would block.
    refuse_if_locked(str(backup))
    # No append is there to profit from a file that is made ahead.
    config = replace(settings.store_config(store_host(settings)), preallocate_file_count=0)
    _check_sizes(fs, backup, config)
    fs.make_directory(str(target.parent))
    try:
        work.mkdir(DIRECTORY_MODE)
    except FileExistsError:  # A restore removes only its own.
        do = "delete it, unless a restore runs there now"
        raise RestoreError(str(work), "a restore that did not end left it", do) from None
    made = work
    try:
        copy_directory(fs, backup, work, _belongs, progress)
        refuse_if_locked(str(backup))
        former = _take_identity(fs, work, settings)
        _check_bytes(backup, work, config, progress)
        restored = _go_on_alone(fs, work, config, settings, former, progress)
        fs.rename(str(work), str(target))
        made = target
        fs.sync_directory(str(target.parent))
    except BaseException:
        if made.exists():
            shutil.rmtree(made)
        raise
    return restored


def _belongs(name: str) -> bool:
    return name not in _LEFT_OUT and not name.startswith(DUMP_PREFIX)


# --- The steps ---


def _check_places(backup: Path, target: Path) -> None:
    has_meta = [
        any((backup / f"{name}.{n}").exists() for n in (0, 1))
        for name in (REPLICA_META_NAME, SHIPPED_META_NAME)
    ]
    if has_meta != [True, False]:
        why = "it is of a master-slave group" if has_meta[1] else f"it has no {REPLICA_META_NAME}.0"
        do = "name a copy of what the setting 'directory' of a node in raft mode names"
        raise RestoreError(f"{backup} is no backup", why, do)
    if target.is_mount():
        why = "it is a mount point, and the directory appears as a whole or not at all"
        raise RestoreError(str(target), why, "name a directory below it")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        why = "there is something in it"
        raise RestoreError(str(target), why, "name a directory that is empty, or not there yet")
    if backup in target.parents or backup == target or target in backup.parents:
        raise RestoreError(str(target), f"it lies in or above {backup}", "name another directory")


def _check_sizes(fs: FileSystem, backup: Path, config: StoreConfig) -> None:
    """Compare file sizes before the copy; the sizes of derived files follow from this one."""
    layout = detect(fs, str(backup), GivenSettings(container=config.container))
    size_bytes = layout.config.file_size_bytes
    if layout.source["file_size_bytes"] == "files" and size_bytes != config.file_size_bytes:
        raise RestoreError(
            str(backup),
            f"its log files have {size_bytes} bytes, file_size_bytes is {config.file_size_bytes}",
            f"set file_size_bytes to {size_bytes}",
        )


def _take_identity(fs: FileSystem, work: Path, settings: Settings) -> NodeRecord:
    """Give the copy the new node's identity; return the former one."""
    node_file = NodeFile(fs, str(work))
    former = node_file.load_any()
    if former.cluster_id == settings.cluster_id:
        raise RestoreError(
            f"the backup is of the cluster {former.cluster_id!r}",
            "the new one would have the same name, and old nodes and clients would take it for it",
            "set another cluster_id",
        )
    if not former.is_founded:
        raise _nothing_in("it was never part of a cluster")
    own = replace(former, cluster_id=settings.cluster_id, node_id=settings.node_id, life=0)
    node_file.save(own)
    return former


def _check_bytes(backup: Path, work: Path, config: StoreConfig, progress: Progress) -> None:
    """Refuse damage, and rebuild what the log implies. The opening cuts a torn tail."""
    given = GivenSettings(
        container=config.container,
        file_size_bytes=config.file_size_bytes,
        consume_queue_units_per_file=config.consume_queue_units_per_file,
        index_slot_count=config.index_slot_count,
        index_entry_count=config.index_entry_count,
        ledger_index_units_per_file=config.ledger_index_units_per_file,
    )
    mendable = []
    for finding in verify(str(work), progress, given=given, owner=NODE_FILES):
        if finding.severity is Severity.DAMAGE:
            do = "take a backup of another node, or see 'qlog store verify' and 'qlog store repair'"
            raise RestoreError(f"{backup} is damaged", str(finding), do)
        if finding.severity in (Severity.DERIVED, Severity.REPAIRABLE):
            mendable.append(finding)
    apply(str(work), plan(str(work), mendable, given=given), progress=progress)


def _go_on_alone(
    fs: FileSystem,
    work: Path,
    config: StoreConfig,
    settings: Settings,
    former: NodeRecord,
    progress: Progress,
) -> Restored:
    fatal: list[BaseException] = []
    with LedgerLog.open(
        str(work),
        config,
        cluster_id=settings.cluster_id,
        node_id=settings.node_id,
        fs=fs,
        on_fatal=fatal.append,
        progress=progress,
    ) as log:
        first_index, last_index = log.base_index + 1, log.last_index
        fence = former.state_fence
        if fence and log.base_index != NO_INDEX and log.received.installed is None:
            # The state cannot be rebuilt.
            raise RestoreError(
                "the state of the backup differs from that of the other nodes",
                f"{fence}, and its log no longer has all that the state is made of",
                "name a backup of another node",
            )
        if last_index == NO_INDEX:
            raise _nothing_in("its log is empty")
        # Entries that were not committed become so: no other member is left that could object.
        log.start_at(last_index)
        _, machine = open_state(fs, str(work), log, Limits())
        machine.apply(machine.applied_index + 1, last_index + 1)
        if machine.applied_index > last_index:
            # New entries would get indexes that the state has applied already.
            raise RestoreError(
                "the log of the backup is not all there",
                f"its state is of entry {machine.applied_index}, its log ends with {last_index}, "
                "as of a node that was still catching up",
                "name a backup of another node",
            )
        members = tuple(sorted(machine.state.members))
        hard_state, last_term = log.load().hard_state, log.store.ledger.last_term
        # No member of the new cluster promised anything in a term of the old one, so the log
        # decides: a forged term stays behind.
        term = last_term + 1
        if term + 1 >= TERM_END:
            raise RestoreError(
                "the log of the backup has no term left",
                f"its last entry is of term {last_term}",
                "export its messages, and begin a new cluster with them",
            )
        _write_end(log, settings, members, term)
        own = HardState(term, settings.node_id, Standing.FULL, hard_state.incarnation)
        log.save_hard_state(own)
        # The state was rebuilt, and no other one is left to differ; and no other
        # node remembers acks of the terms before.
        log.node_file.save(
            replace(
                log.node_file.record,
                state_fence="",
                state_fence_position=NO_INDEX,
                cut_term=NO_TERM,
            )
        )
        restored = Restored(
            directory=str(settings.directory),
            cluster_id=settings.cluster_id,
            node_id=settings.node_id,
            former_cluster_id=former.cluster_id,
            former_node_id=former.node_id,
            former_standing=hard_state.standing.name.lower(),
            first_index=first_index,
            last_index=last_index,
            last_term=last_term,
            topic_count=len(machine.state.topics),
            group_count=len(machine.state.groups),
            forgotten_node_ids=members,
        )
    if fatal:
        raise fatal[0]
    return restored


def _nothing_in(why: str) -> RestoreError:
    return RestoreError("the backup has nothing of a cluster", why, "name a backup of another node")


def _write_end(log: LedgerLog, settings: Settings, known: tuple[int, ...], term: Term) -> None:
    """Remove the addresses of the old nodes, and make this node the only voter."""
    log.store.find_offsets()
    if known:
        encoder = CommandEncoder(log.store.config.store_host)
        puts = [Command(put_member=Command.PutMember(node_id=node)) for node in known]
        batch = log.prepare(b"".join(map(encoder.encode, puts)))
        log.append(log.last_index + 1, term, EntryKind.DATA, batch)
    alone = Configuration((settings.node_id,))
    log.append(log.last_index + 1, term, EntryKind.CONFIGURATION, alone)
