"""A backup of one node becomes the first node of a new cluster, whole or not at all."""

import os
import pickle
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import grpc
import pytest

from deploy.local import LocalCluster
from node.config.limits import Limits
from node.config.load import load
from node.config.settings import Settings
from node.errors.common import NodeError
from node.offline.directory_copy import StrangeFileError
from node.offline.restore import WORK_SUFFIX, RestoreError, restore
from node.replication.raft.storage.hard_state import NodeFile
from node.replication.raft.storage.log import LedgerLog
from node.replication.raft.storage.snapshot import build_snapshot, encode_snapshot
from node.state.checkpoint_files import CheckpointDamagedError
from node.state.image import encode_image
from node.state.machine import StateMachine
from quorumlog.pb import admin_pb2 as pb
from quorumlog.pb import log_pb2
from raft.errors import RaftError
from raft.messages import SnapshotMeta
from store.durability.durable_mark import SLOT_AT, decode_slot
from store.errors import LockedError, StoreError
from store.files.failpoints import armed, census
from store.files.file_system import FileSystem
from store.fsck.inspect import inspect
from store.record.message import encode_message
from tests.node.processes import LOOPBACK_FLAGS, SingleNode, connected, run_to_end
from tests.node.replication.raft.test_repair_process import MARK, flip
from tests.patience import PATIENCE_S, wait_for

SMALL = {"file_size_bytes": "1MiB", "batch_size_bytes_max": "256KiB"}
OTHER_CLUSTER = "restored"


def settings_for(directory: Path, **flags: str) -> Settings:
    """Settings of the new cluster's first node."""
    given = {**LOOPBACK_FLAGS, **SMALL, "cluster_id": OTHER_CLUSTER, **flags}
    return load(None, {**given, "directory": str(directory)}, {}).settings


def restored_node(directory: Path, **flags: str) -> SingleNode:
    return SingleNode(directory, **{**SMALL, "cluster_id": OTHER_CLUSTER, **flags})


def tree(directory: Path) -> dict[str, bytes]:
    """All files below a directory."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a stopped node that led alone and knows the address of node 4."""
    directory = tmp_path_factory.mktemp("backup") / "data"
    node = SingleNode(directory, **SMALL)
    with node, node.client() as client:
        client.create_topic("orders")
        client.append("orders", b"first", MARK, b"last")
        client.admin.ChangeMember(
            pb.ChangeMemberRequest(
                change=pb.MEMBER_CHANGE_ADD_LEARNER,
                node_id=4,
                address="127.0.0.1:1",
                peer_address="127.0.0.1:2",
            )
        )
        assert [m.node_id for m in client.status().members] == [1, 4]
        assert node.stop() == 0
    (directory / "dump-1-1.txt").write_text("of the old node")
    (directory / "nameserver").mkdir()
    (directory / "nameserver" / "journal").write_text("of the old replicas")
    return directory


@pytest.fixture
def backup(made: Path, tmp_path: Path) -> Path:
    """A copy of it, for a test of its own."""
    return Path(shutil.copytree(made, tmp_path / "backup"))


def test_a_restored_node_leads_under_a_new_name_and_number(backup: Path, tmp_path: Path) -> None:
    before, directory = tree(backup), tmp_path / "new" / "data"
    report = restore(backup, settings_for(directory, node_id="7"))
    assert tree(backup) == before
    assert (report.former_cluster_id, report.former_node_id) == ("quorumlog", 1)
    assert (report.cluster_id, report.node_id, report.former_standing) == (OTHER_CLUSTER, 7, "full")
    assert (report.topic_count, report.forgotten_node_ids) == (1, (4,))
    left_out = {"dump-1-1.txt", "nameserver/journal"}
    assert left_out <= before.keys()
    assert not left_out & tree(directory).keys()
    node = restored_node(directory, node_id="7")
    with node, node.client() as client:
        status = client.status()
        assert (status.cluster_id, status.node_id, status.role) == (OTHER_CLUSTER, 7, "leader")
        assert [(m.node_id, m.is_voter) for m in status.members] == [(7, True)]
        assert status.last_index > report.last_index
        assert status.term > report.last_term
        assert client.pull("orders", consistency=1).record_count == 3
        assert client.append("orders", b"new").queues[0].first_offset == 3
        nodes = client.log.Route(log_pb2.RouteRequest()).nodes
        assert [n.node_id for n in nodes] == [7]


