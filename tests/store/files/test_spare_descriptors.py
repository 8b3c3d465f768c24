"""A directory is synced also when the process has no descriptor left."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from store.files.spare_descriptors import SPARE_COUNT, SpareDescriptors
from tests.patience import PATIENCE_S

USED_UP = """
import errno, os, resource, sys
from store.errors import SyncFailedError
from store.files.file_system import FileSystem
fs, directory = FileSystem(), sys.argv[1]
fs.sync_directory(directory)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
taken = []

def take_all():
    while True:
        try:
            taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            assert error.errno == errno.EMFILE
            return

take_all()
for _ in range(10):
    fs.sync_directory(directory)
    try:
        os.open(os.devnull, os.O_RDONLY)
    except OSError:
        continue
    raise AssertionError("what was lent did not come back")
print("synced")
"""


def test_a_directory_is_synced_without_a_descriptor_left(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", USED_UP, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        cwd=Path(__file__).resolve().parents[3],
    )
    assert done.stdout == "synced\n", done.stderr


def test_other_errors_and_an_empty_reserve_are_told(tmp_path: Path) -> None:
    spare = SpareDescriptors()
    with pytest.raises(FileNotFoundError):
        spare.open(str(tmp_path / "none"), os.O_RDONLY)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OSError, match="Too many open files") as told:
            spare.open(os.devnull, os.O_RDONLY)
        spare.fill()
        assert spare._kept == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert told.value.errno == errno.EMFILE
    spare.fill()
    spare.fill()
    assert len(spare._kept) == SPARE_COUNT
    while spare._give_up_one():
        pass
