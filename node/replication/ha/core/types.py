"""Words of master-slave mode: epochs, bindings, roles and the errors of the package.

Types only; must not know their users.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import ClassVar, Final, NamedTuple, dataclass_transform

from store.errors import Outcome

NO_EPOCH: Final = 0
"""Epoch numbers begin at 1; RocketMQ's controller counts the same way."""
NO_REPLICA: Final = -1


@dataclass_transform(eq_default=False)
class HaError(Exception):
    """Root of all errors of master-slave mode; its attributes mean what they do in `store`."""

    code: ClassVar[str] = "ha.error"
    retryable: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = Outcome.NOT_APPLIED
    text: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        dataclass(eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        self.args = tuple(vars(self).values())  # Also values given by name, and defaults.

    def __str__(self) -> str:
        return self.text.format_map(vars(self))


class MachineNotMasterError(HaError):
    """This replica is no serving master. Nothing was appended."""

    code, retryable = "ha.not_master", True
    master_id: int

    def __str__(self) -> str:
        where = f"replica {self.master_id} may be it" if self.master_id >= 0 else "none is known"
        return f"this replica is not the master, {where}; ask there"


class HaBusyError(HaError):
    """Too many appends wait for copies. Nothing was appended; try again after a pause."""

    code, retryable = "ha.busy", True
    text = "{held} appends wait for copies, the limit is {limit}; slow down"
    held: int
    limit: int


class PromotionError(HaError):
    """A promotion was refused before it began. Nothing changed."""

    code = "ha.promotion_refused"
    text = "{reason}; nothing changed"
    reason: str


class EpochStart(NamedTuple):
    """An epoch and its start in the log."""

    number: int
    start: int


class HaBinding(NamedTuple):
    """The meaning of an epoch number. One number, one pair, for ever (fault-matrix C2)."""

    number: int = NO_EPOCH
    master_id: int = NO_REPLICA
    nonce: int = 0


class HaStanding(IntEnum):
    """Whether a replica counts: for k copies and for a fence."""

    FULL = 1
    JOINING = 2
    """Its disk is new, so it may have forgotten acks and bindings (fault-matrix H11)."""


class HaRole(Enum):
    """The current work of a replica."""

    SLAVE = "slave"
    CANDIDATE = "candidate"
    """Binds its epoch and takes the longest log; serves no client."""
    MASTER = "master"


class AckMode(Enum):
    """When an append is acknowledged."""

    SYNC = "sync"
    """After it is synced on k replicas, the master included."""
    ASYNC = "async"
    """After it is synced on the master."""


class HaSettings(NamedTuple):
    """Configuration of the group, the same on every replica. Changing it is a step of its own."""

    group: str
    replica_ids: tuple[int, ...]
    copies: int = 2
    """The number k of copies. The fence depends on it also in async mode, so a change of mode
    needs no fence."""
    window_size_bytes: int = 4 << 20
    """Bytes sent to one slave and not yet acked."""
    transfer_size_bytes: int = 256 << 10
    heartbeat_ms: int = 1000
    silence_ms: int = 20_000
    """Silence after which a link is closed (haHousekeepingInterval)."""
    waiter_count_max: int = 65_536
    """Appends of a master that wait for copies."""

    @property
    def fence_count(self) -> int:
        """Number of replicas that must be bound before a new master serves.

        n-k+1 of them meet every set of k that could ack; a majority also makes sure that no two
        masters can have bound one number, where k is large.
        """
        count = len(self.replica_ids)
        return max(count - self.copies + 1, count // 2 + 1)


class BindingRefusedError(HaError):
    """The replica's binding forbids this one. Nothing changed."""

    code = "ha.binding_refused"
    text = (
        "epoch {asked.number} of master {asked.master_id} is refused: this replica is bound to "
        "epoch {bound.number} of master {bound.master_id}; promote with a higher number"
    )
    asked: HaBinding
    bound: HaBinding


class ReplicaState(NamedTuple):
    """A replica's durable promises."""

    bound: HaBinding
    standing: HaStanding
    incarnation: int
    """Drawn when the disk was new."""
    mode: AckMode = AckMode.SYNC
    """Mode of the master it is bound to, and its own mode if it is promoted."""


def check_binding(bound: HaBinding, asked: HaBinding) -> None:
    """Raise BindingRefusedError unless `asked` may follow `bound`: the same, or a higher number."""
    if asked.number <= bound.number and asked != bound:
        raise BindingRefusedError(asked, bound)
