"""The state of one replica, and its links. The rules are in `follower`, `leader` and `machine`.

Owns the fields and the steps that both sides share: bind, step down, close a link.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from node.replication.ha.core.ceiling import EpochCeiling
from node.replication.ha.core.copies import Copies, CopyAdmission
from node.replication.ha.core.effects import (
    Close,
    HaEffects,
    HaLogView,
    HaRoleChange,
    LinkId,
    Resolved,
)
from node.replication.ha.core.epochs import Epochs
from node.replication.ha.core.receiver import Receiver
from node.replication.ha.core.sender import EpochJumpError, HaSender
from node.replication.ha.core.types import (
    NO_REPLICA,
    AckMode,
    HaBinding,
    HaRole,
    HaSettings,
    HaStanding,
    ReplicaState,
)
from node.replication.ha.core.wire import Bound, Handshake
from store.errors import Outcome


@dataclass(slots=True, eq=False)
class SlaveLink:
    """One connection. The side that dialled is the slave side of everything on it."""

    id: LinkId
    peer: int
    """NO_REPLICA until the dialling side said HELLO."""
    is_upstream: bool
    """Whether this replica dialled."""
    # Upstream: answers owed to the peer, and the stream from it.
    owed: int = 0
    """BOUND frames to send once the log is synced."""
    is_master: bool = False
    """Whether the peer showed the current binding of this replica."""
    had_session: bool = False
    """Whether a handshake was sent, so that frames of an older session may still arrive."""
    # Downstream: the peer's promises, and the stream to it.
    asked: int = 0
    """Frames that demand a BOUND as answer."""
    answered: int = 0
    promise: Bound | None = None
    """The promise of a peer that is bound to this replica's current epoch."""
    handshake: Handshake | None = None
    sender: HaSender | None = None
    marks: dict[int, int] = field(default_factory=dict)
    """By joining replica: the count of `answered` that confirms the epoch for its admission."""


class HaState:
    """Fields of the machine. `fx` collects the effects of the current input."""

    def __init__(
        self,
        settings: HaSettings,
        me: int,
        log: HaLogView,
        replica: ReplicaState,
        epochs: Epochs,
        end: int,
        *,
        mode: AckMode | None = AckMode.SYNC,
        confirm: int = 0,
    ) -> None:
        """All of the log up to `end` is durable, and ends with a record. `mode` says when this
        replica acks as master; None: in the mode of its binding. `confirm`: readers here have seen
        the log up to there."""
        assert me in settings.replica_ids, f"replica {me} is not of {settings.replica_ids}"
        assert 1 <= settings.copies <= len(settings.replica_ids), f"{settings.copies} copies"
        self.settings: Final = settings
        self.me: Final = me
        self.log: Final = log
        self.replica = replica
        # A crash may have lost the bytes before the start of an epoch that was just adopted.
        epochs.trim(end)
        self.epochs = epochs
        self.end = self.durable = end
        assert confirm <= end, f"readers saw {confirm} of a log that ends at {end}"
        self.confirm = self.known_confirm = confirm
        self.own_mode = mode
        """None: the mode in which the group was served last."""
        self.role = HaRole.SLAVE
        self.links: dict[LinkId, SlaveLink] = {}
        self.receiver: Receiver | None = None
        self.copies = Copies(settings, 0)
        self.waiters: deque[tuple[int, object]] = deque()
        """Undecided appends of this master, oldest first: where each ends, and who waits."""
        self.admissions: dict[int, CopyAdmission] = {}
        self.proof: dict[LinkId, int] | None = None
        """Proof under way that this is the only master. By link: the count of `answered` that
        confirms the epoch."""
        self.acked_here: int | None = None
        """End of the last append that this process acknowledged as master; None: it was no
        master."""
        was_async_master = replica.bound.master_id == me and replica.mode is AckMode.ASYNC
        self.acked_before = end if was_async_master else 0
        """An earlier process acknowledged what was durable up to here, except appends under way."""
        self.highest_seen = replica.bound.number
        """Invariant: below EPOCH_END."""
        self.now_ms = 0
        self.ceiling = EpochCeiling(self.highest_seen)
        """Bound of the epoch in a frame or an advice."""
        self.fx = HaEffects()
        self.counts: Counter[str] = Counter()

    @property
    def bound(self) -> HaBinding:
        """The binding of this replica."""
        return self.replica.bound

    @property
    def highest_epoch(self) -> int:
        """The highest epoch that this replica ever saw: a new one has to be above it."""
        return max(self.highest_seen, self.epochs.last.number)

    @property
    def mode(self) -> AckMode:
        """When this replica acks as master."""
        return self.replica.mode if self.own_mode is None else self.own_mode

    @property
    def is_synced(self) -> bool:
        """Whether all of the log is durable."""
        return self.durable == self.end

    @property
    def is_empty(self) -> bool:
        """Whether the log is empty."""
        return self.end <= self.log.min_position

    def up(self, peer: int) -> SlaveLink | None:
        """Return the link on which this replica is the slave side, if it exists."""
        return next((x for x in self.links.values() if x.is_upstream and x.peer == peer), None)

    def downs(self) -> list[SlaveLink]:
        """Return the links that peers dialled and identified themselves on; one for each peer."""
        return [x for x in self.links.values() if not x.is_upstream and x.peer != NO_REPLICA]

    def bind(self, binding: HaBinding, mode: AckMode) -> None:
        """Bind to an epoch and note its mode; durable before any later effect."""
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
        """Count as a full replica from now on."""
        self.replica = self.replica._replace(standing=HaStanding.FULL)
        self.fx.state = self.replica

    def forget(self, incarnation: int) -> None:
        """Count no more, like a replica with a new disk."""
        self.replica = self.replica._replace(standing=HaStanding.JOINING, incarnation=incarnation)
        self.fx.state = self.replica

    def change_role(self, role: HaRole, reason: str) -> None:
        """Note a change of role for the shell."""
        self.role = role
        number, master_id, _ = self.bound
        self.fx.role_changes.append(HaRoleChange(role, number, master_id, reason))

    def step_down(self, reason: str) -> None:
        """Stop serving: appends in flight may or may not survive."""
        if self.role is HaRole.SLAVE:
            return
        self.fx.resolved += self.give_up()
        self.admissions.clear()
        self.proof = self.receiver = None
        for link in self.links.values():
            link.promise = link.handshake = link.sender = None
        self.change_role(HaRole.SLAVE, reason)

    def give_up(self) -> list[Resolved]:
        """Remove and return the undecided appends with the outcome unknown."""
        given_up = [Resolved(waiter, Outcome.UNKNOWN) for _, waiter in self.waiters]
        self.waiters.clear()
        return given_up

    def set_confirm(self, position: int) -> None:
        """Set the limit of readers."""
        self.confirm = self.fx.confirm = position

    def close(self, link: SlaveLink, reason: str) -> None:
        """Forget a link and have it closed."""
        self.counts["links_closed"] += 1
        self.drop(link)
        self.fx.close.append(Close(link.id, reason))

    def drop(self, link: SlaveLink) -> None:
        """Forget a link."""
        self.links.pop(link.id, None)
        if self.receiver is not None and self.receiver.link == link.id:
            self.receiver = None
