"""Installing a snapshot is atomic: whatever stops it, the old log is there or the new one (R30).

Real files. At every failpoint that an installation passes, a child process is killed by SIGKILL; at
every call to the file system, an image is built of what a power loss would leave.
"""

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest

from node.replication.raft.storage.log import LedgerLog
from node.replication.raft.storage.received_snapshot import INSTALLED_NAME, RECEIVED_NAME
from node.replication.raft.storage.snapshot import build_snapshot, encode_snapshot
from raft.messages import NO_INDEX, Configuration, ConfigurationAt, SnapshotMeta
from raft.ready import HardState
from store.files import failpoints
from store.files.file_system import FileSystem
from tests.node.ledger_cluster import CONFIG, open_log, sync
from tests.node.ledger_logs import new_log, put, queue_numbers, ship
from tests.store.power_loss import PowerLossFileSystem

MEMBERS = ConfigurationAt(-1, Configuration((1, 2, 3)))
STATE = b"state" * 3000
OLD_COUNT = 24


@dataclass
class Transfer:
    """A leader, and a follower's directory as it is before the snapshot comes."""

    leader: LedgerLog
    follower: Path
    meta: SnapshotMeta
    payload: bytes


@pytest.fixture
def transfer(tmp_path: Path) -> Iterator[Transfer]:
    leader = new_log(tmp_path / "leader")
    put(leader, 0, 5, queue_id=7)
    for lo in range(5, 95, 3):
        put(leader, lo, lo + 3, size_bytes=2500)
    leader.dispatch(leader.last_index + 1)
    meta = SnapshotMeta(15, 1, MEMBERS)
    payload = encode_snapshot(build_snapshot(leader.store, meta, STATE, 20))
    follower = tmp_path / "follower"
    make_follower(follower, FileSystem()).close()
    yield Transfer(leader, follower, meta, payload)
    leader.close()


def make_follower(root: Path, fs: FileSystem) -> LedgerLog:
    """A log with a tail that was never committed and is longer than the snapshot's position."""
    log = new_log(root, 2, fs=fs)
    log.save_hard_state(HardState(6, 3))
    put(log, 0, 5, queue_id=7)
    for lo in range(5, 5 + 3 * OLD_COUNT, 3):
        put(log, lo, lo + 3, term=1 + (lo > 20), size_bytes=3000)
    log.dispatch(5)
    sync(log)
    log.store.maintain()
    return log


def install(log: LedgerLog, transfer: Transfer) -> None:
    log.install_snapshot(transfer.meta, transfer.payload)


def open_follower(root: Path, fs: FileSystem | None = None) -> LedgerLog:
    log = open_log(root, 2, fs=fs)
    log.start_at(NO_INDEX)
    return log


def check_found(log: LedgerLog, transfer: Transfer) -> bool:
    """Whether the snapshot is there; it is wholly, or not at all."""
    names = {path.name for path in Path(log.store.root).iterdir()}
    assert RECEIVED_NAME not in names
    state = log.load()
    assert state.hard_state == HardState(6, 3)
    offsets = {q.queue_id: q.max_offset for q in log.store.reads.queues()}
    if log.received.installed is None:
        assert INSTALLED_NAME not in names
        assert (state.base_index, state.last_index, state.commit) == (-1, OLD_COUNT, 4)
        assert state.snapshot is None
        assert offsets == {7: 5, 0: 12}
        assert queue_numbers(log) == list(range(5, 17))
        return False
    assert log.installed_state() == STATE
    assert (state.base_index, state.last_index, state.commit) == (15, 15, 15)
    assert state.snapshot == transfer.meta
    assert state.configurations == (MEMBERS,)
    assert offsets == {7: 5, 0: 45}
    return True


def check_goes_on(log: LedgerLog, transfer: Transfer) -> None:
    """From whatever was found, the follower becomes equal to its leader."""
    leader = transfer.leader
    if log.received.installed is None:
        install(log, transfer)
    log.received.forget()
    ship(leader, log, 16, leader.last_index + 1)
    log.dispatch(leader.last_index + 1)
    assert log.chain_at(log.last_index) == leader.chain_at(leader.last_index)
    assert [q[:2] + q[3:] for q in log.store.reads.queues()] == [
        q[:2] + q[3:] for q in leader.store.reads.queues()
    ]
    sync(log)


def census(transfer: Transfer, root: Path) -> list[tuple[str, int]]:
    """Every pass of a failpoint on the way, in no order."""
    shutil.copytree(transfer.follower, root)
    with open_follower(root) as log:
        with failpoints.census() as counts:
            install(log, transfer)
        check_found(log, transfer)
    return [(name, n) for name, count in sorted(counts.items()) for n in range(1, count + 1)]


