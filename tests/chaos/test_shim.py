"""The shim, under a real Python process: errors, delays, hangs, a moved clock, a shadow."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from chaos import power
from chaos.errors import NotPossibleHereError
from chaos.shim import Shim, SystemCall, compile_shim

from tests import missing
from tests.patience import PATIENCE_S

PROGRAM = """
import os, random, sys, time
root, contents = sys.argv[1], random.Random(0)
for line in sys.stdin:
    word, name = line.split()
    path = os.path.join(root, name)
    try:
        if word == "write":
            fd = os.open(path, os.O_RDWR | os.O_CREAT)
            os.pwrite(fd, contents.randbytes(20000), 0)
        elif word == "sync":
            os.fdatasync(fd)
        elif word == "names":
            directory = os.open(root, os.O_RDONLY)
            os.fsync(directory)
        elif word == "allocate":
            os.posix_fallocate(fd, 0, 65536)
        elif word == "rename":
            os.replace(path, path + ".new")
        elif word == "clock":
            print(int(time.time()), flush=True)
            continue
        print("ok", flush=True)
    except OSError as error:
        print(error.errno, flush=True)
"""


class Child:
    """A process under the shim that does as it is told."""

    def __init__(self, shim: Shim, root: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **shim.environment()},
        )

    def do(self, word: str, name: str = "a") -> str:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{word} {name}\n")
        stdin.flush()
        return stdout.readline().strip()

    def close(self) -> None:
        self._process.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return compile_shim(tmp_path_factory.mktemp("shim"))
    except NotPossibleHereError as reason:
        missing.injector(reason)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    return path


@pytest.fixture
def shim(library: Path, root: Path, tmp_path: Path) -> Iterator[Shim]:
    made = Shim(library, root, tmp_path / "control", tmp_path / "shadow")
    yield made
    made.close()


@pytest.fixture
def child(shim: Shim, root: Path) -> Iterator[Child]:
    made = Child(shim, root)
    yield made
    made.close()


def test_calls_fail_as_often_as_told(shim: Shim, child: Child) -> None:
    assert child.do("write") == "ok"
    shim.fail(SystemCall.SYNC, errno.EIO, times=1)
    assert child.do("sync") == str(errno.EIO)
    assert child.do("sync") == "ok"
    assert (shim.hits(SystemCall.SYNC), shim.passes(SystemCall.SYNC)) == (1, 2)
    shim.fail(SystemCall.ALLOCATE, errno.ENOSPC)
    shim.fail(SystemCall.RENAME, errno.EROFS)
    for _ in range(2):
        assert child.do("allocate") == str(errno.ENOSPC)
        assert child.do("rename") == str(errno.EROFS)
    shim.clear()
    assert child.do("allocate") == child.do("rename") == "ok"


def test_a_hang_lasts_until_it_is_taken_away(shim: Shim, child: Child) -> None:
    child.do("write")
    shim.delay(SystemCall.SYNC, 20)
    assert child.do("sync") == "ok"
    shim.hang(SystemCall.SYNC)
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(child.do("sync")))
    asking.start()
    while shim.hits(SystemCall.SYNC) < 2:
        asking.join(0.01)
    assert not answers
    shim.clear()
    asking.join(PATIENCE_S)
    assert answers == ["ok"]


def test_the_wall_clock_moves(shim: Shim, child: Child) -> None:
    before = int(child.do("clock"))
    shim.set_clock(-86_400)
    assert before - 86_400 <= int(child.do("clock")) < before - 80_000
    assert shim.clock_reads


def test_a_power_loss_keeps_what_was_synced_and_may_take_the_rest(
    shim: Shim, child: Child, root: Path
) -> None:
    child.do("write", "kept")
    child.do("sync", "kept")
    child.do("names")
    kept = (root / "kept").read_bytes()
    child.do("write", "kept")
    later = (root / "kept").read_bytes()
    child.do("write", "lost")
    assert shim.shadow is not None

    class NothingStays(Random):
        """Every chance goes against what was not synced."""

        def random(self) -> float:
            return 0.99

    lost = power.lose(root, shim.shadow, NothingStays(3))
    assert later != kept
    assert (root / "kept").read_bytes() == kept
    assert not (root / "lost").exists()
    assert lost.page_count == 5
    assert lost.name_count == 1
    # What is left is durable now: the next loss finds nothing to take.
    again = power.lose(root, shim.shadow, NothingStays(4))
    assert (again.page_count, again.name_count) == (0, 0)
