"""A damaged branch of a log: what a leader wrote before it lost its term, and never committed.

Peers have committed other entries in its place, so none of theirs follows the branch. It is cut,
but only on a proof, and never what readers have seen.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from store.errors import ForeignEntryError, StoreError
from store.files import failpoints
from store.ledger.ledger import Ledger
from store.replicated.repair import RepairSession
from tests.store.ledger_stores import (
    COMMON_COUNT,
    CONFIG,
    FILE,
    Wreck,
    make_branch,
    open_replica,
    peer,
)
from tests.store.replicated.test_repair import flipped


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Wreck:
    return make_branch(tmp_path_factory.mktemp("branch"))


@pytest.fixture
def branch(made: Wreck) -> Wreck:
    _harm_not(made)
    return made


def _harm_not(branch: Wreck) -> None:
    shutil.rmtree(branch.root)
    shutil.copytree(branch.root.parent / "before", branch.root)


def _proof(source: Ledger, index: int) -> bytes:
    """The entry `index`, and the one in front of it, as a node fetches them."""
    lo = max(index - 1, source.first_index)
    return b"".join(source.read_range(each, each + 1, 1) for each in range(lo, index + 1))


def _flip_late(branch: Wreck) -> None:
    branch.flip(branch.spots[-9].position + 8)


def _lose_a_file(branch: Wreck) -> None:
    branch.data(2 * FILE).unlink()


def _cut_a_file_short(branch: Wreck) -> None:
    path = branch.data(branch.spots[COMMON_COUNT + 9].position)
    path.write_bytes(path.read_bytes()[: branch.spots[COMMON_COUNT + 9].position % FILE + 10])


DAMAGE: dict[str, Callable[[Wreck], None]] = {
    "flip": _flip_late,
    "file": _lose_a_file,
    "short": _cut_a_file_short,
}


def _check_cut(branch: Wreck, last_index: int) -> None:
    """The log goes on as after any restart: its leader cuts the rest, and appends."""
    assert branch.find() == []
    with peer(branch.intact, CONFIG) as source, open_replica(branch.root) as store:
        ledger = store.ledger
        assert COMMON_COUNT - 1 <= ledger.last_index == last_index
        store.truncate_from(COMMON_COUNT)
        while ledger.last_index < source.last_index:
            lo = ledger.last_index + 1
            raw = source.read_range(lo, source.last_index + 1, 3000)
            store.write_raw(ledger.check_raw(raw, lo - 1), lo)
        hi = source.last_index + 1
        assert ledger.read_entries(0, hi) == source.read_entries(0, hi)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_branch_is_cut_where_it_is_damaged(branch: Wreck, damage: str) -> None:
    DAMAGE[damage](branch)
    damaged = branch.find()[0]
    assert damaged.lo_index > COMMON_COUNT
    with (
        peer(branch.intact, CONFIG) as source,
        RepairSession(str(branch.root), CONFIG, damaged) as session,
    ):
        with pytest.raises(ForeignEntryError):
            session.add(source.read_range(damaged.lo_index, damaged.lo_index + 1, 1))
        for index in range(damaged.lo_index):
            assert session.contradicts(_proof(source, index)) is (index >= COMMON_COUNT)
        report = session.cut()
    assert report.is_cut
    assert report.last_index == damaged.lo_index - 1
    assert not report.kept_path or Path(report.kept_path).exists()
    _check_cut(branch, damaged.lo_index - 1)


def test_bytes_that_prove_nothing_are_refused(branch: Wreck) -> None:
    _flip_late(branch)
    damaged = branch.find()[0]
    with (
        peer(branch.intact, CONFIG) as source,
        RepairSession(str(branch.root), CONFIG, damaged) as session,
    ):
        index = COMMON_COUNT
        front, entry = _proof(source, index - 1), _proof(source, index)
        front_size_bytes = len(entry) - len(source.read_range(index, index + 1, 1))
        for at in range(front_size_bytes, len(entry)):
            with pytest.raises(ForeignEntryError):
                session.contradicts(flipped(entry, at))
        for at in range(len(front)):  # Of the log of both: no flip makes it another one.
            try:
                assert not session.contradicts(flipped(front, at))
            except ForeignEntryError:
                continue
        behind = _proof(source, damaged.lo_index)
        for wrong in (b"", entry[:47], entry[:-1], entry + b"\0", entry[front_size_bytes:], behind):
            with pytest.raises(ForeignEntryError):
                session.contradicts(wrong)


def test_what_readers_have_seen_is_never_cut(branch: Wreck) -> None:
    with open_replica(branch.root) as store:
        store.dispatch_to(store.ledger.max_position)
    _flip_late(branch)
    damaged = branch.find()[0]
    with RepairSession(str(branch.root), CONFIG, damaged) as session:
        assert session.was_seen
        with pytest.raises(AssertionError, match="readers have seen"):
            session.cut()
    assert branch.find() == [damaged]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_cut_that_fails_half_way_is_repeated(branch: Wreck, damage: str) -> None:
    """At every call: the damage is found again, or was cut. Good entries in front stay."""
    DAMAGE[damage](branch)
    wanted = branch.find()[0].lo_index - 1
    with failpoints.census() as counts:
        _cut(branch)
    case_count = 0
    for name in sorted(name for name in counts if name.startswith(("fs.", "ledger_repair."))):
        for nth in range(1, counts[name] + 1):
            _harm_not(branch)
            DAMAGE[damage](branch)
            with failpoints.armed(f"{name}=EIO@{nth}"):
                try:
                    _cut(branch)
                except (StoreError, OSError):
                    case_count += 1
            if branch.find():
                _cut(branch)
            _check_cut(branch, wanted)
    assert case_count > 8
    assert {"ledger_repair.before_cut", "ledger_repair.cut"} <= counts.keys()


def _cut(branch: Wreck) -> None:
    with RepairSession(str(branch.root), CONFIG, branch.find()[0]) as session:
        session.cut()
