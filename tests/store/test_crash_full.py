"""D13: on a full disk appends are refused by name, reads go on, and all works once there is room.

A small tmpfs is filled to the last byte, and RLIMIT_FSIZE stops files from growing. The store runs
in a process of its own, which must not die of SIGBUS.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import missing
from tests.patience import PATIENCE_S
from tests.store.crash_check import FILE, temporary_parent
from tests.two_processes import run_module

DISK_SIZE_BYTES = 1 << 20


def fill(root: Path, container: str, squeeze: str) -> dict[str, int]:
    """Run the program to its end; a signal or a broken promise fails."""
    done = run_module("tests.store.crash_full", root, container, squeeze)
    assert done.returncode == 0, f"ended with {done.returncode}\n{done.stderr[-3000:]}"
    counts: dict[str, int] = json.loads(done.stdout)
    print(f"{container} {squeeze}: {counts}")
    return counts


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 1 MiB. Only a machine that forbids mounts may do without this test."""
    mount = shutil.which("mount")
    assert mount, "there is no mount command"
    path = tmp_path / "disk"
    path.mkdir()
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", f"size={DISK_SIZE_BYTES}", "tmpfs", str(path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if done.returncode:
        reason = done.stderr.strip()
        assert os.geteuid() or "permi" in reason or "denied" in reason, reason
        missing.injector(f"mounting is not permitted here: {reason}")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True, timeout=PATIENCE_S)
    assert not os.path.ismount(path), "the mount is still there"


@pytest.mark.parametrize("container", ["commit_log", "ledger"])
@pytest.mark.parametrize("squeeze", ["brim", "marks", "growth"])
def test_a_full_disk_refuses_appends_and_nothing_else(
    small_disk: Path, container: str, squeeze: str
) -> None:
    counts = fill(small_disk / "store", container, squeeze)
    assert counts["refused"] > 100
    if squeeze != "marks":
        assert counts["records"] > 100
        assert counts["free_bytes_min"] < FILE, "the disk was not full"
    else:
        assert counts["free_bytes_min"] >= FILE, "it was refused only at the brim"


@pytest.mark.parametrize("container", ["commit_log", "ledger"])
def test_a_limit_on_file_sizes_is_a_full_disk(container: str) -> None:
    parent = Path(tempfile.mkdtemp(prefix="quorumlog-full-", dir=temporary_parent()))
    try:
        counts = fill(parent / "store", container, "limit")
    finally:
        shutil.rmtree(parent)
    assert counts["refused"] > 100
    assert counts["records"] > 100
