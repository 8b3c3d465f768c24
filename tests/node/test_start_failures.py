"""A start that fails at any step, or is cancelled, closes exactly what it opened."""

import asyncio
import gc
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import node.node
import node.replication.ha.assembly
import node.replication.raft.assembly
from node.config.settings import Settings
from node.config.types import Address
from node.monitoring.health import Phase
from node.monitoring.http import HttpServer
from node.nameserver.service import NameServerService
from node.node import Node
from node.peers.link import PeerLink
from node.replication.admin_parts import NodeParts, Replication
from node.replication.derived_scrub import DerivedCare
from node.replication.ha.applied import AppliedState
from node.replication.ha.assembly import build_ha
from node.replication.ha.driver import HaDriver
from node.replication.ha.link.link import HaLink
from node.replication.ha.storage.log import HaLog
from node.replication.lives import NodeLives
from node.replication.maintenance import Maintenance
from node.replication.raft.assembly import build_raft
from node.replication.raft.driver import RaftDriver
from node.replication.raft.storage.log import LedgerLog
from node.replication.scrub import Scrub
from node.rocketmq.service import RocketMq
from node.runtime.accounts import Accounts
from node.runtime.opening import Opening
from node.runtime.sync_watch import SyncWatch
from node.services.server import GrpcServer
from quorumlog.pb.admin_pb2 import NodeStatusRequest
from store.durability.identity import DirectoryLock
from store.files.file_system import FileSystem
from tests.node.whole_nodes import Fatal
from tests.patience import eventually

# In the order of the start; each name stands for the first call of its step.
_SHARED = (
    (HttpServer, "start"),
    (SyncWatch, "start"),
    (GrpcServer, "bind"),
    (GrpcServer, "open"),
    (node.node, "write_node_file"),
    (NodeLives, "open"),
    (NodeLives, "start"),
    (NameServerService, "of"),
    (NameServerService, "start"),
    (Maintenance, "__init__"),
    (Maintenance, "start"),
    (DerivedCare, "start"),
    (Scrub, "start"),
    (RocketMq, "__init__"),
    (GrpcServer, "start"),
)
_RAFT = (
    (LedgerLog, "open"),
    (node.replication.raft.assembly, "refuse_term_end"),
    (node.replication.raft.assembly, "open_state"),
    (PeerLink, "start"),
    (LedgerLog, "found"),
    (RaftDriver, "__init__"),
    (RaftDriver, "start"),
)
_HA = (
    (HaLog, "open"),
    (node.replication.ha.assembly, "refuse_epoch_end"),
    (AppliedState, "__init__"),
    (HaLink, "start"),
    (HaLog, "save_state"),
    (HaDriver, "__init__"),
    (HaDriver, "start"),
)
_STEPS = [
    *((build_raft, *step) for step in (*_SHARED, *_RAFT)),
    *((build_ha, *step) for step in (*_SHARED, *_HA)),
]


Build = Callable[[NodeParts], Awaitable[Replication]]


class StepError(Exception):
    """The failure that a test plants."""


def settings(root: Path, kind: Build, **changes: Any) -> Settings:
    free = Address("127.0.0.1", 0)
    values: dict[str, Any] = {
        "node_id": 1,
        "directory": root,
        "listen": free,
        "peer_listen": free,
        "http_listen": free,
        "nameserver_listen": None,
        "file_size_bytes": 1 << 16,
        "batch_size_bytes_max": 1 << 14,
        "disk_reserve_bytes": 0,
        "disk_full_ratio": 1.0,
        **({"replication": "sync_master", "copies": 1} if kind is build_ha else {}),
    }
    return Settings(**{**values, **changes})


def made(root: Path, kind: Build, **changes: Any) -> Node:
    fatal: Any = Fatal()
    return Node(settings(root, kind, **changes), fatal, kind)


