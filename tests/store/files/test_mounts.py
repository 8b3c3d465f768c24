"""Whether a directory is in memory, from the kernel's table of mounts."""

from pathlib import Path

import pytest

from store.files import mounts

TABLE = """\
/dev/vda / ext4 rw 0 0
tmpfs /mem tmpfs rw 0 0
/dev/vdb /mem/disk ext4 rw 0 0
tmpfs /with\\040space tmpfs rw 0 0
tmpfs /hidden tmpfs rw 0 0
/dev/vdc /hidden xfs rw 0 0
"""


@pytest.mark.parametrize(
    ("directory", "is_in_memory"),
    [
        ("/var/data", False),
        ("/mem", True),
        ("/mem/a/b", True),
        ("/memory", False),
        ("/mem/disk/a", False),
        ("/with space/a", True),
        ("/hidden/a", False),
    ],
)
def test_the_innermost_mount_says_what_a_directory_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directory: str, is_in_memory: bool
) -> None:
    table = tmp_path / "mounts"
    table.write_text(TABLE)
    monkeypatch.setattr(mounts, "_MOUNTS", str(table))
    assert mounts.is_in_memory(directory) is is_in_memory


def test_without_a_table_nothing_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "_MOUNTS", str(tmp_path / "none"))
    assert not mounts.is_in_memory("/dev/shm")
