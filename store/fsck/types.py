"""The result of a check of a store directory: findings, their weight, and the remedies.

Owns the values that pass between the checks, the repair and the command line; must not read files.
Sources: fault-matrix D5 to D9, S05, S15.
"""

import enum
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from store.config import StoreConfig
from store.errors import CorruptionError, StoreError
from store.files.file_system import FileSystem
from store.ledger.start import LogStart

Progress = Callable[[str, int, int], None]
"""Called with (what, done, total) during long steps; the unit is bytes, or files for `files`
and queues for `queues`. A total of 0 is not known."""


def no_progress(what: str, done: int, total: int) -> None:
    """Do nothing: a `Progress` without a listener."""


class Severity(enum.StrEnum):
    """Consequence of a finding."""

    DAMAGE = "damage"
    """Bytes that were known to be good are lost unless a replica has them."""
    TORN_TAIL = "torn_tail"
    """Bytes above the durable mark: normal after a crash, opening cuts them."""
    DERIVED = "derived"
    """In a file that is built from the log: can be rebuilt."""
    REPAIRABLE = "repairable"
    """The right bytes follow from the good ones: blanks, sizes, marks."""
    LEFT_OVER = "left_over"
    """A file of an unfinished step: harmless, opening removes it."""
    UNKNOWN = "unknown"
    """A file that no store makes. Never read, never removed."""


class Part(enum.StrEnum):
    """The part of a directory that a finding is about."""

    LOG = "log"
    LEDGER_INDEX = "ledger_index"
    QUEUE = "queue"
    KEY_INDEX = "key_index"
    MARKS = "marks"
    START = "start"
    CHECKPOINT = "checkpoint"
    DIRECTORY = "directory"
    NODE = "node"
    """A node's promises, its state and its name server: the files beside the log."""


class Finding(NamedTuple):
    """One place that is not as it must be: byte `at` of the file `path` (below the root).

    `position`, in the log only: where the bad bytes begin; -1 elsewhere.
    """

    path: str
    at: int
    field: str
    expected: str
    actual: str
    severity: Severity
    part: Part
    position: int = -1

    def __str__(self) -> str:
        return (
            f"{self.path} byte {self.at}: {self.field} is {self.actual}, expected {self.expected} "
            f"({self.severity})"
        )


LogFinding = Callable[[int, int, str, str, str], Finding]
"""(position of a record, byte in it, field, expected, actual) -> the finding."""


def finding_of(error: CorruptionError, severity: Severity, part: Part, path: str = "") -> Finding:
    """Return the finding for damage, by default in the file that the error names."""
    place = path or error.path, error.at
    return Finding(*place, error.field, error.expected, error.actual, severity, part)


@dataclass(frozen=True, slots=True)
class OwnerFiles:
    """The small files that the owner of a store keeps beside it, of which the store knows nothing.

    `names` matches those in the root. `check` gets the root, and yields what is wrong with them.
    """

    names: re.Pattern[str]
    check: Callable[[FileSystem, str], Iterator[Finding]]


NO_OWNER_FILES: Final = OwnerFiles(re.compile("(?!)"), lambda _fs, _root: iter(()))
"""A store without an owner."""


class Notice(NamedTuple):
    """A topic that RocketMQ wrote inner batches to: whole, kept, and not readable here.

    `record_count`: how many records of the topic the log has, inner batches or not.
    """

    topic: str
    record_count: int

    def __str__(self) -> str:
        return (
            f"inner batches of RocketMQ: {self.record_count} records of topic {self.topic} "
            f"(queue.type=BatchCQ) are whole, kept, and not readable here"
        )


class ActionKind(enum.StrEnum):
    """The actions of a repair. All of them can be repeated."""

    KEEP = "keep"
    """Copy the damaged page at byte `zero_lo` of a derived file aside, before it is rebuilt."""
    CUT_LOG = "cut_log"
    """End the log at `position`; files behind are moved aside, the cut one is replaced."""
    REWRITE_FILE = "rewrite_file"
    """Give a log file its size, or its blank, back. No byte is lost."""
    RECREATE_START = "recreate_start"
    RECREATE_MARKS = "recreate_marks"
    RECREATE_CHECKPOINT = "recreate_checkpoint"
    REBUILD_LEDGER_INDEX = "rebuild_ledger_index"
    REBUILD_DERIVED = "rebuild_derived"
    """Drop consume queues and key index, and build them from the log."""
    REMOVE = "remove"
    REFETCH = "refetch"
    """Left to a replica, which has to give the log again. Skipped by `apply`."""


class LostQueue(NamedTuple):
    """Records of one queue that a cut takes away: the offsets [lo_offset, hi_offset)."""

    topic: str
    queue_id: int
    lo_offset: int
    hi_offset: int


@dataclass(frozen=True, slots=True)
class Loss:
    """Known good records that a cut takes away. Positions and sizes in bytes.

    Indexes are ledger entries [lo_index, hi_index), -1 and -1 in a plain log. `record_count` counts
    the records that can still be read; those in damaged bytes are known by their queue units only.
    """

    lo_position: int
    hi_position: int
    lo_index: int
    hi_index: int
    record_count: int
    queues: tuple[LostQueue, ...]


@dataclass(frozen=True, slots=True)
class Action:
    """One step of a repair. `path` is below the root.

    `position`: where the log ends, or begins, then. The bytes [zero_lo, zero_hi) of the file become
    zeros, with a blank at `zero_lo` if `blank` is set. `fingerprint`: CRC-32C of the first of the
    bytes that go, so that a plan is not applied to other bytes. `config`: how to read the
    directory, since a repair that breaks off may leave too little to find that out again.
    """

    kind: ActionKind
    path: str
    why: str
    position: int = -1
    zero_lo: int = 0
    zero_hi: int = 0
    blank: bool = False
    fingerprint: int = 0
    loss: Loss | None = None
    start: LogStart | None = None
    config: StoreConfig | None = None


class LossRefusedError(StoreError):
    """A repair would drop records once acknowledged, and that was not accepted. No byte changed."""

    code = "store.loss_refused"
    lo_position: int
    hi_position: int
    record_count: int

    def __str__(self) -> str:
        size_bytes = self.hi_position - self.lo_position
        return (
            f"the repair drops {size_bytes} bytes of log from position {self.lo_position} on, with "
            f"{self.record_count} readable records; refetch them from a replica, or accept the loss"
        )


class StalePlanError(StoreError):
    """A repair plan was made for other bytes than those in the file. No byte changed."""

    code = "store.stale_plan"
    text = (
        "{path} has changed since the plan was made, at position {position}; verify again and make "
        "a new plan"
    )
    path: str
    position: int
