"""What one input of the machine wants done: the seam to the shell.

Types only. The order of the fields of `Effects` is the order of the work; whatever stands further
up is durable (or, for raw bytes, written) before anything below it happens. So no reply can leave
before what it promises.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, Protocol, TypeAlias

from node.replication.ha.core.epochs import Epochs
from node.replication.ha.core.types import Mode, ReplicaState, Role
from node.replication.ha.core.wire import Frame, Transfer
from store.errors import Outcome

LinkId: TypeAlias = Hashable


class LogView(Protocol):
    """The few questions the machine asks of the local log. None of them blocks."""

    @property
    def min_position(self) -> int:
        """First byte that is still kept."""
        ...

    @property
    def last_file_start(self) -> int:
        """Where the last file begins."""
        ...

    def ship_end(self, lo: int, hi: int, size_bytes_max: int) -> int:
        """Return up to where one transfer from `lo` goes, more than `lo` and at most `hi`.

        It holds whole records of one file (a blank is one), so that a replica's log always ends
        with a record; no more than `size_bytes_max`, unless a single record is larger.
        """
        ...


class Cut(NamedTuple):
    """Move the bytes [lo, hi), the end of the log, into a file aside; durable before going on."""

    lo: int
    hi: int


class Write(NamedTuple):
    """Append raw bytes at exactly this position, the end of the log."""

    position: int
    body: bytes | memoryview


class Send(NamedTuple):
    """A frame for a link."""

    link: LinkId
    frame: Frame


class Ship(NamedTuple):
    """A transfer header for a link, to be followed by the bytes [lo, hi) of the log."""

    link: LinkId
    head: Transfer
    lo: int
    hi: int


class Close(NamedTuple):
    """Close a link and say why; the shell dials again if it had dialled."""

    link: LinkId
    reason: str


class Resolved(NamedTuple):
    """An append is decided. Outcome APPLIED: acknowledge it as what `mode` and `copies` say."""

    waiter: object
    end: int
    outcome: Outcome
    mode: Mode
    copies: int
    """Replicas that hold it synced, of the master's epoch."""


class RoleChange(NamedTuple):
    """For metrics, redirects and the controller."""

    role: Role
    number: int
    master_id: int
    reason: str


class LossReport(NamedTuple):
    """Bytes [lo, hi) of the log as it was are gone from it; always its end.

    From a new master: what it knows to have been readable, `hi` may be too low. From a replica that
    was cut: exact, and the bytes are set aside.
    """

    epoch: int
    """The last of the log that was lost."""
    lo: int
    hi: int
    acked_hi: int
    """Appends that end in (lo, acked_hi] had been acknowledged, as far as this replica knows."""
    is_exact: bool
    """False: more may have been acked, by a process that is no more or a replica not heard."""


class Effects:
    """See the module."""

    __slots__ = (
        "close",
        "confirm",
        "cut",
        "epochs",
        "losses",
        "reads",
        "reads_failed",
        "resolved",
        "role_changes",
        "send",
        "state",
        "write",
    )

    def __init__(self) -> None:
        self.state: ReplicaState | None = None
        """Save it in the binding file."""
        self.cut: Cut | None = None
        self.epochs: Epochs | None = None
        """Save them in the epoch file."""
        self.write: list[Write] = []
        """Sync soon and tell `durable_to`. A failed write ends the process."""
        self.send: list[Send | Ship] = []
        """In this order on each link."""
        self.close: list[Close] = []
        self.confirm: int | None = None
        """Readers may read up to here. Lower than before only together with a loss."""
        self.resolved: list[Resolved] = []
        self.reads: list[object] = []
        """These reads are confirmed: what was acked before they began is below `confirm`."""
        self.reads_failed: list[object] = []
        """Of these nobody here can tell."""
        self.role_changes: list[RoleChange] = []
        self.losses: list[LossReport] = []
        """With a cut, the first one is of what it cuts."""
