"""The job of the engine alone: real input in, a crash in the middle, every byte back.

Loads each line of the Python standard library as a message, SIGKILLs the writing process half-way,
recovers, resumes, reads everything back through the consume queues and compares SHA-256 per file.
Owns the sequence; storing is the store's work, the input is `stdlib_source`, the writing process
`engine_job_writer`, the screen `job_summary`.
"""

import json
import os
import signal
import subprocess
import sys
import time
from random import Random
from typing import Any

import click

from deploy.jobs.audit import LineAudit
from deploy.jobs.engine_job_writer import STORE_CONFIG
from deploy.jobs.job_summary import (
    BeginStep,
    EngineJobSummary,
    JobDirectory,
    Reached,
    job_progress,
    run_job_command,
)
from deploy.jobs.stdlib_source import (
    LINE_PROPERTY,
    PATH_PROPERTY,
    QueueName,
    find_files,
    standard_library,
)
from quorumlog.command_errors import CliError
from store.record.message import decode_message
from store.store import Store

_PULL_COUNT = 4096
_PULL_SIZE_BYTES = 4 << 20


def run_writer(
    directory: str, source: str, reached: Reached, kill_at: int
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
            reached(done)
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


def read_back(store: Store, audit: LineAudit, reached: Reached) -> None:
    """Read every queue, from its first record to its last."""
    for topic, queue_id in audit.queues:
        offset, is_over = 0, False
        while not is_over:
            result = store.pull(
                topic, queue_id, offset, max_count=_PULL_COUNT, max_size_bytes=_PULL_SIZE_BYTES
            )
            at, data = 0, result.data
            while at < len(data):
                message = decode_message(data, at)
                at += message.size_bytes
                line_number = int(message.properties[LINE_PROPERTY])
                audit.on_read(message.properties[PATH_PROPERTY], line_number, message.body)
            reached(audit.read_count)
            offset, is_over = result.next_offset, not result.record_count


def run_job(directory: str, source: str, seed: int, begin_step: BeginStep) -> EngineJobSummary:
    """Do the whole job in `directory`, which must not exist or be empty."""
    began = time.monotonic()
    summary = EngineJobSummary(directory, seed)
    files = find_files(source)
    audit = LineAudit(files, begin_step("Read the standard library's files", len(files)))
    audit.describe(summary)

    kill_at = int(summary.lines * Random(seed).uniform(0.4, 0.6))
    reached = begin_step("Write until the process is killed", summary.lines)
    wrote = time.monotonic()
    acknowledged, summary.killed_after_lines, _ = run_writer(directory, source, reached, kill_at)
    summary.acknowledged_before_kill = sum(acknowledged.values())
    write_seconds = time.monotonic() - wrote

    reached = begin_step("Recover, resume, write the rest", summary.lines)
    wrote = time.monotonic()
    _, _, opened = run_writer(directory, source, reached, 0)
    write_seconds += time.monotonic() - wrote
    summary.write_lines_per_second = round(summary.lines / write_seconds)
    summary.recovered_lines, summary.recovery_ms = opened["lines"], opened["recovery_ms"]
    summary.cut_size_bytes = opened["cut_size_bytes"]
    summary.acknowledged_lost = sum(
        max(0, offset - opened["queues"].get(f"{topic}/{queue_id}", 0))
        for (topic, queue_id), offset in acknowledged.items()
    )

    reached = begin_step("Read back through the queues", summary.lines)
    read = time.monotonic()
    with Store.open(directory, STORE_CONFIG) as store:
        read_back(store, audit, reached)
    summary.read_lines_per_second = round(audit.read_count / (time.monotonic() - read))

    judge(summary, audit)
    summary.seconds = round(time.monotonic() - began, 1)
    return summary


def judge(summary: EngineJobSummary, audit: LineAudit) -> None:
    """Compare the messages read back with the files, and set the verdict."""
    audit.judge_files(summary)
    good = (
        not summary.files_different
        and not summary.acknowledged_lost
        and audit.read_count == audit.line_count
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
    with place.undone(), job_progress() as begin_step:
        place.say(seed)
        if source is None:
            click.echo("It has about 860,000 lines, and takes 1 to 3 minutes.", err=True)
        summary = run_job(place.path, source or standard_library(), seed, begin_step)
    return summary.end(place, as_json=as_json)


if __name__ == "__main__":
    run_job_command(engine_job, "./deploy/quickstart --engine")
