"""Resources of a process: sockets, threads, descriptors, memory; and their growth.

Owns the base line of I16. Named files are no leak as such, since a log grows: each may be
open a few times, none after it was deleted. Memory is that of the process alone: the mapped log
would hide everything else.
"""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

SOCKET_SLACK: Final = 12
"""Additional sockets: of a client that has just begun to reconnect, and those that four other nodes
keep for what they forward, one for each protocol of RocketMQ."""
THREAD_SLACK: Final = min(32, (os.cpu_count() or 1) + 4) + 4
"""Size of a loop's default executor, which makes its threads as they are needed."""
NAMELESS_SLACK: Final = 6
DELETED_SLACK: Final = 4
"""A file that is deleted under a reader stays open until the reader is done."""
SAME_FILE_SLACK: Final = 3
_DELETED: Final = " (deleted)"
_SLACKS: Final = (
    ("socket_count", "sockets", SOCKET_SLACK),
    ("thread_count", "threads", THREAD_SLACK),
    ("nameless_count", "descriptors without a name", NAMELESS_SLACK),
    ("deleted_count", "descriptors of deleted files", DELETED_SLACK),
    ("same_file_count", "descriptors of one file", SAME_FILE_SLACK),
)


@dataclass(frozen=True, slots=True)
class Usage:
    """Current resources of one process."""

    pid: int
    socket_count: int
    thread_count: int
    nameless_count: int
    """Pipes, events, epolls."""
    deleted_count: int
    """Descriptors of deleted files."""
    same_file_count: int
    """Descriptors of the single file that is open most often."""
    memory_size_bytes: int

    @classmethod
    def of(cls, pid: int) -> "Usage":
        """Look at a process. Raises psutil.NoSuchProcess."""
        process = psutil.Process(pid)
        targets = _targets(process)
        files = Counter(name for name in targets if name.startswith("/"))
        deleted = sum(count for name, count in files.items() if name.endswith(_DELETED))
        sockets = sum(name.startswith("socket:") for name in targets)
        lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
        own_kib = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
        return cls(
            pid=pid,
            socket_count=sockets,
            thread_count=process.num_threads(),
            nameless_count=len(targets) - sockets - files.total(),
            deleted_count=deleted,
            same_file_count=max(files.values(), default=0),
            memory_size_bytes=own_kib << 10,
        )

    def excess(self, before: "Usage") -> list[str]:
        """Return the resources that exceed those of before by more than chance."""
        return [
            f"{now} {what} instead of {lo}"
            for name, what, slack in _SLACKS
            if (now := getattr(self, name)) > (lo := getattr(before, name)) + slack
        ]


def _targets(process: psutil.Process) -> list[str]:
    """Return the targets of the descriptors of a process."""
    targets = []
    for one in Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            targets.append(os.readlink(one))
        except FileNotFoundError:
            pass  # Closed meanwhile.
    return targets
