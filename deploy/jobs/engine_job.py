"""The job of the engine alone: real input in, a crash in the middle, every byte back.

Loads each line of the Python standard library as a message, SIGKILLs the writing process half-way,
recovers, resumes, reads everything back through the consume queues and compares SHA-256 per file.
Owns the sequence; storing is the store's work, the input is `stdlib_source`, the writing process
`engine_job_writer`, the screen `job_summary`.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from random import Random
from typing import Any

import click

from deploy.jobs.engine_job_writer import STORE_CONFIG
from deploy.jobs.job_directory import JobDirectory
from deploy.jobs.job_summary import EngineJobSummary
from deploy.jobs.progress import JobProgress, JobStep
from deploy.jobs.stdlib_source import (
    PATH_PROPERTY,
    QueueName,
    SourceFile,
    find_files,
    sha256_of_files,
    standard_library,
)
from quorumlog.command_errors import CliError, ExitCode, report
from quorumlog.command_signals import take_signals
from store.record.message import decode_message
from store.store import Store

_PULL_COUNT = 4096
_PULL_SIZE_BYTES = 4 << 20


def run_writer(
    directory: str, source: str, step: JobStep, kill_at: int
) -> tuple[dict[QueueName, int], int, dict[str, Any]]:
    """Run the writing process; SIGKILL it once `kill_at` lines are acknowledged (0: never).

    Returns (acknowledged next offset of each queue, acknowledged lines, its recovery report).
    """
    command = [sys.executable, "-P", "-m", "deploy.jobs.engine_job_writer", directory, source]
    acknowledged: dict[QueueName, int] = {}
    opened: dict[str, Any] = {}
    done = 0
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    try:
        for line in writer.stdout:
            if not line.endswith("\n"):
                break  # Killed while it wrote this line: it acknowledges nothing.
            event = json.loads(line)
            if "opened" in event:
                opened = event["opened"]
                done = opened["lines"]
                continue
            topic, queue_id, next_offset, count = event["acked"]
            acknowledged[(topic, queue_id)] = next_offset
            done += count
            step.reached(done)
            if kill_at and done >= kill_at and writer.poll() is None:
                writer.send_signal(signal.SIGKILL)
                kill_at = 0
    finally:
        if writer.poll() is None and sys.exc_info()[0] is not None:
            writer.kill()
        writer.wait()
        writer.stdout.close()
    if writer.returncode not in (0, -signal.SIGKILL):
        raise CliError(
            what=f"the writing process ended with exit code {writer.returncode}",
            why="its own message stands above",
            do="mend that, then run the job again",
        )
    return acknowledged, done, opened


def pull_all(store: Store, topic: str, queue_id: int) -> Iterator[bytes]:
    """Yield runs of records of one queue, from its first to its last."""
    offset = 0
    while True:
        result = store.pull(
            topic, queue_id, offset, max_count=_PULL_COUNT, max_size_bytes=_PULL_SIZE_BYTES
        )
        if not result.record_count:
            return
        yield result.data
        offset = result.next_offset


def read_back(store: Store, queues: list[QueueName], step: JobStep) -> tuple[dict[str, str], int]:
    """Read every queue and return (SHA-256 of each file's lines, count of lines)."""
    digests: dict[str, Any] = {}
    count = 0
    for topic, queue_id in queues:
        for data in pull_all(store, topic, queue_id):
            at = 0
            while at < len(data):
                message = decode_message(data, at)
                at += message.size_bytes
                name = message.properties[PATH_PROPERTY]
                digest = digests.get(name) or digests.setdefault(name, hashlib.sha256())
                digest.update(message.body)
                count += 1
            step.reached(count)
    return {name: digest.hexdigest() for name, digest in digests.items()}, count


def run_job(directory: str, source: str, seed: int, progress: JobProgress) -> EngineJobSummary:
    """Do the whole job in `directory`, which must not exist or be empty."""
    began = time.monotonic()
    summary = EngineJobSummary(directory, seed)
    files = find_files(source)
    counts = count_lines(files, progress)
    queues = sorted({(file.topic, file.queue_id) for file in files})
    summary.files, summary.lines = len(files), sum(counts.values())
    summary.size_bytes = sum(os.path.getsize(file.path) for file in files)
    summary.topics, summary.queues = len({topic for topic, _ in queues}), len(queues)

    kill_at = int(summary.lines * Random(seed).uniform(0.4, 0.6))
    step = progress.step("Write until the process is killed", summary.lines)
    wrote = time.monotonic()
    acknowledged, summary.killed_after_lines, _ = run_writer(directory, source, step, kill_at)
    summary.acknowledged_before_kill = sum(acknowledged.values())
    write_seconds = time.monotonic() - wrote

    step = progress.step("Recover, resume, write the rest", summary.lines)
    wrote = time.monotonic()
    _, _, opened = run_writer(directory, source, step, 0)
    write_seconds += time.monotonic() - wrote
    summary.write_lines_per_second = round(summary.lines / write_seconds)
    summary.recovered_lines, summary.recovery_ms = opened["lines"], opened["recovery_ms"]
    summary.cut_size_bytes = opened["cut_size_bytes"]
    summary.acknowledged_lost = sum(
        max(0, offset - opened["queues"].get(f"{topic}/{queue_id}", 0))
        for (topic, queue_id), offset in acknowledged.items()
    )

    step = progress.step("Read back through the queues", summary.lines)
    read = time.monotonic()
    with Store.open(directory, STORE_CONFIG) as store:
        read_count, line_count = read_back(store, queues, step)
    summary.read_lines_per_second = round(line_count / (time.monotonic() - read))

    compare(summary, files, read_count, line_count, counts)
    summary.seconds = round(time.monotonic() - began, 1)
    return summary


def count_lines(files: list[SourceFile], progress: JobProgress) -> dict[str, int]:
    """Return the number of lines of each file."""
    step = progress.step("Read the standard library's files", len(files))
    counts = {}
    for number, file in enumerate(files):
        counts[file.name] = len(file.lines())
        step.reached(number + 1)
    return counts


def compare(
    summary: EngineJobSummary,
    files: list[SourceFile],
    digests: dict[str, str],
    line_count: int,
    counts: dict[str, int],
) -> None:
    """Compare the messages read back with the files on disk, and set the verdict."""
    empty = hashlib.sha256().hexdigest()
    expected = sha256_of_files(files)
    different = [n for n, digest in expected.items() if digests.get(n, empty) != digest]
    different += sorted(set(digests) - set(expected))
    summary.files_different = different
    summary.files_equal = len(expected) - len(set(different) & set(expected))
    good = (
        not different
        and not summary.acknowledged_lost
        and line_count == sum(counts.values())
        and summary.acknowledged_before_kill > 0
        and summary.recovered_lines < summary.lines  # A later kill would not prove much.
    )
    summary.verdict = "passed" if good else "failed"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line.")
@click.option("--dir", "directory", help="Where to put the store, which then stays.")
@click.option("--source", help="Directory of Python files (default: the standard library).")
@click.option("--seed", type=int, help="Decides when the writer is killed (default: random).")
def engine_job(as_json: bool, directory: str | None, source: str | None, seed: int | None) -> int:
    """Load real files as messages, kill the writer, recover, and prove every byte is back.

    \b
    Examples:
      ./deploy/quickstart --engine
      ./deploy/quickstart --engine --json | tail -1
      ./deploy/quickstart --engine --dir /dev/shm/quorumlog --source src

    Exit code 0: every file came back. 1: one did not. 3: the job could not be done.
    """
    seed = int.from_bytes(os.urandom(4), "big") if seed is None else seed
    place = JobDirectory.make(directory)
    with place.undone(), JobProgress() as progress:
        click.echo(f"The seed of this run is {seed}, its directory {place.path}.", err=True)
        summary = run_job(place.path, source or standard_library(), seed, progress)
    is_passed = summary.verdict == "passed"
    if is_passed:
        summary.directory = place.remove_temporary()
    if as_json:
        click.echo(json.dumps(asdict(summary)))
    else:
        summary.print()
    return ExitCode.OK if is_passed else ExitCode.FINDINGS


def main() -> int:
    """Run the command and return its exit code."""
    take_signals()
    try:
        code: int = engine_job.main(standalone_mode=False)
        return code
    except Exception as error:  # noqa: BLE001 - the last handler; it reports all of them.
        return report(error)


if __name__ == "__main__":
    sys.exit(main())