def sockets() -> set[str]:
    """The sockets of this process. Those of gRPC's own loop exist once it was used."""
    targets = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            targets.add(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:  # The descriptor of the listing itself.
            continue
    return {name for name in targets if name.startswith("socket:")}


class Kept(NamedTuple):
    """What gRPC keeps in a process that used it."""

    threads: set[threading.Thread]
    sockets: set[str]
    tasks: "set[asyncio.Task[Any]]"


async def check_closed(root: Path, kept: Kept) -> None:
    """Nothing of a node is left but its files."""
    assert not (root / "node.json").exists()
    lock = DirectoryLock(FileSystem(), str(root))
    lock.acquire()
    lock.release()
    pool = {t for t in threading.enumerate() if t.name.startswith("asyncio_")}
    assert not set(threading.enumerate()) - kept.threads - pool
    # A gRPC server that never began closes its port when its memory is freed, in a task.
    gc.collect()
    expected_tasks = kept.tasks | {asyncio.current_task()}
    await eventually(lambda: not asyncio.all_tasks() - expected_tasks, "no task of the node")
    await eventually(lambda: not sockets() - kept.sockets, "no socket of the node")


@pytest.fixture(scope="module", autouse=True)
def _collector() -> Iterator[None]:
    """A node that serves sets the collector for its whole process."""
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def run(work: Callable[[Kept], Coroutine[Any, Any, None]]) -> None:
    """Run `work` beside a gRPC server, so that gRPC has everything that it keeps."""

    async def beside() -> None:
        warm = GrpcServer(Accounts())
        warm.bind(Address("127.0.0.1", 0))
        await warm.open(())
        await asyncio.to_thread(lambda: None)
        try:
            await work(Kept(set(threading.enumerate()), sockets(), asyncio.all_tasks()))
        finally:
            await warm.stop(0)

    asyncio.run(beside())


@pytest.mark.parametrize(
    ("kind", "owner", "name"),
    [
        pytest.param(
            kind,
            owner,
            name,
            id=f"{kind.__name__}-{getattr(owner, '__name__', owner)}.{name}",
            # What both modes share is proved with one of them in the gate.
            marks=pytest.mark.long if kind is build_ha and (owner, name) in _SHARED else (),
        )
        for kind, owner, name in _STEPS
    ],
)
def test_failed_step_leaves_nothing_open(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: Build,
    owner: Any,
    name: str,
) -> None:
    one_met: list[str] = []

    def fail(*_: Any, **__: Any) -> None:
        one_met.append(name)
        raise StepError(name)

    async def work(kept: Kept) -> None:
        monkeypatch.setattr(owner, name, fail)
        node = made(tmp_path, kind)
        with pytest.raises(StepError):
            await node.start()
        assert one_met
        assert node.health.phase is Phase.STOPPING
        node.hurry.set()
        await node.stop()
        del node
        await check_closed(tmp_path, kept)

    run(work)


@pytest.mark.parametrize("kind", [build_raft, build_ha])
def test_whole_start_and_stop_leave_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Build
) -> None:
    monkeypatch.setattr(SyncWatch, "warnings", lambda _: ("a sync hangs",))

    async def work(kept: Kept) -> None:
        node = made(tmp_path, kind)
        await node.start()
        assert node.health.phase.value == "serving"
        driver = node.replication.driver
        assert not isinstance(driver, RaftDriver) or driver.has_met_all(), "there are no others"
        assert (tmp_path / "node.json").exists()
        assert "a sync hangs" in (await node.admin.node_status(NodeStatusRequest())).detail
        await node.stop()
        assert node.health.phase.value == "stopping"
        del node
        await check_closed(tmp_path, kept)

    run(work)