@pytest.mark.long
def test_a_node_at_the_end_of_all_terms_names_the_restore_which_leaves_it_behind(
    backup: Path, tmp_path: Path
) -> None:
    node_file = NodeFile(FileSystem(), str(backup))
    hard_state = node_file.load_any().hard_state
    node_file.save_hard_state(hard_state._replace(term=(1 << 63) - 1, vote=1))
    refused = run_to_end(backup, None, **SMALL)
    assert refused.returncode == 65
    assert "node.term_end" in refused.stderr
    assert "qlog store restore" in refused.stderr
    report = restore(backup, settings_for(tmp_path / "data"))
    node = restored_node(tmp_path / "data")
    with node, node.client() as client:
        assert report.last_term < client.status().term < report.last_term + 10
        assert client.pull("orders", consistency=1).record_count == 3


@pytest.mark.long
def test_a_snapshot_of_a_disk_lacks_what_was_in_memory_only(tmp_path: Path) -> None:
    """It was taken on this boot, which says nothing of what had come to the disk by then."""
    directory = tmp_path / "data"
    synced = SingleNode(directory, **SMALL)
    with synced, synced.client() as client:
        client.create_topic("orders")
        client.append("orders", *(b"%d" % number for number in range(10)))
        assert synced.stop() == 0
    node = SingleNode(directory, **SMALL, flush="async", flush_interval_ms="10s")
    with node, node.client() as client:
        for number in range(10, 50):
            client.append("orders", b"%d" % number)
        node.signal(signal.SIGKILL)
        node.wait_end()
    marks = (directory / "marks").read_bytes()
    slots = [slot for at in SLOT_AT if (slot := decode_slot(marks, at)) is not None]
    _, mark = max(slots, key=lambda slot: slot[0])
    with (directory / "dledger-n0" / "data" / f"{0:020}").open("r+b") as file:
        file.seek(mark.durable_position)
        file.write(bytes(200_000))
    report = restore(directory, settings_for(tmp_path / "new"))
    assert report.former_standing == "recovering"
    assert report.last_index == mark.durable_index
    again = restored_node(tmp_path / "new")
    with again, again.client() as client:
        assert client.status().standing == "full"
        assert client.pull("orders", max_count=100).record_count == 10
        client.append("orders", b"and on")


@pytest.mark.long
def test_undecided_entries_are_restored(tmp_path: Path) -> None:
    """Nobody is left who knows whether it was acked, so it counts as if it was."""
    settings = {**SMALL, "heartbeat_ms": 50, "election_min_ms": 2_000}
    with LocalCluster.create(tmp_path / "c", 3, settings=settings) as cluster:
        leader = cluster.leader_id()
        with connected(cluster.address(leader)) as client:
            client.create_topic("orders")
            client.append("orders", b"acked")
            for other in set(cluster.node_ids) - {leader}:
                cluster.kill(other)
            end = client.status().last_index
            record = encode_message("orders", 0, b"in doubt", {})
            request = log_pb2.AppendRequest(records=record, record_count=1)
            call = client.log.Append.future(request, timeout=PATIENCE_S)
            wait_for("the entry", lambda: client.status().last_index > end)
            cluster.kill(leader)
            assert call.code() is grpc.StatusCode.UNAVAILABLE
        directory = cluster.node_directory(leader) / "data"
        restore(directory, settings_for(tmp_path / "new"))
    node = restored_node(tmp_path / "new")
    with node, node.client() as client:
        assert client.pull("orders", max_count=10).record_count == 2


@pytest.mark.long
@pytest.mark.parametrize("pattern", ["consumequeue/orders/0/0*0", "dledger-n0/index/0*0"])
def test_derived_files_are_rebuilt_by_a_restore(backup: Path, tmp_path: Path, pattern: str) -> None:
    (path,) = backup.glob(pattern)
    with path.open("r+b") as file:  # Of the first unit.
        file.seek(7)
        file.write(b"\x77")
    restore(backup, settings_for(tmp_path / "new"))
    node = restored_node(tmp_path / "new")
    with node, node.client() as client:
        assert b"first" in client.pull("orders", max_count=10).records
        assert client.append("orders", b"new").queues[0].first_offset == 3


