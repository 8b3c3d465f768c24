"""The rule that names are synced before bytes rest on them."""

from pathlib import Path
from random import Random

import pytest

from store.files.mapped_file_queue import MappedFileQueue
from tests.store.power_loss import PAGE, PowerLossFileSystem


@pytest.mark.parametrize("seed", range(20))
def test_directory_entries(tmp_path: Path, seed: int) -> None:
    """S03: a file that holds synced bytes is there after the power came back."""
    fs = PowerLossFileSystem()
    run = tmp_path / "run"
    queue = MappedFileQueue(fs, str(run), 2 * PAGE)
    queue.load()
    for number in range(3):
        queue.roll().append(bytes([number + 1]) * 2 * PAGE)
        queue.sync()
    if seed % 2:
        queue.delete_first()
    else:
        queue.detach_first(1)
        queue.delete_detached()
    fs.build_image(str(run), str(tmp_path / "image"), Random(seed))
    queue.close()
    names = sorted(entry.name for entry in (tmp_path / "image").iterdir())
    assert names == ["00000000000000008192", "00000000000000016384"]
    assert (tmp_path / "image" / names[0]).read_bytes() == b"\2" * 2 * PAGE
