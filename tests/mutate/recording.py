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
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.mutate.planting import MarkingFinder, Marks
from tests.mutate.sessions import lines_of
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
    code, keys = code_key(project), file_keys(project)
    document = json.loads(zlib.decompress(path.read_bytes())) if path.exists() else {}
    if document.get("code") != code:
        document = {}
    current = {
        file: key for file, key in document.get("files", {}).items() if keys.get(file) == key
    }
    missing = [file for file in files or keys if file not in current]
    if missing:
        say(f"notes which tests of {len(missing)} files run which line")

        def recorder(channel: int, directory: Path) -> Recorder:
            return Recorder(project, jobs, channel, directory)

        (line,) = lines_of(project, recorder, missing, with_long=with_long)
        current |= {file: keys[file] for file in missing}
        document = merged(document, json.loads(line), current, code)
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.with_suffix(".new")
        whole.write_bytes(zlib.compress(json.dumps(document).encode(), 1))
        whole.replace(path)
    return TestMap(document)


def imports(text: str, path: str) -> bool:
    """Say whether a text imports the module of a file."""
    module = path.removesuffix(".py").replace("/", ".")
    package, _, name = module.rpartition(".")
    said = (f"from {module} import", f"from {package} import {name}", f"import {module}\n")
    return any(line in text for line in said)


def files_importing(project: Project, paths: Collection[str]) -> list[str]:
    """Return the files of tests that import one of these modules, or what tests share and
    imports it."""

    def is_importing(file: str, modules: Collection[str]) -> bool:
        text = project.source_of(file)
        return any(imports(text, path) for path in modules)

    shared = [file for file in shared_files(project) if is_importing(file, paths)]
    return [file for file in file_keys(project) if is_importing(file, [*paths, *shared])]


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

    def __init__(self, project: Project, jobs: int, channel: int, directory: Path) -> None:
        """Tests may write in `directory`; modules are imported with marks from here on."""
        self._marks = Marks()
        sys.meta_path.insert(0, MarkingFinder(self._marks, project.paths()))
        self._jobs, self._channel, self._directory = jobs, channel, directory
        self._failed = False

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
        parts, children = [], []
        for job in range(self._jobs):
            items = [item for name in names[job :: self._jobs] for item in files[name]]
            part = self._directory / f"part-{job}"
            child = os.fork()
            if child == 0:
                self._run_part(session, items, part)
            parts.append(part)
            children.append(child)
        for child in children:
            _, status = os.waitpid(child, 0)
            if status:
                raise RuntimeError(f"a process of the recording ended with {status}")
        rows = [row for part in parts for row in json.loads(part.read_text())]
        with open(self._channel, "w") as channel:
            channel.write(json.dumps({"places": self._marks.places, "tests": rows}) + "\n")
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
        except BaseException:  # noqa: BLE001 - the caller of the session shows it.
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
