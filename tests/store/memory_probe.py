"""A program that opens a large store and says how much memory of its own that takes.

Run as `python -m tests.store.memory_probe <directory> <container>`; prints one JSON object.
"""

import json
import re
import sys
from pathlib import Path

from store.config import GIB, MIB, StoreConfig
from store.files.file_system import FileSystem
from store.files.mapped_file import MappedFile
from store.store import Store

TOUCHED_SIZE_BYTES = 64 * MIB
_SIZE = re.compile(r"^(Rss|Private_\w+):\s+(\d+) kB$", re.MULTILINE)


def memory() -> tuple[int, int]:
    """Return (private, resident) bytes of this process."""
    sizes = [(name, int(kb) * 1024) for name, kb in _SIZE.findall(_smaps())]
    private = sum(size for name, size in sizes if name.startswith("Private"))
    return private, sum(size for name, size in sizes if name == "Rss")


def resident_peak() -> int:
    """The most that was ever resident; ru_maxrss would count what was before the exec, too."""
    match = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert match, "no VmHWM"
    return int(match[1]) * 1024


def _smaps() -> str:
    return Path("/proc/self/smaps_rollup").read_text(encoding="ascii")


def probe_config(container: str) -> StoreConfig:
    """Files of the default size."""
    return StoreConfig(
        container=container,  # type: ignore[arg-type]
        preallocate_file_count=0,
        warm_up=False,
        index_slot_count=1000,
        index_entry_count=10_000,
        ledger_index_units_per_file=1024,
        disk_warn_ratio=1.0,
        disk_force_ratio=1.0,
        disk_full_ratio=1.0,
        disk_reserve_bytes=0,
    )


def main() -> None:
    """Open, read, then map every file and touch a part of one."""
    root, container = sys.argv[1:]
    before = memory()
    with Store.open(root, probe_config(container), maintain=False) as store:
        opened, peak = memory(), resident_peak()
        log_size_bytes = store.log.max_position - store.log.min_position
        pulled = store.pull("orders", 0, store.queues()[0].max_offset - 1)
        assert pulled.record_count == 1, f"{pulled.status}"
        files: list[MappedFile] = list(store.log.files.files)
        unmapped = memory()
        fs = FileSystem()
        maps = []
        for file in files:
            fd = fs.open(file.path)
            maps.append(fs.map(fd, file.path, GIB))
            fs.close(fd)
        mapped = memory()
        sum(maps[0][:TOUCHED_SIZE_BYTES:4096])
        touched = memory()
    counts = {
        "log_size_bytes": log_size_bytes,
        "file_count": len(files),
        "scanned_size_bytes": store.recovery.scanned_size_bytes,
        "private_before_bytes": before[0],
        "private_opened_bytes": opened[0],
        "resident_peak_bytes": peak,
        "resident_unmapped_bytes": unmapped[1],
        "resident_mapped_bytes": mapped[1],
        "resident_touched_bytes": touched[1],
    }
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