@pytest.mark.long
def test_a_log_whose_beginning_is_gone(tmp_path: Path) -> None:
    """The state and the offsets of silent queues are not in the log any more."""
    flags = {**SMALL, "retention_size_bytes": "2MiB"}
    node, body = SingleNode(tmp_path / "data", **flags), Random(3).randbytes(100 * 1024)
    with node, node.client() as client:
        client.create_topic("silent")
        client.create_topic("orders")
        client.append("silent", b"a", b"b", b"c")
        for _ in range(60):
            client.append("orders", body)
        wait_for("retention", lambda: client.status().first_index > 15)
        assert node.stop() == 0
    report = restore(tmp_path / "data", settings_for(tmp_path / "new"))
    assert report.first_index > 15
    assert report.topic_count == 2
    again = restored_node(tmp_path / "new", retention_size_bytes="2MiB")
    with again, again.client() as client:
        assert client.append("silent", b"d").queues[0].first_offset == 3
        assert client.pull("orders", 59, max_count=1).record_count == 1
    node_file = NodeFile(FileSystem(), str(tmp_path / "data"))
    record, fence = node_file.load_any(), "topics behind log position 7"
    node_file.save(replace(record, state_fence=fence))
    with pytest.raises(RestoreError, match=f"{fence}.* another node"):
        restore(tmp_path / "data", settings_for(tmp_path / "none"))
    node_file.save(record)
    shutil.rmtree(tmp_path / "data" / "config")
    with pytest.raises(CheckpointDamagedError, match="applied index is -1"):
        restore(tmp_path / "data", settings_for(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


@pytest.mark.long
def test_places_are_meant_that_links_lead_to(backup: Path, tmp_path: Path) -> None:
    (tmp_path / "old").symlink_to(backup)
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "data").symlink_to(disk)
    restore(tmp_path / "old", settings_for(tmp_path / "data"))
    assert (tmp_path / "data").is_symlink()
    with restored_node(disk) as node, node.client() as client:
        assert client.pull("orders").record_count == 3


# --- Refused ---


def interrupted_joiner(backup: Path, directory: Path, index: int) -> None:
    """A node that got a snapshot at an entry, of the state at the last one, and was killed."""
    joiner, leader = settings_for(directory), settings_for(backup)
    with LedgerLog.open(
        str(backup), leader.store_config(), cluster_id="quorumlog", node_id=1
    ) as log:
        log.start_at(log.last_index)
        machine = StateMachine(log.store.reads, Limits(), None)
        machine.apply(0, log.last_index + 1)
        configuration = log.load().configurations[0]
        meta = SnapshotMeta(index, log.store.ledger.term_at(index), configuration)
        state, applied_index = encode_image(machine.image()), machine.applied_index
        data = encode_snapshot(build_snapshot(log.store, meta, state, applied_index))
    with LedgerLog.open(
        str(directory), joiner.store_config(), cluster_id="quorumlog", node_id=2
    ) as log:
        log.join()
        with armed("snapshot.staged=EIO"), pytest.raises(OSError, match="staged"):
            log.install_snapshot(meta, data)


@pytest.mark.long
def test_a_state_ahead_of_its_log_is_refused(backup: Path, tmp_path: Path) -> None:
    """The commands between would be others on it than on the nodes that join."""
    last_index = int(str(inspect(str(backup))["last_index"]))
    interrupted_joiner(backup, tmp_path / "behind", last_index - 1)
    with pytest.raises(RestoreError, match=f"entry {last_index}, its log ends with"):
        restore(tmp_path / "behind", settings_for(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    interrupted_joiner(backup, tmp_path / "level", last_index)
    report = restore(tmp_path / "level", settings_for(tmp_path / "new"))
    assert (report.former_standing, report.last_index) == ("joining", last_index)
    with restored_node(tmp_path / "new") as node, node.client() as client:
        client.create_topic("later")
        client.append("later", b"there")
        assert client.append("orders", b"new").queues[0].first_offset == 3


def test_a_joiner_that_got_nothing_is_refused(tmp_path: Path) -> None:
    old = settings_for(tmp_path / "data")
    with LedgerLog.open(
        str(old.directory), old.store_config(), cluster_id="quorumlog", node_id=2
    ) as log:
        log.join()
    with pytest.raises(RestoreError, match="its log is empty"):
        restore(tmp_path / "data", settings_for(tmp_path / "new"))
    assert os.listdir(tmp_path) == ["data"]


def spoil(backup: Path, _: Path) -> None:
    flip(backup)


def leave_something(_: Path, target: Path) -> None:
    target.mkdir()
    (target / "mine").touch()


def leave_work(_: Path, target: Path) -> None:
    target.with_name(target.name + WORK_SUFFIX).mkdir()


def make_slave(backup: Path, _: Path) -> None:
    for number in (0, 1):
        (backup / f"raft.{number}").rename(backup / f"haReplica.{number}")


def lose_identity(backup: Path, _: Path) -> None:
    for number in (0, 1):
        (backup / f"raft.{number}").unlink()


def lose_one_generation(backup: Path, _: Path) -> None:
    (backup / "raft.1").unlink()


@pytest.mark.parametrize(
    ("change", "flags", "words"),
    [
        (spoil, {}, "is damaged"),
        (leave_something, {}, "there is something in it"),
        (leave_work, {}, "a restore that did not end left it"),
        (make_slave, {}, "master-slave group"),
        (lose_identity, {}, "no backup"),
        (lose_one_generation, {}, "raft.1"),
        (None, {"cluster_id": "quorumlog"}, "set another cluster_id"),
        (None, {"replication": "async_master", "copies": "1"}, "mode raft"),
        (None, {"file_size_bytes": "2MiB"}, "set file_size_bytes to 1048576"),
    ],
)
def test_bad_backups_and_targets_are_refused(
    backup: Path,
    tmp_path: Path,
    change: Callable[[Path, Path], None] | None,
    flags: dict[str, str],
    words: str,
) -> None:
    target = tmp_path / "new"
    if change is not None:
        change(backup, target)
    before = tree(tmp_path)
    with pytest.raises((NodeError, StoreError)) as caught:
        restore(backup, settings_for(target, **flags))
    assert words in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert tree(tmp_path) == before


def test_places_that_overlap_are_refused(backup: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(backup)
    before = tree(backup)
    for target in (backup / "new", backup, tmp_path / "link" / "config" / "new"):
        with pytest.raises(RestoreError):
            restore(backup, settings_for(target))
    assert tree(backup) == before
    assert set(os.listdir(tmp_path)) == {"backup", "link"}


@pytest.mark.parametrize("place", ["raft.1", "config/other", "consumequeue/more"])
@pytest.mark.parametrize("kind", ["file", "directory", "pipe", "dead link", "own file"])
def test_a_backup_has_files_only(backup: Path, tmp_path: Path, place: str, kind: str) -> None:
    """A link brought in what lies elsewhere, for others to read; a pipe was waited for."""
    secret = tmp_path / "secret"
    secret.mkdir(0o700)
    (secret / "key").write_text("not of this backup")
    (secret / "key").chmod(0o600)
    to = {
        "file": secret / "key",
        "directory": secret,
        "dead link": tmp_path / "nothing",
        "own file": backup / "raft.0",
    }
    (backup / place).parent.mkdir(exist_ok=True)
    (backup / place).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(backup / place)
    else:
        (backup / place).symlink_to(to[kind])
    before = set(os.listdir(tmp_path))
    with pytest.raises(StrangeFileError, match="only files and directories are copied") as caught:
        restore(backup, settings_for(tmp_path / "new"))
    assert caught.value.path == str(backup / place)
    assert caught.value.kind == ("a pipe" if kind == "pipe" else "a link")
    assert set(os.listdir(tmp_path)) == before


def test_restored_files_are_for_their_user_alone(backup: Path, tmp_path: Path) -> None:
    for path in backup.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    restore(backup, settings_for(tmp_path / "new"))
    modes = {path: path.stat().st_mode & 0o777 for path in (tmp_path / "new").rglob("*")}
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}


def test_a_second_restore_leaves_the_first_alone(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both found the place empty; one of them has it."""
    work = tmp_path / f"new{WORK_SUFFIX}"

    def first_comes(root: str) -> None:
        work.mkdir()
        (work / "of the first").touch()

    monkeypatch.setattr("node.offline.restore.refuse_if_locked", first_comes)
    with pytest.raises(RestoreError, match="a restore that did not end left it"):
        restore(backup, settings_for(tmp_path / "new"))
    assert os.listdir(work) == ["of the first"]


@pytest.mark.long
def test_a_running_node_is_no_backup(tmp_path: Path) -> None:
    with SingleNode(tmp_path / "data", **SMALL), pytest.raises(LockedError):
        restore(tmp_path / "data", settings_for(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_a_disk_that_fails_at_any_step_leaves_nothing(backup: Path, tmp_path: Path) -> None:
    with census() as passes:
        restore(backup, settings_for(tmp_path / "whole"))
    counts = {name: count for name, count in passes.items() if name.startswith("fs.")}
    assert {"fs.sync", "fs.write", "fs.rename", "fs.sync_directory"} <= counts.keys(), counts
    shutil.rmtree(tmp_path / "whole")
    for name, count in counts.items():
        for nth in sorted({1, count // 2 + 1, count}):
            with armed(f"{name}=EIO@{nth}"), pytest.raises((NodeError, StoreError, RaftError)):
                restore(backup, settings_for(tmp_path / "new"))
            assert os.listdir(tmp_path) == ["backup"], f"{name} {nth}"


def test_backup_of_a_fenced_node_gets_its_state_from_the_log(backup: Path, tmp_path: Path) -> None:
    node_file = NodeFile(FileSystem(), str(backup))
    node_file.save(replace(node_file.load_any(), state_fence="topics behind log position 7"))
    report = restore(backup, settings_for(tmp_path / "data"))
    assert report.topic_count == 1
    restored = NodeFile(FileSystem(), str(tmp_path / "data")).load_any()
    assert restored.state_fence == ""
    assert len(list((tmp_path / "data" / "damaged").iterdir())) == 1
