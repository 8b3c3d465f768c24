"""SIGKILL a writing process, at least 60 times, and compare what is left with what it was told.

Kills come after a random number of acknowledgements, or inside of the store at a random pass of a
failpoint. The schedule follows from one seed, printed by a failure (`tests/seeds.py`). Which byte a
killed process got to is up to the machine.
"""

import itertools
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Literal

import pytest

from store.files import failpoints
from tests import seeds
from tests.patience import PATIENCE_S
from tests.store.crash_check import (
    BrokenPromiseError,
    History,
    check_directory,
    temporary_parent,
)
from tests.store.crash_writer import Mode, Options, writer_config

Container = Literal["commit_log", "ledger"]

REPOSITORY = Path(__file__).parents[2]
KILL_COUNT = 20  # For each kind of store; there are three.
CHAIN_COUNT = 2  # Directories at work at the same time, one a core.
BATCH_COUNT = 70
DIRECTORY_KILL_COUNT = 6  # Then the next writer begins with an empty directory.


@dataclass
class Run:
    """What one writer said, and how it ended."""

    lines: list[list[str]]
    status: int

    @property
    def is_open(self) -> bool:
        return any(line[0] == "O" for line in self.lines)

    @property
    def phase(self) -> str:
        """Where the end hit: in an opening, in the work, or in a close."""
        tried = sum(line[0] == "T" for line in self.lines)
        if not self.is_open:
            return "opening"
        return "work" if tried < BATCH_COUNT else "last batches and close"

    @property
    def census(self) -> dict[str, int]:
        return {line[1]: int(line[2]) for line in self.lines if line[0] == "N"}


def run_writer(
    root: str, options: Options, *, failpoint: str = "", ack_count: int | None = None
) -> Run:
    """Run a writer, kill it after so many acknowledgements, and return when it is gone."""
    environment = {**os.environ, failpoints.ENVIRONMENT_VARIABLE: failpoint}
    command = [sys.executable, "-m", "tests.store.crash_writer", root, options.to_json()]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=errors
        ) as process,
    ):
        try:
            data = _read_and_kill(process, ack_count)
            status = process.wait(PATIENCE_S)
        finally:
            process.kill()
        lines = [line.split() for line in data.decode().split("\n")[:-1]]
        errors.seek(0)
        if status not in (0, -signal.SIGKILL) or any(line[0] == "E" for line in lines):
            text = errors.read().decode()
            said = [line for line in lines if line[0] == "E"]
            raise BrokenPromiseError(f"the writer ended with {status}: {said}\n{text}")
    return Run(lines, status)


def _read_and_kill(process: subprocess.Popen[bytes], ack_count: int | None) -> bytes:
    assert process.stdout is not None
    data = b""
    said = select.poll()
    said.register(process.stdout, select.POLLIN)
    while True:
        assert said.poll(1000 * PATIENCE_S), f"the writer said nothing more after {data[-200:]!r}"
        part = os.read(process.stdout.fileno(), 65536)
        if not part:
            return data
        data += part
        if ack_count is not None and data.count(b"\nA ") >= ack_count:
            process.kill()
            ack_count = None


def learn(history: History, run: Run, mode: Mode) -> None:
    """Add what a writer said to what is known of its directory."""
    waiting: dict[int, tuple[int, list[int], list[int]]] = {}
    for line in run.lines:
        if line[0] == "T":
            history.attempted.add(int(line[1]))
        elif line[0] in "PA":
            number, end = int(line[1]), int(line[2])
            positions, offsets = ([int(n) for n in part.split(",")] for part in line[3:])
            history.place(number, positions, offsets)
            if line[0] == "A":
                waiting[number] = (end, positions, offsets)
        # What was acknowledged out of a write buffer may die with the process.
        committed = int(line[1]) if line[0] == "C" else 0
        for number, (end, positions, offsets) in list(waiting.items()):
            if mode != "pool" or end <= committed or line[0] == "Z":
                history.acknowledge(number, positions, offsets)
                del waiting[number]


