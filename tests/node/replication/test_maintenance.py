"""The rounds of maintenance: when a checkpoint is due, and what is told of a step that waits."""

import asyncio
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from structlog.testing import capture_logs

from node.replication import maintenance as rounds
from node.replication.maintenance import CHECKPOINT_INTERVAL_MS, Maintenance, MaintenanceThread
from store.errors import FileSystemError, StoreError
from tests.patience import PATIENCE_S

INTERVAL_COUNT = CHECKPOINT_INTERVAL_MS // 1000
"""Rounds between two checkpoints, with a round a second."""


class Steps:
    """Notes in which rounds checkpoints are written. A round takes a second of its clock."""

    def __init__(self, urgent_round: int | None) -> None:
        self.thread = MaintenanceThread()
        self.round = 0
        self.checkpoints: list[int] = []
        self.is_checkpoint_urgent = False
        self.is_enough = asyncio.Event()
        self._urgent_round = urgent_round

    async def maintain(self) -> None:
        self.round += 1
        if self.round == self._urgent_round:
            self.is_checkpoint_urgent = True

    async def checkpoint(self) -> None:
        self.checkpoints.append(self.round)
        self.is_checkpoint_urgent = False

    async def delete_expired(self) -> None:
        if self.round == 3 * INTERVAL_COUNT:
            self.is_enough.set()


def maintenance_of(steps: Steps) -> Maintenance[Steps]:
    def must_not_die(error: BaseException) -> NoReturn:
        raise AssertionError("maintenance wanted to end the process") from error

    fail_stop: Any = must_not_die
    return Maintenance(steps, fail_stop, must_not_die)


@pytest.mark.parametrize(
    ("urgent_round", "first"),
    [(None, INTERVAL_COUNT), (2, 2)],
    ids=["by-age", "of-an-installed-snapshot"],
)
async def test_checkpoints_are_an_interval_apart_and_an_urgent_one_does_not_wait(
    monkeypatch: pytest.MonkeyPatch, urgent_round: int | None, first: int
) -> None:
    """A restart applies no more than an interval again; a snapshot's state is not held twice."""
    monkeypatch.setattr(rounds, "ROUND_MS", 0)
    steps = Steps(urgent_round)
    maintenance = maintenance_of(steps)
    clock: Any = SimpleNamespace(time=lambda: float(steps.round))
    maintenance._loop, maintenance._checkpointed_s = clock, 0.0
    maintenance.start()
    async with asyncio.timeout(PATIENCE_S):
        await steps.is_enough.wait()
    expected = list(range(first, 3 * INTERVAL_COUNT + 1, INTERVAL_COUNT))
    assert steps.checkpoints == expected
    await maintenance.stop()
    assert steps.checkpoints == [*expected, steps.round], "the last one, of the end"


async def test_a_step_that_is_postponed_is_told_once_until_it_succeeds() -> None:
    """A full disk stops several steps, in every round: each would fill the log."""
    maintenance = maintenance_of(Steps(None))

    async def attempt(step: str, error: StoreError | None) -> None:
        async def work() -> None:
            if error is not None:
                raise error

        await maintenance.step(step, work)

    write, unlink = FileSystemError("write", "config", 28), FileSystemError("unlink", "data", 5)
    with capture_logs() as lines:
        for _ in range(3):
            await attempt("checkpoint", write)
            await attempt("retention", unlink)
        await attempt("checkpoint", None)
        await attempt("checkpoint", write)
        await attempt("checkpoint", unlink)
    failures = [(line["step"], line["error"]) for line in lines]
    assert failures == [
        ("checkpoint", str(write)),
        ("retention", str(unlink)),
        ("checkpoint", str(write)),
        ("checkpoint", str(unlink)),
    ]
    await maintenance.stop()


async def test_the_end_of_the_rounds_waits_for_the_step_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it works on is closed next."""
    monkeypatch.setattr(rounds, "ROUND_MS", 0)
    begun, go_on = asyncio.Event(), asyncio.Event()
    ended: list[str] = []

    class Slow(Steps):
        async def maintain(self) -> None:
            begun.set()
            await go_on.wait()
            ended.append("maintenance")

        async def checkpoint(self) -> None:
            ended.append("checkpoint")

    maintenance = maintenance_of(Slow(None))
    maintenance.start()
    await begun.wait()
    stopping = asyncio.ensure_future(maintenance.stop())
    for _ in range(5):
        await asyncio.sleep(0)
    assert (stopping.done(), ended) == (False, [])
    go_on.set()
    await stopping
    assert ended == ["maintenance", "checkpoint"]
