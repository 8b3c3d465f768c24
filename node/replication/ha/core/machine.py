"""One replica of a master-slave group: inputs in, effects out (design 8, fault-matrix 7 C2, C3).

Owns the inputs and their dispatch; must not know sockets, files or the source of the time. Each
input returns its `HaEffects`; the shell carries them out in order before the next input.

A replica keeps dialling all others and follows the one it is bound to. A promotion binds its epoch
on a fence of replicas, takes the longest log among them, and only then serves. No rule here trusts
a controller: its advice starts a promotion, and the fence decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from node.config.limits import EPOCH_END
from node.replication.ha.core import follower, leader
from node.replication.ha.core.effects import HaEffects, LinkId, Send
from node.replication.ha.core.sender import EpochJumpError, HaProtocolError
from node.replication.ha.core.state import HaState, SlaveLink
from node.replication.ha.core.types import (
    NO_REPLICA,
    HaBusyError,
    HaRole,
    MachineNotMasterError,
    PromotionError,
)
from node.replication.ha.core.wire import (
    Ack,
    Admit,
    Bind,
    Bound,
    Frame,
    Handshake,
    HandshakeReply,
    Hello,
    Transfer,
)


class HaMachine:
    """One replica; see the module. One thread; no call blocks."""

    def __init__(self, state: HaState) -> None:
        """Start from the stored state. A restarted master never resumes its epoch: it may have
        shipped bytes that it lost."""
        self.state: Final = state

    # Facts.

    @property
    def role(self) -> HaRole:
        """The current role of this replica."""
        return self.state.role

    def check_append(self) -> None:
        """Raise MachineNotMasterError or HaBusyError unless an append may be written now."""
        s = self.state
        if s.role is not HaRole.MASTER:
            master = s.bound.master_id
            raise MachineNotMasterError(NO_REPLICA if master == s.me else master)
        if len(s.waiters) >= s.settings.waiter_count_max:
            raise HaBusyError(len(s.waiters), s.settings.waiter_count_max)

    def stats(self) -> dict[str, int]:
        """Return counters, and fill levels with their limits."""
        s = self.state
        held = {"waiters": len(s.waiters), "waiters_max": s.settings.waiter_count_max}
        return dict(s.counts) | held

    # Links. A link id is used once.

    def dialled(self, link_id: LinkId, peer: int) -> HaEffects:
        """Add a connection that was dialled to another replica."""
        s = self._begin()
        old = s.up(peer)
        if old is not None:
            s.close(old, "dialled again")
        s.links[link_id] = SlaveLink(link_id, peer, is_upstream=True)
        hello = Hello(s.me, s.replica.incarnation, s.settings.group)
        s.fx.send.append(Send(link_id, hello))
        leader.evaluate(s)
        return self._end()

    def accepted(self, link_id: LinkId) -> HaEffects:
        """Add a connection that was accepted; its first frame names the peer."""
        s = self._begin()
        s.links[link_id] = SlaveLink(link_id, NO_REPLICA, is_upstream=False)
        return self._end()

    def disconnected(self, link_id: LinkId) -> HaEffects:
        """Forget a link that is gone."""
        s = self._begin()
        link = s.links.get(link_id)
        if link is not None:
            s.drop(link)
            leader.evaluate(s)
        return self._end()

    def received(self, link_id: LinkId, frame: Frame, checked: object = None) -> HaEffects:
        """Take a frame. An impossible one closes the link and changes nothing else.

        `checked` comes back in the `Write` of the frame's bytes."""
        s = self._begin()
        link = s.links.get(link_id)
        if link is not None:
            try:
                _receive(s, link, frame, checked)
            except HaProtocolError as error:
                s.counts["violations"] += 1
                s.close(link, str(error))
                leader.evaluate(s)
        return self._end()

    def on_contact(self, link_id: LinkId) -> HaEffects:
        """Note a sign of life on a link: a frame for the shell alone."""
        s = self._begin()
        link = s.links.get(link_id)
        if link is not None:
            follower.on_contact(s, link)
        return self._end()

    def is_behind(self, link_id: LinkId, position: int) -> bool:
        """Whether the sender on a link has deleted the bytes that follow this log, and begins at
        `position`. This log then has to begin there, too: with an image of that sender."""
        link = self.state.links.get(link_id)
        return link is not None and follower.is_behind(self.state, link, position)

    # The log.

    def appended_all(self, appends: Iterable[tuple[int, object]]) -> HaEffects:
        """Take several appends, in order: they share transfers and a sync."""
        s = self._begin()
        assert s.role is HaRole.MASTER, "check_append comes first"
        for end, waiter in appends:
            assert end > s.end, f"append to {end} of a log that ends at {s.end}"
            s.end = end
            s.waiters.append((end, waiter))
        return self._end()

    def durable_to(self, position: int) -> HaEffects:
        """Note that the log is synced up to `position`, by a sync that began after the last cut."""
        s = self._begin()
        assert s.durable <= position <= s.end, f"{position}, not {s.durable}..{s.end}"
        s.durable = position
        follower.answer(s)
        follower.ack(s)
        leader.advance(s)
        leader.evaluate(s)
        return self._end()

    # Time and operators.

    def tick(self, now_ms: int) -> HaEffects:
        """Set the time, from a clock that never goes back."""
        s = self._begin()
        s.pass_time(now_ms)
        follower.tick(s)
        leader.tick(s)
        leader.evaluate(s)
        return self._end()

    def promote(self, nonce: int, number: int = 0) -> HaEffects:
        """Try to become master. `nonce` is random, `number` the epoch; 0: one above all known.

        Raises PromotionError. A role change reports success.
        """
        leader.promote(self._begin(), nonce, number)
        return self._end()

    def check_promotion(self) -> None:
        """Raise PromotionError unless `promote` with a number above all others would begin."""
        leader.check_promotion(self.state, self.state.highest_seen + 1)

    def surpass(self, nonce: int) -> HaEffects:
        """Promote the master or candidate of a contested epoch again, with a higher number. A slave
        stays one; at the end of all epochs nothing changes."""
        s = self._begin()
        if s.role is not HaRole.SLAVE and s.highest_seen + 1 < EPOCH_END:
            leader.promote(s, nonce, 0)
        return self._end()

    def advise(self, number: int, master_id: int, nonce: int) -> HaEffects:
        """Take a controller's proposal as advice. Impossible advice is counted."""
        s = self._begin()
        if master_id == s.me:
            try:
                s.check_epoch(number)
                leader.promote(s, nonce, number)
            except (PromotionError, EpochJumpError):
                s.counts["advice_refused"] += 1
        return self._end()

    def resign(self, reason: str) -> HaEffects:
        """Stop serving until promoted again, and close the slaves' links so that they notice.

        Undecided appends get the outcome unknown: wait for them first.
        """
        s = self._begin()
        if s.role is not HaRole.SLAVE:
            s.step_down(reason)
            for link in s.downs():
                s.close(link, reason)
        return self._end()

    def lose_memory(self, incarnation: int) -> HaEffects:
        """Stop counting, under a new incarnation, until the whole log is here again: this disk is
        an old copy (fault-matrix H11). Every link is closed and made again."""
        s = self._begin()
        s.step_down("this disk is an old copy")
        s.forget(incarnation)
        for link in list(s.links.values()):
            s.close(link, "this disk is an old copy")
        return self._end()

    def prove_master(self) -> HaEffects:
        """Prove that no newer master can have acked an append before this call, on a master that
        proves nothing else. Later effects say `is_proven`, unless it steps down before."""
        leader.begin_proof(self._begin())
        return self._end()

    def _begin(self) -> HaState:
        self.state.fx = HaEffects()
        return self.state

    def _end(self) -> HaEffects:
        leader.pump(self.state)
        return self.state.fx


def _receive(s: HaState, link: SlaveLink, frame: Frame, checked: object) -> None:
    if link.is_upstream:
        match frame:
            case Bind():
                follower.on_bind(s, link, frame)
            case HandshakeReply():
                follower.on_reply(s, link, frame)
                leader.evaluate(s)
            case Transfer():
                follower.on_transfer(s, link, frame, checked)
            case Admit():
                follower.on_admit(s, link, frame)
            case _:
                raise HaProtocolError(f"{type(frame).__name__} from the side that was dialled")
        return
    if isinstance(frame, Hello) == (link.peer != NO_REPLICA):
        raise HaProtocolError(f"{type(frame).__name__} where HELLO comes first, and once")
    match frame:
        case Hello():
            leader.on_hello(s, link, frame)
        case Bound():
            leader.on_bound(s, link, frame)
        case Handshake():
            leader.on_handshake(s, link, frame)
        case Ack():
            leader.on_ack(s, link, frame)
        case _:
            raise HaProtocolError(f"{type(frame).__name__} from the side that dialled")
