"""Runs pytest with one of our plugins in a forked process, and hands on the lines that it writes.

Owns how pytest is called. The calling process imports nothing of the product, so that each session
begins with modules as they are in the files.
"""

import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.mutate.targets import Project

_SHARED_MEMORY: Final = Path("/dev/shm")
"""Where tests write when it is there: they sync much."""
_NO_TESTS: Final = 5
Plugin = Callable[[int, Path], object]
"""Makes a plugin from the descriptor for its lines and the directory in which tests may write."""


class SessionFailedError(Exception):
    """pytest could not begin: the tests do not load."""


def lines_of(
    project: Project, plugin: Plugin, files: Iterable[str], *, with_long: bool
) -> Iterator[str]:
    """Collect these files of tests and let the plugin work; yield its lines.

    Raises SessionFailedError."""
    reader, writer = os.pipe()
    root = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(
        prefix="quorumlog-mutate-", dir=root, ignore_cleanup_errors=True
    ) as name:
        directory = Path(name)
        output = directory / "output"
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            code = 1
            try:
                with output.open("w") as file:
                    os.dup2(file.fileno(), 1)
                    os.dup2(file.fileno(), 2)
                os.chdir(project.root)
                marked = [] if with_long else ["-m", "not long"]
                options = [
                    "-q",
                    "--capture=no",
                    "-p",
                    "no:cacheprovider",
                    f"--rootdir={os.getcwd()}",
                ]
                code = pytest.main([*options, *marked, *files], [plugin(writer, directory)])
            except BaseException:  # noqa: BLE001 - the caller shows it.
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        os.close(writer)
        with open(reader) as lines:
            yield from lines
        _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status) not in (0, _NO_TESTS):
            raise SessionFailedError(output.read_text()[-4000:])