def install_and_die(root: Path, transfer: Transfer, specification: str) -> bool:
    """Install in a child process that is killed at a failpoint; return whether it was."""
    child = os.fork()
    if child == 0:
        try:
            log = open_follower(root)
            failpoints.arm(specification)
            install(log, transfer)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.long)])
def test_crash_at_each_step(transfer: Transfer, tmp_path: Path, every: int) -> None:
    steps = census(transfer, tmp_path / "census")
    assert {"snapshot.staged", "ledger.before_reset", "dispatch.restarted"} <= {s for s, _ in steps}
    named = ("snapshot.before_stage", "snapshot.staged", "ledger.before_reset")
    steps = [s for at, s in enumerate(steps) if at % every == 0 or s[0].startswith(named)]
    killed, new = [], []
    for name, n in steps:
        root = tmp_path / "victim"
        shutil.copytree(transfer.follower, root)
        if install_and_die(root, transfer, f"{name}=kill@{n}"):
            killed.append(name)
            with open_follower(root) as log:
                if check_found(log, transfer):
                    new.append(name)
            with open_follower(root) as log:
                check_goes_on(log, transfer)
            with open_follower(root) as log:
                assert log.last_index == transfer.leader.last_index
        shutil.rmtree(root)
    # The flush thread passes points of its own, now before and now after the installation.
    assert len(killed) >= len(steps) - 6
    assert "snapshot.before_stage" not in new
    assert {"snapshot.staged", "ledger.before_reset"} <= set(new)
    if every == 1:
        assert "dispatch.restarted" in new


def test_an_opening_that_finishes_an_installation_needs_no_thread_for_its_file(
    transfer: Transfer, tmp_path: Path
) -> None:
    """Nodes have their files made ahead, by a thread that begins once the log is open."""
    root = tmp_path / "victim"
    shutil.copytree(transfer.follower, root)
    assert install_and_die(root, transfer, "ledger.before_reset=kill")
    config = replace(CONFIG, preallocate_file_count=1, allocate_timeout_ms=50)
    with open_log(root, 2, config=config) as log:
        log.start_at(NO_INDEX)
        assert check_found(log, transfer)


@pytest.mark.parametrize("count", [7, pytest.param(30, marks=pytest.mark.long)])
def test_crash_at_each_step_twice(transfer: Transfer, tmp_path: Path, count: int) -> None:
    """The opening that finishes an installation is killed, too."""
    steps = census(transfer, tmp_path / "census")
    random, half = Random(7), tmp_path / "half"
    shutil.copytree(transfer.follower, half)
    assert install_and_die(half, transfer, "dispatch.restarted=kill")
    for name, n in random.sample(steps, count):
        root = tmp_path / "victim"
        shutil.copytree(half, root)
        child = os.fork()
        if child == 0:
            try:
                failpoints.arm(f"{name}=kill@{n}")
                open_follower(root)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        with open_follower(root) as log:
            assert check_found(log, transfer)
            check_goes_on(log, transfer)
        shutil.rmtree(root)


@pytest.mark.parametrize(("seed", "prepared_count"), [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_a_power_loss_at_each_step(
    transfer: Transfer, tmp_path: Path, seed: int, prepared_count: int
) -> None:
    """Also with files that a thread makes ahead, as a node has it."""
    random = Random(seed)
    images: list[tuple[str, Path]] = []
    root, one_at_a_time = tmp_path / "machine", threading.Lock()

    def before_call(name: str) -> None:
        with one_at_a_time:
            image = tmp_path / f"image{len(images)}"
            disk.build_image(str(root), str(image), random)
            images.append((name, image))

    disk = PowerLossFileSystem()
    root.mkdir()
    make_follower(root, disk).close()
    log = open_log(root, 2, fs=disk, config=replace(CONFIG, preallocate_file_count=prepared_count))
    log.start_at(NO_INDEX)
    disk.before_call = before_call
    install(log, transfer)
    before_call("end")
    disk.before_call = lambda name: None
    outcomes = []
    for _, image in images:
        (image / "boot_id").write_text("another-boot\n")
        with open_follower(image) as opened:
            outcomes.append(check_found(opened, transfer))
            check_goes_on(opened, transfer)
        shutil.rmtree(image)
    assert outcomes[0] is False
    assert outcomes[-1] is True
    assert len(outcomes) > 30
    log.close()
