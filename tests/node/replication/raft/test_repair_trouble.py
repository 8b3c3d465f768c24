"""What a repair makes of a disk that fails, and of being stopped: no files, no links."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from node.replication.fetch import EntryFetcher
from node.replication.raft.repair import (
    ClosedRepair,
    LiveRepair,
    OnProgress,
    RepairLimits,
    RepairProgress,
    find_damaged,
    open_repaired,
)
from store.errors import (
    CorruptionError,
    DamageWiderError,
    FileSystemError,
    LayoutError,
    StoreError,
    StoreFullError,
)
from store.files.file_system import FileSystem
from store.ledger.entry import ChainLink
from store.ledger.mending.damage import DamagedRange
from store.ledger.mending.fetched import RepairReport
from tests.node.replication.raft.test_repair import live_repair
from tests.patience import PATIENCE_S, eventually
from tests.store.records import small_config

_QUICK = RepairLimits(retry_ms=1)
_HOUR = RepairLimits(retry_ms=3_600_000)
_BLANK = DamagedRange(7, 7, 100, 200, ChainLink(6, 1, 0), 50, None, "the blank is not blank")
"""Only the end of a file: nothing has to be fetched."""
_DONE = RepairReport(_BLANK, 0, 6, 100, "")
_MET = CorruptionError("data/0", 100, "blank", "0", "1")
_WIDER = DamageWiderError(7, 9, 300)
_FULL = StoreFullError("data/0", 4096, 0)


def _nobody() -> EntryFetcher:
    return EntryFetcher(cast(Any, None), lambda: ())


class Store:
    """An open store; each call does what is next in `troubles`, then finds all good."""

    def __init__(self, *troubles: StoreError) -> None:
        self.troubles = list(troubles)
        self.looks: list[Callable[[], None]] = []
        """What looks at the damage do before anything else."""
        self.is_damaged = True

    def damage_of(self, error: CorruptionError) -> list[DamagedRange]:
        for look in self.looks:
            look()
        if self.troubles and not isinstance(self.troubles[0], DamageWiderError):
            raise self.troubles.pop(0)
        return [_BLANK] if self.is_damaged else []

    def repair_range(self, lo: int, hi: int, raw_entries: bytes) -> RepairReport:
        if self.troubles:
            raise self.troubles.pop(0)
        self.is_damaged = False
        return _DONE


def _live(
    store: Store, limits: RepairLimits = _QUICK
) -> tuple[LiveRepair, list[RepairReport], list[BaseException]]:
    return live_repair(cast(Any, store), _nobody(), limits)


async def _turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "trouble",
    [_FULL, FileSystemError("read", "data/0", 5), _MET, _WIDER],
    ids=lambda trouble: type(trouble).__name__,
)
async def test_trouble_of_a_live_repair_passes_and_does_not_end_the_node(
    trouble: StoreError,
) -> None:
    live, reports, fatal = _live(Store(trouble))
    live.on_damage(_MET)
    await eventually(lambda: fatal or live.waiting_count == 0)
    assert (fatal, reports) == ([], [_DONE])
    assert str(trouble) in live.last_trouble
    assert (live.repaired_entry_count, live.given_up_count) == (_DONE.entry_count, 0), (
        "none is given up"
    )


@pytest.mark.parametrize(
    ("troubles", "limits", "text"),
    [
        ([_FULL], _HOUR, str(_FULL)),
        ([_WIDER], _HOUR, str(_WIDER)),
        ([], _HOUR._replace(live_size_bytes_max=99), "restart it"),
    ],
    ids=["full-disk", "wider-damage", "large-damage"],
)
async def test_a_live_repair_that_waits_for_its_next_attempt_is_stopped_at_once(
    troubles: list[StoreError], limits: RepairLimits, text: str
) -> None:
    store, looks = Store(*troubles), list[None]()
    store.looks = [lambda: looks.append(None)]
    live, reports, _ = _live(store, limits)
    live.on_damage(_MET)
    await eventually(lambda: text in live.last_trouble)
    stopping = asyncio.ensure_future(live.stop())
    await _turns()
    assert stopping.done()
    assert (len(looks), reports, store.is_damaged) == (1, [], True)


async def test_stopping_a_live_repair_waits_for_its_thread() -> None:
    """The store is closed next."""

    begun, go_on, store = threading.Event(), threading.Event(), Store()
    store.looks = [begun.set, lambda: cast(None, go_on.wait(PATIENCE_S))]
    live, reports, fatal = _live(store)
    live.on_damage(_MET)
    await eventually(begun.is_set)
    stopping = asyncio.ensure_future(live.stop())
    await _turns()
    is_done = stopping.done()
    go_on.set()
    await stopping
    assert not is_done
    assert (reports, fatal, store.is_damaged) == ([], [], True)


async def test_a_cancelled_search_ends_after_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def look(root: str, config: object, *, fs: object) -> list[DamagedRange]:
        begun.set()
        go_on.wait(PATIENCE_S)
        return []

    monkeypatch.setattr("node.replication.raft.repair.find_damage", look)

    task = asyncio.ensure_future(find_damaged("root", small_config(), FileSystem()))
    await eventually(begun.is_set)
    task.cancel()
    await _turns()
    is_done = task.done()
    go_on.set()
    await asyncio.wait([task])
    assert not is_done
    assert task.cancelled()


@pytest.mark.parametrize(
    "error", [_MET, LayoutError("data", "a file of 8192 bytes", "one of 4096")]
)
async def test_a_store_that_cannot_be_opened_is_repaired_first(error: StoreError) -> None:
    errors, reports = [error], [_DONE]

    def open_store() -> str:
        if errors:
            raise errors.pop()
        return "open"

    async def repair() -> list[RepairReport]:
        return reports

    assert await open_repaired(open_store, repair) == ("open", [_DONE])
    errors, reports = [error, error], []
    with pytest.raises(type(error)):
        await open_repaired(open_store, repair)


class _Session:
    """All that was fetched is here; the first attempt to write it fails."""

    troubles: list[StoreError]
    is_complete, damaged = True, _BLANK
    closed_count = 0

    def __init__(self, root: str, config: object, damaged: DamagedRange, *, fs: object) -> None:
        self._damaged = damaged

    def finish(self) -> RepairReport:
        if self.troubles:
            raise self.troubles.pop()
        return _DONE._replace(damaged=self._damaged)

    def close(self) -> None:
        type(self).closed_count += 1


def closed(on_progress: OnProgress) -> ClosedRepair:
    return ClosedRepair(
        "root", small_config(), _nobody(), on_progress, limits=_QUICK, before_cut=lambda *_: None
    )


@pytest.mark.parametrize("trouble", [_FULL, FileSystemError("write", "data/0", 5)])
async def test_a_closed_repair_waits_until_its_disk_takes_what_was_fetched(
    trouble: StoreError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Session, "troubles", [trouble], raising=False)
    monkeypatch.setattr(_Session, "closed_count", 0)
    monkeypatch.setattr("node.replication.raft.repair.RepairSession", _Session)
    monkeypatch.setattr("node.replication.raft.repair.find_damage", lambda root, config, *, fs: [])
    waits: list[str] = []

    repair = closed(lambda progress: waits.append(progress.waiting_for))
    assert await repair.run([_BLANK]) == [_DONE]
    assert str(trouble) in waits
    assert _Session.closed_count == 1


async def test_damage_whose_edges_changed_is_searched_again_before_any_more_is_repaired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was found behind it may be a part of it by now."""
    behind = _BLANK._replace(position=300, end_position=400)
    wider = _BLANK._replace(end_position=400)
    findings = [[wider], []]
    monkeypatch.setattr(_Session, "troubles", [_MET], raising=False)
    monkeypatch.setattr("node.replication.raft.repair.RepairSession", _Session)
    monkeypatch.setattr(
        "node.replication.raft.repair.find_damage", lambda root, config, *, fs: findings.pop(0)
    )
    seen: list[RepairProgress] = []

    repair = closed(seen.append)
    reports = await repair.run([_BLANK, behind])
    assert [report.damaged for report in reports] == [wider]
    assert [(one.range_count, one.size_bytes) for one in seen] == [(2, 200), (0, 300)]
    assert seen[0].waiting_for == str(_MET)
