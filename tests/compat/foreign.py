"""RocketMQ's and DLedger's own stores as programs that read, and extend, a directory of ours.

Owns how they are called, and their end. Where deploy/setup has not made them the tests are reported
as not run; where CI runs them they are demanded.
"""

import subprocess
from pathlib import Path
from typing import Final, NamedTuple

from store.config import StoreConfig
from tests import missing
from tests.java import SHORT_LIVED
from tests.patience import PATIENCE_S

_OPENED: Final = ("java.nio", "sun.nio.ch", "jdk.internal.ref")
"""Packages of Java that both stores reach into; RocketMQ's own scripts open the same."""
_WORDS: Final = ("read ", "put ", "entry ", "inner ", "wrapped ")


class Line(NamedTuple):
    """A message that a program read or put."""

    what: str
    queue_id: int
    offset: int
    body: str


def class_path() -> str:
    """Return the class path of the programs. Skips where they are not installed, but not in CI."""
    directory = missing.installed("rocketmq")
    return f"{directory}/store-programs:{directory}/lib/*"


def run(class_path: str, program: str, home: Path, *arguments: object) -> list[str]:
    """Run a program and return what it read or put; it has to get to its end."""
    ran = subprocess.run(
        [
            "java",
            *SHORT_LIVED,
            *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED),
            f"-Duser.home={home}",
            "-cp",
            class_path,
            program,
            *map(str, arguments),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    said = ran.stdout.splitlines()  # With lines of the log of its libraries between.
    assert ran.returncode == 0, f"{program}: {said[-3:]}\n{ran.stderr}"
    assert "done" in said, f"{program}: {said[-3:]}\n{ran.stderr}"
    return [line for line in said if line.startswith(_WORDS)]


def read_and_extend(
    class_path: str, directory: Path, config: StoreConfig, *arguments: object
) -> list[Line]:
    """Have RocketMQ's store read a topic, then append to it. Arguments: the topic, its number of
    queues, and that of messages to append."""
    return _read_and_extend("StoreCheck", class_path, directory, config, *arguments)


def read_and_extend_inner_batches(
    class_path: str, directory: Path, config: StoreConfig, *arguments: object
) -> list[Line]:
    """Have RocketMQ's store read an ordinary topic and one of inner batches, then append to each.
    Arguments: both topics, and the number of records to append."""
    return _read_and_extend("InnerBatchCheck", class_path, directory, config, *arguments)


def _read_and_extend(
    program: str, class_path: str, directory: Path, config: StoreConfig, *arguments: object
) -> list[Line]:
    sizes = (
        config.file_size_bytes,
        config.consume_queue_units_per_file * 20,
        config.index_slot_count,
        config.index_entry_count,
    )
    lines = run(class_path, program, directory.parent, directory, *sizes, *arguments)
    return [line_of(line) for line in lines]


def line_of(text: str) -> Line:
    """Read a line of a program."""
    what, queue_id, offset, body = text.split(" ", 3)
    return Line(what, int(queue_id), int(offset), body)
