"""One Spark, embedded, with two cores, for all modules beside this file: starting it takes seconds.

A hook stops it, since pytest has no scope for a directory. While it runs, it opens and ends
sockets, threads and processes as it likes, so what is left behind is looked at once it is gone.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

import pipeline.session
from deploy.cache import SPARK_CLASSES, place
from pipeline.session import start, stop
from qlog import main
from tests import java
from tests.leaks import Held, held, left_since
from tests.patience import PATIENCE_S

_HERE = Path(__file__).parent
_running: list[tuple[SparkSession, Held]] = []


class Run:
    """Calls `qlog pipeline` in this process, in the Spark that is there."""

    def __call__(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, ["pipeline", *arguments])

    def json(self, *arguments: str, code: int = 0) -> Any:
        """The result as JSON; the exit code must be `code`."""
        done = self(*arguments, "-o", "json")
        assert done.exit_code == code, (done.exit_code, done.stdout, done.stderr)
        return json.loads(done.stdout)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """Stop it when the next test is none of ours; within the capture of output, as at the start."""
    yield
    if (nextitem is None or _HERE not in nextitem.path.parents) and _running:
        session, before = _running.pop()
        stop(session)
        left = left_since(before, PATIENCE_S)
        if left:
            pytest.fail("left behind by these tests:\n  " + "\n  ".join(left), pytrace=False)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_behind(libraries_in_use: None) -> None:
    """Stand in for the look after each module."""


@pytest.fixture(autouse=True)
def _java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each Java of these tests, embedded or of a job, start fast."""
    archive = place("spark-classes") / SPARK_CLASSES  # Without it all is the same, but slower.
    given = (f"-XX:SharedArchiveFile={archive}",) if archive.exists() else ()
    monkeypatch.setenv(java.VARIABLE, " ".join((*java.SHORT_LIVED, *given)))


@pytest.fixture
def spark(_java: None) -> SparkSession:
    """Give the session; the first test that asks waits for it."""
    if not _running:
        before = held()
        _running.append((start("tests", "local[2]"), before))
    return _running[0][0]


@pytest.fixture
def run(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run commands in the Spark that is there."""

    @contextmanager
    def session(_name: str, _master: str | None = None) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(pipeline.session, "spark_session", session)
    return Run()