@dataclass
class Tally:
    """What the kills of one kind of store hit; shared by its chains."""

    lives: dict[str, dict[str, int]]
    """By kind of life: how often each failpoint was passed."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    kills: Counter[str] = field(default_factory=Counter)
    phases: Counter[str] = field(default_factory=Counter)
    points: Counter[str] = field(default_factory=Counter)
    tries: Counter[str] = field(default_factory=Counter)
    cut_count: int = 0
    unanswered_count: int = 0
    record_count: int = 0

    def names(self) -> set[str]:
        return set(itertools.chain.from_iterable(self.lives.values()))

    def choose(self, random: Random) -> tuple[str, str, int]:
        """Return the failpoint that was hit least, a life that passes it, and a pass."""
        with self.lock:
            least = min((self.points[n], self.tries[n]) for n in self.names())
            name = random.choice(
                sorted(n for n in self.names() if (self.points[n], self.tries[n]) == least)
            )
            self.tries[name] += 1
            life = random.choice(sorted(k for k, found in self.lives.items() if name in found))
            passes = self.lives[life][name]
            if self.tries[name] > 2 and not self.points[name]:
                passes = 1  # It is hard to hit: take the first pass.
            nth = random.randint(1, min(passes, random.choice([2, 10, 1000])))
            return name, life, nth

    def note(self, kind: str, point: str, run: Run) -> None:
        with self.lock:
            self.kills[kind] += 1
            self.phases[run.phase] += 1
            if point:
                self.points[point] += 1
            said = Counter(line[0] for line in run.lines)
            self.unanswered_count += said["T"] > said["A"]


class Chain:
    """A sequence of writers, most of them killed, each on what the one before left."""

    def __init__(
        self, parent: Path, container: Container, mode: Mode, seed: str, tally: Tally | None = None
    ) -> None:
        self._random = Random(seed)
        self._parent, self._container, self._mode = parent, container, mode
        self._tally = tally
        self._kill_count = self.directory_count = 0
        self.root = ""
        self.begin()

    def begin(self) -> None:
        """Go on with a directory that does not exist yet."""
        if self.root:
            shutil.rmtree(self.root, ignore_errors=True)
        self.directory_count += 1
        self.root = str(self._parent / f"store{self.directory_count}")
        self.history = History(self._container == "ledger")
        if self._mode == "pool":  # Retention counts the files in write buffers, which may be lost.
            self.history.kept_size_bytes_min = 0
        self._kill_count = 0

    def options(self, *, census: bool = False) -> Options:
        return Options(
            self._container,
            self._mode,
            seed=self._random.getrandbits(32),
            first_number=self.history.next_number(),
            batch_count=BATCH_COUNT,
            census=census,
        )

    def life(self, options: Options, **how: object) -> Run:
        """Run one writer and check what it left, in a copy."""
        run = run_writer(self.root, options, **how)  # type: ignore[arg-type]
        learn(self.history, run, self._mode)
        if os.path.exists(self.root):
            copy = f"{self.root}-copy"
            shutil.copytree(self.root, copy)
            try:
                counts = check_directory(copy, writer_config(options), self.history)
            except BaseException:
                shutil.copytree(self.root, f"{self.root}-evidence")
                raise
            shutil.rmtree(copy)
            if self._tally:
                with self._tally.lock:
                    self._tally.record_count += counts[0]
                    self._tally.cut_count += counts[1] > 0
        return run

    def damage_derived(self) -> None:
        """Make the next opening rebuild queues and index.

        Not by a queue whose records have all expired: nobody else knows its offsets.
        """
        files = [p for p in Path(self.root, "consumequeue").glob("[aor]*/*/*") if p.is_file()]
        if files:  # Else the kill came before the first dispatch.
            path = self._random.choice(sorted(files))
            path.write_bytes(b"\xa5" * path.stat().st_size)

    def kill_once(self) -> bool:
        """Let a writer be killed somewhere; return whether it was."""
        assert self._tally is not None
        random = self._random
        if self._kill_count >= DIRECTORY_KILL_COUNT:
            self.begin()
        if random.random() < 0.35:
            ack_count = random.randint(1, BATCH_COUNT - 5)
            run = self.life(self.options(), ack_count=ack_count)
            point = ""
        else:
            point, life, nth = self._tally.choose(random)
            self.prepare(life)
            run = self.life(self.options(), failpoint=f"{point}=kill@{nth}")
        if run.status == 0:
            return False
        self._kill_count += 1
        self._tally.note("failpoint" if point else "acknowledgements", point, run)
        return True

    def prepare(self, life: str) -> None:
        """Bring the directory into the state in which a kind of life begins."""
        if life == "fresh":
            self.begin()
        elif life in ("crashed", "rebuilding") and not self._kill_count:
            self.life(self.options(), ack_count=self._random.randint(20, BATCH_COUNT - 5))
        if life == "rebuilding":
            self.damage_derived()


def census(parent: Path, container: Container, mode: Mode, seed: str) -> dict[str, dict[str, int]]:
    """Count the passes of all failpoints in whole lives of all kinds."""
    chain = Chain(parent, container, mode, seed)
    lives = {"fresh": chain.life(chain.options(census=True)).census}
    for life in ("crashed", "rebuilding"):
        chain.prepare(life)
        lives[life] = chain.life(chain.options(census=True)).census
    lives["reopened"] = chain.life(chain.options(census=True)).census
    chain.begin()
    return lives


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[Path]:
    """Where the stores are; a broken one is kept in the directory that pytest keeps."""
    directory = Path(tempfile.mkdtemp(prefix="quorumlog-kill-", dir=temporary_parent()))
    try:
        yield directory
    finally:
        for evidence in directory.rglob("*-evidence"):
            shutil.copytree(evidence, tmp_path / "evidence" / evidence.name)
        shutil.rmtree(directory)


@pytest.fixture
def seed() -> str:
    """The number from which all follows."""
    return str(seeds.drawn("tests/store/test_crash_kill.py"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("container", "mode"),
    [
        ("commit_log", "sync"),
        ("commit_log", "pool"),
        ("ledger", "sync"),
    ],
)
def test_acknowledged_records_survive_sigkill(
    parent: Path, seed: str, container: Container, mode: Mode
) -> None:
    tally = Tally(census(parent / "census", container, mode, seed))
    # Some are passed only when a thread is late, so their number differs a little.
    assert len(tally.names()) > 25, f"a life passes {sorted(tally.names())}"

    def work(number: int) -> None:
        chain = Chain(parent / str(number), container, mode, f"{seed}/{number}", tally)
        for _ in range(8 * KILL_COUNT):
            enough = tally.kills.total() >= KILL_COUNT
            if enough and all(tally.points[name] for name in tally.names()):
                return
            chain.kill_once()

    with ThreadPoolExecutor(CHAIN_COUNT) as pool:
        list(pool.map(work, range(CHAIN_COUNT)))
    print(f"{container} {mode}: {dict(tally.kills)}, {dict(tally.phases)}")
    print(f"cut {tally.cut_count}, unanswered {tally.unanswered_count}")
    missed = [name for name in tally.names() if not tally.points[name]]
    assert missed == [], "these failpoints never killed"
    assert tally.kills.total() >= KILL_COUNT
    assert tally.kills["failpoint"] >= KILL_COUNT / 2
    assert tally.phases["work"] >= KILL_COUNT / 3
    assert tally.phases["opening"] > 0
    assert tally.unanswered_count >= KILL_COUNT / 4, "a kill rarely fell between try and answer"
    assert tally.record_count > 20 * KILL_COUNT


# --- The test is tested ---


@pytest.mark.parametrize("plant", ["", "early_ack"])
def test_an_acknowledgement_before_the_append_is_found(
    parent: Path, plant: Literal["", "early_ack"]
) -> None:
    chain = Chain(parent, "commit_log", "async", "1")
    options = replace(chain.options(), plant=plant)
    kill = "commit_log.before_append=kill@20"
    if plant:
        with pytest.raises(BrokenPromiseError, match="was acknowledged at"):
            chain.life(options, failpoint=kill)
    else:
        assert chain.life(options, failpoint=kill).status == -signal.SIGKILL
    assert len(chain.history.attempted) >= 20


@pytest.mark.long
def test_a_write_buffer_that_counts_as_committed_is_found(parent: Path) -> None:
    chain = Chain(parent, "commit_log", "pool", "1")
    losses: list[str] = []
    while not losses and chain.directory_count < 20:
        chain.begin()
        options = replace(chain.options(), plant="early_commit")
        try:
            chain.life(options, failpoint="commit_log.before_append=kill@25")
        except BrokenPromiseError as error:
            losses.append(str(error))
    assert losses, "twenty kills lost nothing that was in a buffer"
    assert all("was acknowledged at" in text for text in losses)


@pytest.mark.parametrize("forge", ["foreign", "double", "hole", "moved"], ids=str)
def test_the_checker_finds_what_must_not_be(parent: Path, forge: str) -> None:
    """A history that does not fit a good directory stands for a directory that lost or made up."""
    chain = Chain(parent, "commit_log", "sync", "2")
    options = chain.options()
    chain.life(options)
    history = chain.history
    if forge == "foreign":
        history.attempted.discard(max(n for n, _ in history.must))
    elif forge == "double":
        history.must[0, 99] = history.must[min(history.must)]
    elif forge == "hole":
        key = next(iter(history.expired_next))
        history.expired_next[key] += 1
    else:
        record_id = max(history.must)
        place = history.must[record_id]
        history.must[record_id] = place._replace(queue_offset=place.queue_offset + 1)
    with pytest.raises(BrokenPromiseError):
        check_directory(chain.root, writer_config(options), history)
