"""The input of the main job: every line of the Python standard library, as messages.

Owns the list of files, the topic and queue of a line, and its encoding; must not know how it is
stored. The data is real, and every machine with Python has it. The order within one queue is fixed,
so a killed writer resumes a queue after the messages that are already in it.
"""

import os
import re
import sysconfig
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from quorumlog.command_errors import CliError
from store.record.message import encode_message

QUEUES_PER_TOPIC = 8
PATH_PROPERTY = "PATH"
LINE_PROPERTY = "LINE"  # Number of the line in its file, from 0.
MODULES_TOPIC = "modules"  # Topic of the files outside of packages.
SAMPLE_PERCENT = 30
_SKIPPED = frozenset({"site-packages", "__pycache__"})
QueueName = tuple[str, int]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file: `name` is its path below the root, with slashes."""

    path: str
    name: str
    topic: str
    queue_id: int

    def lines(self) -> list[bytes]:
        """Return the lines with their line ends, so that joining them gives the file back."""
        with open(self.path, "rb") as file:
            return file.read().splitlines(keepends=True)


def standard_library() -> str:
    """Return the directory of the running Python's standard library."""
    return sysconfig.get_path("stdlib")


def find_files(root: str) -> list[SourceFile]:
    """Return all Python files below `root`, in a fixed order.

    The topic is the top-level package, the queue comes from a hash of the file's name. Raises
    CliError if there are none.
    """
    paths = []
    for directory, names, files in os.walk(root):
        names[:] = sorted(set(names) - _SKIPPED)
        for file in sorted(files):
            if not file.endswith(".py"):
                continue
            path = os.path.join(directory, file)
            name = os.path.relpath(path, root).replace(os.sep, "/")
            package, _, rest = name.partition("/")
            topic = re.sub(r"[^A-Za-z0-9_-]", "_", package) if rest else MODULES_TOPIC
            queue_id = zlib.crc32(name.encode()) % QUEUES_PER_TOPIC
            paths.append(SourceFile(path, name, topic, queue_id))
    if not paths:
        raise CliError(
            what=f"no Python files below {root}",
            why="the standard library may be packed in a zip file",
            do="name a directory with sources: --source DIR",
        )
    return sorted(paths, key=lambda file: (file.topic, file.queue_id, file.name))


def sample_of(files: list[SourceFile]) -> list[SourceFile]:
    """Return about `SAMPLE_PERCENT` of the files, from all packages: the same ones each time."""
    # The lowest bits have already chosen the queue.
    return [f for f in files if (zlib.crc32(f.name.encode()) >> 8) % 100 < SAMPLE_PERCENT]


def encoded_lines(source: SourceFile, born_unix_ms: int) -> Iterator[bytes]:
    """Yield one encoded record a line; the first line of a file also has the name as key."""
    key = {"KEYS": source.name.replace(" ", "_")}
    for number, line in enumerate(source.lines()):
        properties = {PATH_PROPERTY: source.name, LINE_PROPERTY: str(number)}
        yield encode_message(
            source.topic,
            source.queue_id,
            line,
            properties if number else properties | key,
            born_unix_ms=born_unix_ms,
        )