@pytest.mark.parametrize("kind", [build_raft, build_ha])
def test_cancelled_wait_for_others_leaves_nothing_open(tmp_path: Path, kind: Build) -> None:
    peers = {
        n: {"address": Address("127.0.0.1", n), "peer_address": Address("127.0.0.1", n)}
        for n in (1, 2, 3)
    }

    async def work(kept: Kept) -> None:
        node = made(tmp_path, kind, peers=peers)
        is_waiting = asyncio.Event()
        enter = node.health.enter

        def note(phase: Phase, detail: str = "") -> None:
            enter(phase, detail)
            if phase is Phase.WAITING:
                is_waiting.set()

        node.health.enter = note  # type: ignore[method-assign]
        start = asyncio.create_task(node.start())
        waiting = asyncio.create_task(is_waiting.wait())
        await asyncio.wait((start, waiting), return_when=asyncio.FIRST_COMPLETED)
        assert is_waiting.is_set()
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        node.hurry.set()
        await node.stop()
        del node, start
        await check_closed(tmp_path, kept)

    run(work)


@pytest.mark.parametrize("kind", [build_raft, build_ha])
@pytest.mark.parametrize("is_impatient", [False, True])
def test_log_that_opens_after_the_cancel_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Build, is_impatient: bool
) -> None:
    """A cancelled start waits for its thread. One that is cancelled again does not, so there the
    thread closes the log."""
    may_end, has_ended = threading.Event(), threading.Event()
    run_opening = Opening.run

    async def work(kept: Kept) -> None:
        is_open = asyncio.Event()
        loop = asyncio.get_running_loop()

        def slowly(self: Opening, open_it: Callable[[], Any]) -> Any:
            def opened() -> Any:
                log = open_it()
                loop.call_soon_threadsafe(is_open.set)
                may_end.wait()
                return log

            try:
                return run_opening(self, opened)
            finally:
                has_ended.set()

        monkeypatch.setattr(Opening, "run", slowly)
        node = made(tmp_path, kind)
        start = asyncio.create_task(node.start())
        opening = asyncio.create_task(is_open.wait())
        await asyncio.wait((start, opening), return_when=asyncio.FIRST_COMPLETED)
        assert is_open.is_set()
        start.cancel()
        await asyncio.wait((start,), timeout=0.05)
        assert not start.done()
        if is_impatient:
            start.cancel()
        else:
            may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await start
        await node.stop()
        may_end.set()
        await asyncio.to_thread(has_ended.wait)
        del node, start
        await check_closed(tmp_path, kept)

    run(work)


async def test_applying_ends_before_a_cancelled_start_closes_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread reads mapped files of the log until it has ended."""
    loop, is_applying, may_end = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    order: list[str] = []
    apply, close = AppliedState.__init__, HaLog.close

    def slowly(self: AppliedState, *given: Any) -> None:
        loop.call_soon_threadsafe(is_applying.set)
        may_end.wait()
        apply(self, *given)
        order.append("applied")

    def note(self: HaLog) -> None:
        order.append("closed")
        close(self)

    monkeypatch.setattr(AppliedState, "__init__", slowly)
    monkeypatch.setattr(HaLog, "close", note)
    node = made(tmp_path, build_ha)
    start = asyncio.create_task(node.start())
    await is_applying.wait()
    start.cancel()
    loop.call_later(0.05, may_end.set)
    with pytest.raises(asyncio.CancelledError):
        await start
    await node.stop()
    assert order == ["applied", "closed"]


@pytest.mark.parametrize(
    ("error", "is_fatal"), [(AssertionError("planted"), True), (OSError("planted"), False)]
)
async def test_broken_invariant_of_the_stop_ends_the_process_before_the_log_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, is_fatal: bool
) -> None:
    """A closed log counts as clean, and the next start would believe it."""
    seen: list[list[BaseException]] = []
    stop, close = RaftDriver.stop, LedgerLog.close
    fatal: Any = Fatal()

    def broken(self: RaftDriver) -> None:
        stop(self)
        raise error

    def note(self: LedgerLog) -> None:
        seen.append(list(fatal.errors))
        close(self)

    monkeypatch.setattr(RaftDriver, "stop", broken)
    monkeypatch.setattr(LedgerLog, "close", note)
    node = Node(settings(tmp_path, build_raft), fatal, build_raft)
    await node.start()
    with pytest.raises(type(error), match="planted"):
        await node.stop()
    assert seen == [[error] if is_fatal else []]
