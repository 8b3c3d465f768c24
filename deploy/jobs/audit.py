"""Compares the sent messages with the read ones: each line once, each file by SHA-256.

Owns the expectation, taken from the files themselves, and the counting; must not know where the
messages come from. Lines are counted in one bytearray a file, so a million of them cost a megabyte.
"""

import hashlib
import os
from typing import TYPE_CHECKING

from deploy.jobs.job_summary import JobSummary, MainJobSummary, Reached
from deploy.jobs.stdlib_source import SourceFile

if TYPE_CHECKING:
    from hashlib import _Hash


class LineAudit:
    """The expectation, the acked lines, and the result of one reading."""

    def __init__(self, files: list[SourceFile], reached: Reached) -> None:
        """Read all files and record the expected messages."""
        self._names = [file.name for file in files]
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._line_counts: list[int] = []
        self._digests: list[str] = []
        for number, file in enumerate(files):
            lines = file.lines()
            self._line_counts.append(len(lines))
            self._digests.append(hashlib.sha256(b"".join(lines)).hexdigest())
            reached(number + 1)
        self._acked = [bytearray(count) for count in self._line_counts]
        self.queues = sorted({(file.topic, file.queue_id) for file in files})
        self.line_count = sum(self._line_counts)
        self._size_bytes = sum(os.path.getsize(file.path) for file in files)
        self.begin_reading()

    def describe(self, summary: JobSummary) -> None:
        """Write the input into the summary."""
        summary.files, summary.lines = len(self._names), self.line_count
        summary.size_bytes = self._size_bytes
        summary.topics, summary.queues = len({topic for topic, _ in self.queues}), len(self.queues)

    def on_acked(self, number: int, line_number: int) -> None:
        """Record the receipt of line `line_number` of file `number`."""
        self._acked[number][line_number] = 1

    def begin_reading(self) -> None:
        """Discard the result of the last reading."""
        self.read_count = 0
        self.unknown_count = 0
        self._read_counts = [bytearray(count) for count in self._line_counts]
        self._hashes: list[_Hash] = [hashlib.sha256() for _ in self._names]

    def on_read(self, name: str, line_number: int, body: bytes) -> None:
        """Record a message that was read, the next one of its queue."""
        self.read_count += 1
        number = self._numbers.get(name)
        if number is None or not 0 <= line_number < self._line_counts[number]:
            self.unknown_count += 1
            return
        read_count = self._read_counts[number]
        read_count[line_number] = min(255, read_count[line_number] + 1)
        self._hashes[number].update(body)

    def different_files(self) -> list[str]:
        """Return the files that did not come back byte for byte."""
        pairs = zip(self._names, self._hashes, self._digests, strict=True)
        return [name for name, found, expected in pairs if found.hexdigest() != expected]

    def lost_count(self) -> int:
        """Return the count of acked lines that this reading did not find."""
        pairs = zip(self._acked, self._read_counts, strict=True)
        return sum(
            sum(1 for was, now in zip(acked, found, strict=True) if was and not now)
            for acked, found in pairs
            if acked != found
        )

    def duplicate_count(self) -> int:
        """Return the count of messages that this reading found again, or that were never sent."""
        again = sum(sum(found) - sum(map(bool, found)) for found in self._read_counts)
        return again + self.unknown_count

    def judge_files(self, summary: JobSummary) -> None:
        """Write into the summary which files this reading gave back."""
        summary.files_different = self.different_files()
        summary.files_equal = summary.files - len(summary.files_different)

    def judge_leader(self, summary: MainJobSummary) -> None:
        """Write the result of reading from the leader into the summary."""
        self.judge_files(summary)
        summary.read = self.read_count
        summary.lost, summary.duplicates = self.lost_count(), self.duplicate_count()
        summary.is_read = True

    def judge_replica(self, summary: MainJobSummary, node_id: int) -> None:
        """Write into the summary whether a replica, read alone, gave every file back."""
        bad = self.different_files() or self.lost_count() or self.duplicate_count()
        if not bad and self.read_count == self.line_count:
            summary.replicas_equal.append(node_id)
