"""What the jobs share: the directory of a run, its progress, its result and its exit code.

Owns whose a directory is: what the caller named, and what a run that failed left behind, is never
removed; a run that is interrupted leaves nothing. Owns the form of progress, a bar for each long
step on a terminal and one line a step elsewhere, on stderr; and the fields of a result, printed as
one screen or as one JSON object.
"""

import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import NoReturn, Self

import click

from quorumlog.command_errors import CliError, ExitCode, report, take_signals
from quorumlog.local_cluster import DIRECTORY_VARIABLE

Rows = Sequence[tuple[str, str]]
Reached = Callable[[int], None]
"""Moves the bar of a step to a number of units."""
BeginStep = Callable[[str, int], Reached]
"""Begins a step by its text and its number of units."""


@dataclass(frozen=True, slots=True)
class JobDirectory:
    """A directory that no other run has."""

    path: str
    is_temporary: bool

    @classmethod
    def make(cls, named: str | None) -> Self:
        """Take the named directory, which must not exist or be empty, or make a temporary one."""
        if named is None:
            return cls(tempfile.mkdtemp(prefix="quorumlog-quickstart-"), is_temporary=True)
        if os.path.isdir(named) and os.listdir(named):
            raise CliError(
                what=f"{named} is not empty",
                why="a job begins with nothing and overwrites nothing",
                do="name a new directory, or remove this one",
            )
        return cls(named, is_temporary=False)

    def say(self, seed: int, *, is_kept: bool = False) -> None:
        """Say where the run is, and by which seed; it may take long, or be interrupted."""
        goes = " (removed if it passes)" if self.is_temporary and not is_kept else ""
        click.echo(
            f"The seed of this run is {seed}.\nIts directory is {self.path}{goes}.", err=True
        )

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Remove a directory that was made here if the work in the block is interrupted."""
        try:
            yield
        except BaseException as error:
            met: BaseException | None = error
            while met is not None and not isinstance(met, KeyboardInterrupt):
                met = met.__context__  # Bars cannot be drawn on a terminal that is closed.
            if met is not None:
                self.remove_temporary()
            raise

    def remove_temporary(self) -> str | None:
        """Remove a directory that was made here; return the path of one that stays."""
        if not self.is_temporary:
            return self.path
        shutil.rmtree(self.path)
        return None


@contextmanager
def job_progress() -> Iterator[BeginStep]:
    """Show the steps of a job."""
    if not sys.stderr.isatty():
        yield _say
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    with Progress(
        "{task.description:<34}",
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    ) as bars:

        def begin(text: str, total: int) -> Reached:
            task = bars.add_task(text, total=total)
            return lambda done: bars.update(task, completed=done)

        yield begin


def _say(text: str, total: int) -> Reached:
    click.echo(f"{text} ({total})", err=True)
    return lambda _done: None


def run_job_command(command: click.Command, name: str) -> NoReturn:
    """Run the command of a job, and end the process with its exit code. Help calls it `name`."""
    take_signals()
    try:
        code = command.main(prog_name=name, standalone_mode=False)
    except Exception as error:  # noqa: BLE001 - the last handler; it reports all of them.
        code = report(error)
    sys.exit(code)


@dataclass(slots=True)
class JobSummary:
    """The fields of every job. A field that was not set speaks against the run, not for it."""

    directory: str | None
    """Of the nodes or the store; None once it is removed."""
    seed: int
    verdict: str = "failed"
    files: int = 0
    lines: int = 0
    size_bytes: int = 0
    topics: int = 0
    queues: int = 0
    files_equal: int = 0
    files_different: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def show(self, rows: Rows, hints: Sequence[str]) -> None:
        """Print one screen: input, `rows`, comparison and verdict; then `hints`."""
        s = self
        shown = [
            ("input", f"{s.lines:,} lines of {s.files:,} files, {s.size_bytes / 1e6:.1f} MB"),
            *rows,
            ("SHA-256", f"{s.files_equal:,} of {s.files:,} files came back byte for byte"),
            *(("different", name) for name in s.files_different[:5]),
        ]
        click.echo("\n" + "\n".join(f"  {name:<11} {text}" for name, text in shown) + "\n")
        colour = "green" if s.verdict == "passed" else "red"
        click.secho(f"{s.verdict.upper()} in {s.seconds} s.", fg=colour, bold=True)
        path = os.path.join(sys.prefix, "bin", "activate")
        if os.path.exists(path):  # Else this Python is no virtual environment.
            path = path.removeprefix(f"{os.getcwd()}/")
            hints = (*hints, f"So that this shell finds qlog:\n  source {shlex.quote(path)}")
        click.echo("\n".join(hints))

    def print(self, kept: str | None) -> None:
        """Print one screen; `kept` is the address of a cluster that continues to run."""
        raise NotImplementedError

    def end(self, place: JobDirectory, *, as_json: bool, kept: str | None = None) -> ExitCode:
        """Print the result and return the exit code. What passed leaves no directory of its own."""
        is_passed = self.verdict == "passed"
        if is_passed and kept is None:
            self.directory = place.remove_temporary()
        if as_json:
            click.echo(json.dumps(asdict(self)))
        else:
            self.print(kept)
        return ExitCode.OK if is_passed else ExitCode.FINDINGS


@dataclass(slots=True)
class EngineJobSummary(JobSummary):
    """The result of the job of the engine."""

    killed_after_lines: int = 0
    acknowledged_before_kill: int = 0
    recovered_lines: int = 0
    acknowledged_lost: int = 0
    recovery_ms: float = 0.0
    cut_size_bytes: int = 0
    write_lines_per_second: int = 0
    read_lines_per_second: int = 0

    def print(self, kept: str | None) -> None:
        s = self
        rows = [
            ("queues", f"{s.queues} queues of {s.topics} topics"),
            ("killed", f"by SIGKILL after {s.killed_after_lines:,} acknowledged lines"),
            ("recovered", f"{s.recovered_lines:,} lines in {s.recovery_ms:.0f} ms"),
            ("cut", f"{s.cut_size_bytes} bytes of torn tail"),
            ("lost", f"{s.acknowledged_lost} of {s.acknowledged_before_kill:,} acknowledged lines"),
            ("written", f"{s.write_lines_per_second:,} lines/s, each batch synced first"),
            ("read back", f"{s.read_lines_per_second:,} lines/s through the queues, decoded"),
        ]
        hints = ["With --dir DIR the store stays, for you to look into."]
        if self.directory is not None:
            hints = [
                f"The store is in {self.directory}. Look into it:",
                f"  .venv/bin/qlog store inspect {self.directory}",
                f"  .venv/bin/qlog store verify {self.directory}",
            ]
        self.show(rows, hints)


@dataclass(slots=True)
class MainJobSummary(JobSummary):
    """The result of the main job."""

    nodes: int = 0
    acked: int = 0
    read: int = 0
    lost: int = -1
    duplicates: int = -1
    killed_node: int = 0
    killed_after: int = 0
    failover_ms: int = -1
    """Time from the SIGKILL to the first receipt of the next leader's term."""
    throughput_msgs_per_s: int = 0
    read_msgs_per_s: int = 0
    receipts_by_durability: dict[str, int] = field(default_factory=dict)
    duplicates_answered: int = 0
    """Messages that were sent again after the kill and found to be in the log already."""
    replicas_identical: bool = False
    replicas_equal: list[int] = field(default_factory=list)
    """Nodes from which, read alone, every file came back."""
    chain_digests: dict[str, str] = field(default_factory=dict)
    is_read: bool = False

    def settle(self, seconds: float) -> None:
        """Set the verdict, after all checks."""
        self.seconds = seconds
        good = (
            self.acked == self.read == self.lines > 0
            and self.lost == 0
            and self.duplicates == 0
            and self.files_equal == self.files
            and not self.files_different
            and 0 < self.killed_after < self.lines
            and self.failover_ms >= 0
            and self.replicas_identical
            and self.replicas_equal == list(range(1, self.nodes + 1))
        )
        self.verdict = "passed" if good else "failed"

    def print(self, kept: str | None) -> None:
        s = self
        receipts = ", ".join(f"{n:,} {level}" for level, n in s.receipts_by_durability.items())
        replicas = ", ".join(map(str, s.replicas_equal)) or "none"
        rows = [
            ("queues", f"{s.queues} queues of {s.topics} topics on {s.nodes} nodes"),
            ("acked", f"{s.acked:,} messages, {s.throughput_msgs_per_s:,}/s, the outage included"),
            ("receipts", receipts),
            ("killed", f"node {s.killed_node}, the leader, SIGKILL after {s.killed_after:,} acks"),
            ("failover", f"{s.failover_ms:,} ms from the kill to the next leader's first ack"),
            ("sent again", f"{s.duplicates_answered:,} messages were in the log already"),
            ("read back", f"{s.read:,} messages, {s.read_msgs_per_s:,}/s, linearizable"),
            ("lost", f"{s.lost:,}, duplicates {s.duplicates:,}"),
            ("replicas", f"nodes {replicas} gave every file back, read alone"),
            ("digests", "equal on all nodes" if s.replicas_identical else str(s.chain_digests)),
        ]
        hints = ["With --keep the nodes go on running, for you to try things."]
        if kept is not None:
            qlog = ".venv/bin/qlog"
            hints = [
                f"The cluster runs in {s.directory}. Try:",
                f"  export QUORUMLOG_SERVER={kept}",
                f"  export {DIRECTORY_VARIABLE}={shlex.quote(os.path.abspath(s.directory or ''))}",
                f"  {qlog} cluster status",
                f"  {qlog} consume json --until end -o raw | head",
                f"  {qlog} message query json --key json/decoder.py",
                f"  {qlog} local kill --leader; {qlog} cluster status",
                "End the nodes, and remove their files:",
                f"  {qlog} local stop && {qlog} local purge --yes",
                f"  unset QUORUMLOG_SERVER {DIRECTORY_VARIABLE}",
            ]
        elif s.directory is not None:
            hints.insert(0, f"The nodes are stopped; their data and logs are in {s.directory}.")
        self.show(rows, hints)
