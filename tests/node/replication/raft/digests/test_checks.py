"""One node that compares its state with what the log says of it; the other voters are played."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from node.errors.common import NotReadyError
from node.peers.frames import FrameKind
from node.replication.maintenance import MaintenanceThread
from node.replication.raft.digests import checks as digests
from node.replication.raft.digests.checks import StateChecks
from node.replication.raft.digests.fence import StateFence
from node.state.digest import FORM, Digest, to_pb
from raft.errors import NotLeaderError
from store.errors import StoreFullError
from tests.node.broker_fakes import Fixture, node_at
from tests.patience import eventually


@pytest.fixture(autouse=True)
def _compared_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A point behind each command, as soon as the node looks."""
    monkeypatch.setattr(digests, "POINT_AGE_MS", 0)
    monkeypatch.setattr(digests, "POINT_PAUSE_MS", 0)
    monkeypatch.setattr(digests, "DIGEST_SHARE", 0)
    monkeypatch.setattr(digests, "UNDECIDED_MS", 0)


class Checked(NamedTuple):
    """Node 1, which leads, and the checks of its state."""

    node: Fixture
    checks: StateChecks
    tasks: "list[asyncio.Future[Any]]"

    async def settled(self) -> int:
        """Let it digest and write what is due; return how many entries it wrote so far."""

        def is_settled() -> bool:
            return not self.checks._is_writing and all(task.done() for task in self.tasks)

        await eventually(is_settled)
        return self.node.driver.append_count


@asynccontextmanager
async def checked(root: Path, *voters: int) -> AsyncIterator[Checked]:
    async with node_at(root) as node:
        driver: Any = node.driver
        progress = {voter: SimpleNamespace(is_counted=True) for voter in voters if voter != 1}
        state = SimpleNamespace(progress=progress, voters=voters)
        driver.replica = SimpleNamespace(core=SimpleNamespace(state=state))
        thread, tasks = MaintenanceThread(), list[asyncio.Future[Any]]()

        def spawn(work: Any) -> None:
            tasks.append(asyncio.ensure_future(work))

        fence = StateFence(node.log.node_file, lambda _: None)
        checks = StateChecks(node.machine, driver, driver, thread, fence, spawn)
        try:
            yield Checked(node, checks, tasks)
            await asyncio.gather(*tasks)
        finally:
            thread.stop()


async def test_a_state_is_compared_once_and_an_idle_log_does_not_grow(tmp_path: Path) -> None:
    async with checked(tmp_path, 1) as world:
        node, checks, _ = world
        checks.look()
        written = await world.settled()
        assert (checks.equal_count, checks.differing_count) == (1, 0)
        for _ in range(3):
            checks.look()
            assert await world.settled() == written
        await node.broker.put_member(50, "n50:1", "")
        checks.look()
        await world.settled()
        assert checks.equal_count == 2


@pytest.mark.parametrize("form", [FORM, FORM + 1])
async def test_only_a_digest_of_this_form_tells_of_the_state(tmp_path: Path, form: int) -> None:
    """A majority of another version may have written one of another form."""
    async with checked(tmp_path, 1, 2, 3) as world:
        checks = world.checks
        checks.look()
        await world.settled()
        offset = checks._offset
        checks.on_digest(to_pb(Digest(checks._point, form, (("topics", bytes(16)),))))
        assert checks._offset == offset + 1, "a command of checks is no reason for a point"
        assert (checks.differing_count, checks.passed_over_count) == (form == FORM, form != FORM)
        assert bool(checks.fence.reason) == (form == FORM)


async def test_states_that_differ_without_a_majority_are_told_once_for_a_point(
    tmp_path: Path,
) -> None:
    async with checked(tmp_path, 1, 2) as world:
        checks = world.checks
        checks.look()
        await world.settled()
        other = to_pb(Digest(checks._point, FORM, (("topics", bytes(16)),)))
        checks.on_frame(2, FrameKind.STATE_DIGEST, other.SerializeToString(), memoryview(b""))
        for _ in range(3):
            checks.look()
        assert (checks.undecided_count, checks.fence.reason) == (1, "")


@pytest.mark.parametrize(
    "error", [NotReadyError(1), StoreFullError("/disk", 1, 0), NotLeaderError(2)]
)
async def test_a_point_that_cannot_be_written_now_is_written_later(
    tmp_path: Path, error: Exception
) -> None:
    async with checked(tmp_path, 1) as world:
        checks, world.node.driver.failure = world.checks, error
        checks.look()
        assert (checks._is_writing, checks._point) == (False, -1)
        checks.look()
        await world.settled()
        assert checks.equal_count == 1
