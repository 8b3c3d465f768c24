"""The effects of one input of the machine: the port to the shell.

Types only. The order of the fields of `HaEffects` is the order of the work; the work of an earlier
field is durable (or, for raw bytes, written) before that of a later one begins. So no reply can
leave before its promise holds.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from node.replication.ha.core.epochs import Epochs
from node.replication.ha.core.types import HaRole, ReplicaState
from node.replication.ha.core.wire import Frame, Transfer
from store.errors import Outcome

LinkId: TypeAlias = Hashable


class HaLogView(Protocol):
    """The machine's questions to the local log. None of them blocks."""

    @property
    def min_position(self) -> int:
        """First byte that is still kept."""
        ...

    def ship_end(self, lo: int, hi: int, size_bytes_max: int) -> int:
        """Return the end of one transfer from `lo`, more than `lo` and at most `hi`.

        The transfer holds whole records of one file (a blank is one), so that a replica's log
        always ends with a record; no more than `size_bytes_max`, unless a single record is larger.
        """
        ...


class LogCut(NamedTuple):
    """Move the bytes [lo, hi), the end of the log, into a file aside; durable before going on."""

    lo: int
    hi: int


class LogWrite(NamedTuple):
    """Append raw bytes at exactly this position, the end of the log."""

    position: int
    body: bytes | memoryview
    checked: object = None
    """The argument of `Machine.received` for these bytes: proof of the shell to its own log."""


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
    """Close a link and give the reason; the shell dials again if it had dialled."""

    link: LinkId
    reason: str


class Resolved(NamedTuple):
    """A decided append. Outcome APPLIED: acknowledge it."""

    waiter: object
    outcome: Outcome


class HaRoleChange(NamedTuple):
    """A change of role, for metrics, redirects and the controller."""

    role: HaRole
    number: int
    master_id: int
    reason: str


class LossReport(NamedTuple):
    """Bytes [lo, hi) of the former log are gone from it; always its end.

    From a new master: the bytes that it knows to have been readable, so `hi` may be too low. From a
    replica that was cut: exact, and the bytes are set aside.
    """

    epoch: int
    """The last epoch of the log that was lost."""
    lo: int
    hi: int
    acked_hi: int
    """Appends that end in (lo, acked_hi] had been acknowledged, as far as this replica knows."""
    is_exact: bool
    """Whether `acked_hi` is exact; otherwise more may have been acked, by an earlier process or a
    replica that did not answer."""


@dataclass(slots=True, eq=False)
class HaEffects:
    """The work that one input asks for; see the module for the order."""

    state: ReplicaState | None = None
    """State to save in the binding file."""
    cut: LogCut | None = None
    epochs: Epochs | None = None
    """Epochs to save in the epoch file."""
    write: list[LogWrite] = field(default_factory=list)
    """Bytes to write; sync soon and report `durable_to`. A failed write ends the process."""
    send: list[Send | Ship] = field(default_factory=list)
    """Frames to send, in this order on each link."""
    close: list[Close] = field(default_factory=list)
    confirm: int | None = None
    """New limit of readers. Lower than before only together with a loss."""
    resolved: list[Resolved] = field(default_factory=list)
    is_proven: bool = False
    """Whether the proof succeeded: everything acked before it began is below `confirm`."""
    is_contested: bool = False
    """Whether a replica is bound to another master's epoch of the same number: promote again, with
    a nonce of its own. Earlier promotions are over then."""
    role_changes: list[HaRoleChange] = field(default_factory=list)
    losses: list[LossReport] = field(default_factory=list)
    """Losses to report; with a cut, the first one describes the cut bytes."""
