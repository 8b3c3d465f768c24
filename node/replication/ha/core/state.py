"""What one replica knows, and its links. The rules are in `follower`, `leader` and `machine`.

Owns the fields and the steps that both sides share: bind, step down, close a link.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Final, NamedTuple

from node.replication.ha.core.ceiling import EpochCeiling
from node.replication.ha.core.copies import Admission, Copies, Waiters
from node.replication.ha.core.effects import Close, Effects, LinkId, LogView, RoleChange
from node.replication.ha.core.epochs import Epochs
from node.replication.ha.core.receiver import Receiver
from node.replication.ha.core.sender import EpochJumpError, Sender
from node.replication.ha.core.types import (
    NO_REPLICA,
    Binding,
    Mode,
    ReplicaState,
    Role,
    Settings,
    Standing,
)
from node.replication.ha.core.wire import Bound, Handshake


class Link:
    """One connection. The side that dialled is the slave side of everything on it."""

    __slots__ = (
        "answered",
        "asked",
        "had_session",
        "handshake",
        "id",
        "is_master",
        "is_upstream",
        "marks",
        "owed",
        "peer",
        "promise",
        "sender",
    )

    def __init__(self, link_id: LinkId, peer: int, *, is_upstream: bool) -> None:
        self.id = link_id
        self.peer = peer
        """NO_REPLICA until a dialler said HELLO."""
        self.is_upstream = is_upstream
        """This replica dialled."""
        # Upstream: what I owe the peer and take from it.
        self.owed = 0
        """BOUND frames to send once the log is synced."""
        self.is_master = False
        """The peer showed the binding that I hold now."""
        self.had_session = False
        """A handshake went out, so frames of an older session may still come."""
        # Downstream: what the peer promised and takes from me.
        self.asked = self.answered = 0
        """Frames that are answered by a BOUND, and the answers so far."""
        self.promise: Bound | None = None
        """The peer is bound to my current epoch."""
        self.handshake: Handshake | None = None
        self.sender: Sender | None = None
        self.marks: dict[int, int] = {}
        """By joining replica: the count of `answered` that confirms my epoch for its admission."""


class Read(NamedTuple):
    """A read that waits until this master knows that it is the only one."""

    read: object
    marks: dict[LinkId, int]
    """By link: the count of `answered` that confirms the epoch for it."""


class State:
    """Fields of the machine. `fx` collects what the current input wants done."""

    def __init__(
        self,
        settings: Settings,
        me: int,
        log: LogView,
        replica: ReplicaState,
        epochs: Epochs,
        end: int,
        mode: Mode | None,
    ) -> None:
        assert me in settings.replica_ids, f"replica {me} is not of {settings.replica_ids}"
        assert 1 <= settings.copies <= len(settings.replica_ids), f"{settings.copies} copies"
        self.settings: Final = settings
        self.me: Final = me
        self.log: Final = log
        self.replica = replica
        self.epochs = epochs
        self.end = self.durable = end
        self.confirm = self.known_confirm = 0
        self.own_mode = mode
        """None: as the group was served last."""
        self.role = Role.SLAVE
        self.links: dict[LinkId, Link] = {}
        self.receiver: Receiver | None = None
        self.copies = Copies(settings, 0)
        self.waiters = Waiters()
        self.admissions: dict[int, Admission] = {}
        self.reads: deque[Read] = deque()
        self.acked_here: int | None = None
        """End of the last append that this process acknowledged as master; None: it was none."""
        was_async_master = replica.bound.master_id == me and replica.mode is Mode.ASYNC
        self.acked_before = end if was_async_master else 0
        """An earlier process acknowledged what was durable here, all but what was under way."""
        self.highest_seen = replica.bound.number
        """Invariant: below EPOCH_END."""
        self.now_ms = 0
        self.ceiling = EpochCeiling(self.highest_seen)
        """How far ahead the epoch of a peer or of an advice may be."""
        self.fx = Effects()
        self.counts: Counter[str] = Counter()

    @property
    def bound(self) -> Binding:
        """What this replica is bound to."""
        return self.replica.bound

    @property
    def mode(self) -> Mode:
        """When this replica acks as master."""
        return self.replica.mode if self.own_mode is None else self.own_mode

    @property
    def is_synced(self) -> bool:
        """Whether all of the log is durable."""
        return self.durable == self.end

    @property
    def is_empty(self) -> bool:
        """Whether the log holds nothing."""
        return self.end <= self.log.min_position

    def up(self, peer: int) -> Link | None:
        """Return the link on which I am the slave side, if it is there."""
        return next((x for x in self.links.values() if x.is_upstream and x.peer == peer), None)

    def downs(self) -> list[Link]:
        """Return the links of peers that dialled and said who they are; one for each."""
        return [x for x in self.links.values() if not x.is_upstream and x.peer != NO_REPLICA]

    def bind(self, binding: Binding, mode: Mode) -> None:
        """Bind to an epoch and note how it is served; durable before anything that follows."""
        self.replica = self.replica._replace(bound=binding, mode=mode)
        self.highest_seen = max(self.highest_seen, binding.number)
        self.fx.state = self.replica
        self.receiver = None
        for link in list(self.links.values()):
            link.is_master = False
            if link.sender is not None:
                self.close(link, "bound to another epoch")

    def check_epoch(self, number: int) -> None:
        """Raise EpochJumpError for an epoch of a peer that is too far ahead; nothing changed."""
        if self.ceiling.refuses(number):
            self.counts["epoch_jumps"] += 1
            raise EpochJumpError(number, self.ceiling.limit)

    def pass_time(self, now_ms: int) -> None:
        """Set the time."""
        self.now_ms = now_ms
        self.ceiling.pass_time(now_ms, self.highest_seen)

    def admit(self) -> None:
        """Count from now on."""
        self.replica = self.replica._replace(standing=Standing.FULL)
        self.fx.state = self.replica

    def forget(self, incarnation: int) -> None:
        """Count no more, like a replica with a new disk."""
        self.replica = self.replica._replace(standing=Standing.JOINING, incarnation=incarnation)
        self.fx.state = self.replica

    def change_role(self, role: Role, reason: str) -> None:
        """Note a change for the shell."""
        self.role = role
        number, master_id, _ = self.bound
        self.fx.role_changes.append(RoleChange(role, number, master_id, reason))

    def step_down(self, reason: str) -> None:
        """Serve no more: appends in flight may or may not survive."""
        if self.role is Role.SLAVE:
            return
        self.fx.resolved += self.waiters.give_up()
        self.fx.reads_failed += [read.read for read in self.reads]
        self.reads.clear()
        self.admissions.clear()
        self.receiver = None
        for link in self.links.values():
            link.promise = link.handshake = link.sender = None
        self.change_role(Role.SLAVE, reason)

    def set_confirm(self, position: int) -> None:
        """Move the limit of readers."""
        self.confirm = self.fx.confirm = position

    def close(self, link: Link, reason: str) -> None:
        """Forget a link and have it closed."""
        self.counts["links_closed"] += 1
        self.drop(link)
        self.fx.close.append(Close(link.id, reason))

    def drop(self, link: Link) -> None:
        """Forget a link."""
        self.links.pop(link.id, None)
        if self.receiver is not None and self.receiver.link == link.id:
            self.receiver = None
