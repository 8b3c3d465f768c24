"""The map: which test runs which statements of the files that faults are planted in.

Owns its file, what of it is too old, and how it is made: tests are run once with marks in those
files, and later only those whose file has changed since, as long as the code has not. Must not know
faults. What several tests of a module share, its fixtures, is attributed to the first one.
"""

import hashlib
import json
import os
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.mutate.planting import MarkingFinder, Marks
from tests.mutate.targets import Project


@dataclass(frozen=True, slots=True)
class Run:
    """What one test did when nothing was planted."""

    node_id: str
    seconds: float
    cpu_seconds: float

    @property
    def file(self) -> str:
        return self.node_id.partition("::")[0]


class TestMap:
    """Which tests run which line."""

    __test__ = False  # pytest: it is no test.

    def __init__(self, document: dict[str, Any]) -> None:
        self.runs = {row[0]: Run(*row[:3]) for row in document["tests"]}
        self._by_place: dict[tuple[str, int], list[str]] = {}
        places = [(path, line) for path, line in document["places"]]
        for row in document["tests"]:
            for number in row[3]:
                self._by_place.setdefault(places[number], []).append(row[0])
        self._lines: dict[str, list[int]] = {}
        for path, line in sorted(set(places)):
            self._lines.setdefault(path, []).append(line)

    def tests_of(self, path: str, line: int) -> list[Run]:
        """Return the tests that run the statement that begins at this line or before it."""
        begun = [at for at in self._lines.get(path, ()) if at <= line]
        if not begun:
            return []
        return [self.runs[name] for name in self._by_place.get((path, begun[-1]), ())]


def code_key(project: Project) -> str:
    """Return a text that is another one whenever the code is, or what several tests share."""
    root = project.root
    paths = [path for folder in project.code_folders for path in (root / folder).rglob("*.py")]
    paths += [root / name for name in shared_files(project)]
    digest = hashlib.sha256(sys.version.encode())
    for path in sorted(paths):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()


def shared_files(project: Project) -> list[str]:
    """Return the files that tests share."""
    paths = (project.root / "tests").rglob("*.py")
    names = (str(path.relative_to(project.root)) for path in paths if path.name[:5] != "test_")
    return sorted(name for name in names if "/mutate/" not in name)


def file_keys(project: Project) -> dict[str, str]:
    """Return a text for each file of tests that is another one whenever the file is."""
    keys = {}
    for folder in project.test_folders:
        for path in sorted((project.root / folder).rglob("test_*.py")):
            key = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
            keys[str(path.relative_to(project.root))] = key
    return keys


def read(path: Path, project: Project) -> dict[str, Any]:
    """Read the document of a map; empty when there is none of this code."""
    if not path.exists():
        return {}
    document: dict[str, Any] = json.loads(zlib.decompress(path.read_bytes()))
    return document if document["code"] == code_key(project) else {}


def write(path: Path, document: dict[str, Any]) -> None:
    """Replace the file of a map."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_suffix(".new")
    whole.write_bytes(zlib.compress(json.dumps(document).encode(), 1))
    whole.replace(path)


def merged(
    old: dict[str, Any], new: dict[str, Any], files: dict[str, str], code: str
) -> dict[str, Any]:
    """Return the map of these files: new of those that were run again, the rest as it was."""
    places: dict[tuple[str, int], int] = {}
    rows = []
    again = {row[0].partition("::")[0] for row in new["tests"]}
    for document in (old, new):
        numbers = [
            places.setdefault((path, line), len(places))
            for path, line in document.get("places", ())
        ]
        for node_id, seconds, cpu_seconds, seen in document.get("tests", ()):
            file = node_id.partition("::")[0]
            if file in files and not (document is old and file in again):
                rows.append([node_id, seconds, cpu_seconds, [numbers[at] for at in seen]])
    return {"code": code, "files": files, "places": list(places), "tests": rows}


def write_below(session: pytest.Session, directory: Path) -> None:
    """Let this process's tests make their directories in one of its own."""
    session.config._tmp_path_factory._basetemp = directory  # type: ignore[attr-defined]


def steady_settings() -> None:
    """Make hypothesis draw the same examples every time, keep none and shrink none.

    Called in a session: pytest wants to import hypothesis itself."""
    from hypothesis import Phase, settings

    phases = (Phase.explicit, Phase.generate)
    settings.register_profile(
        "mutate", deadline=None, database=None, derandomize=True, phases=phases, print_blob=False
    )
    settings.load_profile("mutate")


class Recorder:
    """A pytest plugin that runs the tests in several processes and writes the map."""

    def __init__(self, project: Project, target: Path, jobs: int, directory: str) -> None:
        """Tests may write in `directory`; whoever made it removes it."""
        self._marks = Marks()
        self._finder = MarkingFinder(self._marks, project.paths())
        self._target, self._jobs, self._directory = target, jobs, directory
        self._failed = False

    def install(self) -> None:
        sys.meta_path.insert(0, self._finder)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Let the tests draw what they draw when faults are planted."""
        steady_settings()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Share the files out among processes, and put together what they found."""
        files: dict[str, list[pytest.Item]] = {}
        for item in session.items:
            files.setdefault(item.nodeid.partition("::")[0], []).append(item)
        names = sorted(files)
        self._target.parent.mkdir(parents=True, exist_ok=True)
        parts, children = [], []
        for job in range(self._jobs):
            items = [item for name in names[job :: self._jobs] for item in files[name]]
            part = self._target.with_suffix(f".{job}")
            child = os.fork()
            if child == 0:
                self._run_part(session, items, part)
            parts.append(part)
            children.append(child)
        for child in children:
            _, status = os.waitpid(child, 0)
            if status:
                raise RuntimeError(f"a process of the recording ended with {status}")
        rows: list[Any] = []
        for part in parts:
            rows += json.loads(part.read_text())
            part.unlink()
        self._target.write_text(json.dumps({"places": self._marks.places, "tests": rows}))
        return True

    def _run_part(self, session: pytest.Session, items: list[pytest.Item], part: Path) -> None:
        code = 1
        try:
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), 1)
            write_below(session, Path(tempfile.mkdtemp(dir=self._directory)))
            rows = list(self._rows(session, items))
            part.write_text(json.dumps(rows))
            code = 0
        except BaseException:  # noqa: BLE001 - it is told, and then the process ends.
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _rows(self, session: pytest.Session, items: list[pytest.Item]) -> Iterator[list[Any]]:
        for at, item in enumerate(items):
            following = items[at + 1] if at + 1 < len(items) else None
            self._failed = False
            self._marks.clear()
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            seconds, cpu = time.perf_counter() - began_s, time.process_time() - began_cpu_s
            if not self._failed:
                yield [item.nodeid, round(seconds, 4), round(cpu, 4), self._marks.numbers()]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed = self._failed or report.failed
