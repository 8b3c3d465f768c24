"""Runs pytest with one of our plugins in a process of its own, and brings its verdicts back.

Owns how pytest is called. The calling process imports nothing of the product, so that each session
begins with modules as they are in the files.
"""

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import pytest

from tests.mutate import recording
from tests.mutate.campaign import Campaign, Verdict
from tests.mutate.faults import Fault
from tests.mutate.hunting import Hunter
from tests.mutate.recording import Recorder, TestMap
from tests.mutate.targets import Project

_SHARED_MEMORY: Final = Path("/dev/shm")
"""Where tests write when it is there: they sync much."""


class SessionFailedError(Exception):
    """pytest could not begin: the tests do not load."""


def _pytest(project: Project, arguments: Sequence[str], plugin: object, *, with_long: bool) -> int:
    os.chdir(project.root)
    chosen = [] if with_long else ["-m", "not long"]
    options = ["-q", "--capture=no", "-p", "no:cacheprovider", f"--rootdir={project.root}", *chosen]
    return int(pytest.main([*options, *arguments], plugins=[plugin]))


def _child(work: Callable[[int], int], fd: int, output: Path) -> None:
    code = 1
    try:
        with output.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        code = work(fd)
    except BaseException:  # noqa: BLE001 - it is told, and then the process ends.
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _in_process(work: Callable[[int], int]) -> Iterator[str]:
    """Do something in a forked process; yield the lines that it writes.

    Raises SessionFailedError."""
    reader, writer = os.pipe()
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "output"
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _child(work, writer, output)
        os.close(writer)
        with open(reader) as lines:
            yield from lines
        _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status) not in (0, 5):
            raise SessionFailedError(output.read_text()[-4000:])


def _scratch() -> "tempfile.TemporaryDirectory[str]":
    root = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    return tempfile.TemporaryDirectory(
        prefix="quorumlog-mutate-", dir=root, ignore_cleanup_errors=True
    )


def map_of_tests(
    project: Project,
    jobs: int,
    say: Callable[[str], None],
    files: Collection[str] = (),
    *,
    with_long: bool = False,
) -> TestMap:
    """Return the map of the code as it is now; run the tests that it lacks.

    Only of these files of tests, unless there are none."""
    path = project.root / "var" / "mutate" / ("map-long.z" if with_long else "map.z")
    document, keys = recording.read(path, project), recording.file_keys(project)
    recorded = document.get("files", {})
    current = {file: key for file, key in keys.items() if recorded.get(file) == key}
    missing = [file for file in keys if file not in current and file in (files or keys)]
    if missing:
        say(f"notes which tests of {len(missing)} files run which line")
        with _scratch() as directory:
            notes = Path(directory) / "found"

            def record(_: int) -> int:
                recorder = Recorder(project, notes, jobs, directory)
                recorder.install()
                return _pytest(project, missing, recorder, with_long=with_long)

            for _ in _in_process(record):
                pass
            current |= {file: keys[file] for file in missing}
            new, code = json.loads(notes.read_text()), recording.code_key(project)
            document = recording.merged(document, new, current, code)
        recording.write(path, document)
    return TestMap(document)


def verdicts(
    project: Project,
    judge: Callable[[Campaign], None],
    jobs: int,
    files: Sequence[str] = (),
    *,
    with_long: bool = False,
) -> Iterator[Verdict]:
    """Judge faults in a session of pytest with these test files; yield what is found."""

    def work(fd: int) -> int:
        def tell(verdict: Verdict) -> None:
            os.write(fd, json.dumps(asdict(verdict)).encode() + b"\n")

        def campaign(hunter: Hunter) -> None:
            judge(Campaign(project, hunter, tell))

        hunter = Hunter(campaign, project, jobs, directory)
        return _pytest(project, files or project.test_folders, hunter, with_long=with_long)

    with _scratch() as directory:
        for line in _in_process(work):
            document = json.loads(line)
            yield Verdict(Fault(**document.pop("fault")), **document)
