"""Fail each file-system call, and each step that has a failpoint, once in the life of a store.

A census of a life says how often each point is passed; each case fails one pass.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.store.crash_check import BrokenPromiseError, temporary_parent
from tests.store.fault_life import Container, Variant, census, run_case
from tests.two_processes import in_two_processes

PASS_COUNT_MAX = 8  # Of each point: the first ones, and some of the later ones.
WRITING = ("fs.write", "fs.allocate")
SYNCING = ("fs.sync", "fs.sync_directory")
GROWING = (*WRITING, *SYNCING, "fs.make_directory", "fs.open", "fs.rename", "fs.set_size")
"""Calls that a full disk may refuse. Elsewhere ENOSPC is any error, as EIO is."""
CASE_COUNT_MIN = {"EIO": 100, "ENOSPC": 40, "short": 8}


NEVER_FAIL = ("mapped_file_queue.seal", "meta_file.after_rename")
"""Points beside what cannot fail, or ends the process: for kills only."""


def choose_passes(count: int, random: Random) -> list[int]:
    if count <= PASS_COUNT_MAX:
        return list(range(1, count + 1))
    half = PASS_COUNT_MAX // 2
    return [*range(1, half + 1), *sorted(random.sample(range(half + 1, count + 1), half))]


@pytest.fixture
def parent() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="quorumlog-fault-", dir=temporary_parent()))
    yield directory
    shutil.rmtree(directory)


@pytest.mark.long
@pytest.mark.parametrize("action", ["EIO", "ENOSPC", "short"])
@pytest.mark.parametrize(
    ("container", "variant"),
    [("commit_log", "inline"), ("ledger", "inline"), ("commit_log", "pool"), ("ledger", "threads")],
)
def test_each_call_fails_once(
    parent: Path, container: Container, variant: Variant, action: str
) -> None:
    counts = census(parent / "census", container, variant)
    for name in NEVER_FAIL:
        counts.pop(name, None)
    random = Random(7)
    assert {"fs.sync", "fs.write", "fs.unlink", "fs.rename", *WRITING} <= counts.keys()
    named = {"EIO": counts.keys(), "ENOSPC": counts.keys() & set(GROWING), "short": WRITING}
    names = sorted(named[action])
    cases = [(name, nth) for name in names for nth in choose_passes(counts[name], random)]
    faults = [f"{name}={action}@{nth}" for name, nth in cases]
    lives = in_two_processes("tests.store.fault_life", container, variant, cases=faults)
    outcomes: Counter[str] = Counter()
    for (name, nth), (put_count, errors) in zip(cases, lives, strict=True):
        outcomes[", ".join(sorted(set(errors))) or "-"] += 1
        if name in SYNCING and variant == "inline":
            assert "SyncFailedError" in errors, f"{name}={action}@{nth}"
        if errors and variant == "inline" and nth == 1 and name != "identity.lock":
            assert put_count or name in SYNCING, f"{name}={action}: nothing goes on"
    print(f"{container} {variant} {action}: {len(cases)} cases, {dict(outcomes)}")
    assert len(cases) >= CASE_COUNT_MIN[action]


# --- The test is tested ---


def test_a_bare_error_is_found(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.files.file_system.FileSystem._translate", lambda *args: args[-1])
    with pytest.raises(BrokenPromiseError, match="bare error"):
        run_case(parent / "store", "commit_log", "inline", "fs.allocate=ENOSPC@3")


def test_a_leaking_descriptor_is_found(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.durability.checkpoint.Checkpoint.close", lambda self: None)
    with pytest.raises(BrokenPromiseError, match="left open"):
        run_case(parent / "store", "commit_log", "inline", "fs.allocate=ENOSPC@3")


def test_a_failed_sync_that_nobody_hears_of_is_found(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.engine.FirstCause.__call__", lambda self, cause: None)
    with pytest.raises(BrokenPromiseError, match="was not fatal"):
        run_case(parent / "store", "commit_log", "inline", "fs.sync_directory=EIO@13")
