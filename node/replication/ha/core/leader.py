"""The master side: the fence, the longest log, streams, copies, acks.

Owns the work of a candidate and a master, and that of a donor for a candidate. Must not know how a
slave cuts its log. Sources: fault-matrix 7 C2, C3; design 8.
"""

from __future__ import annotations

from node.config.limits import EPOCH_END
from node.replication.ha.core import follower
from node.replication.ha.core.copies import Copies, CopyAdmission
from node.replication.ha.core.effects import LossReport, Resolved, Send
from node.replication.ha.core.epochs import Epochs, Rank
from node.replication.ha.core.sender import HaProtocolError, HaSender
from node.replication.ha.core.state import HaState, SlaveLink
from node.replication.ha.core.types import (
    AckMode,
    HaBinding,
    HaRole,
    HaStanding,
    PromotionError,
)
from node.replication.ha.core.wire import Ack, Admit, Bind, Bound, Handshake, Hello
from store.errors import Outcome


def promote(s: HaState, nonce: int, number: int) -> None:
    """Begin a promotion: bind the own epoch first, then ask all others."""
    number = number or s.highest_seen + 1
    check_promotion(s, number)
    s.step_down("promoted again")
    s.bind(HaBinding(number, s.me, nonce), s.mode)
    s.change_role(HaRole.CANDIDATE, "promotion begins")
    for link in s.downs():
        link.promise = link.handshake = None
        ask(s, link)
    evaluate(s)


def check_promotion(s: HaState, number: int) -> None:
    """Raise PromotionError if this replica cannot begin this epoch."""
    if s.replica.standing is not HaStanding.FULL:
        raise PromotionError(f"replica {s.me} has a new disk and does not count yet")
    if number >= EPOCH_END:
        raise PromotionError(
            f"epoch {number} is the end of all epochs, which was forged: a new cluster is the way "
            f"back (docs/operations.md)"
        )
    if number <= s.bound.number:
        raise PromotionError(f"epoch {number} is not above {s.bound.number}, which is bound")


def ask(s: HaState, link: SlaveLink) -> None:
    """Ask a peer to bind this replica's epoch, or to confirm that it still is bound."""
    link.asked += 1
    s.fx.send.append(Send(link.id, Bind(s.bound, s.mode)))


def begin_proof(s: HaState) -> None:
    """Ask all peers once more, and note which answers confirm the epoch.

    A newer master binds `fence_count` replicas before it serves. A read is safe once fewer than
    that lack a confirmation of this epoch from after its beginning: a newer master then acks only
    after the read.
    """
    assert s.role is HaRole.MASTER, f"a {s.role.value} proves nothing"
    assert s.proof is None, "a proof is under way"
    s.proof = {}
    for link in s.downs():
        ask(s, link)
        s.proof[link.id] = link.asked
    _check_proof(s)


def _check_proof(s: HaState) -> None:
    if s.proof is None or s.confirm < s.copies.epoch_start:
        return  # Bytes acked in older epochs may still be above the readers' limit.
    confirmed = sum(
        link.promise is not None
        and link.promise.standing is HaStanding.FULL
        and link.answered >= s.proof.get(link.id, link.asked + 1)
        for link in s.downs()
    )
    if confirmed + s.settings.fence_count >= len(s.settings.replica_ids):
        s.proof, s.fx.is_proven = None, True


def on_hello(s: HaState, link: SlaveLink, frame: Hello) -> None:
    """Note which replica dialled; close its older link."""
    if frame.group != s.settings.group:
        raise HaProtocolError(f"group {frame.group!r}, this is {s.settings.group!r}")
    if frame.replica_id == s.me or frame.replica_id not in s.settings.replica_ids:
        raise HaProtocolError(f"replica {frame.replica_id} is not of this group")
    for other in s.downs():
        if other.peer == frame.replica_id:
            s.close(other, "the replica dialled again")
    link.peer = frame.replica_id
    if s.role is not HaRole.SLAVE:
        ask(s, link)
        for joining in s.admissions:
            link.marks[joining] = link.asked
        if s.proof is not None:
            s.proof[link.id] = link.asked
    evaluate(s)


def on_bound(s: HaState, link: SlaveLink, frame: Bound) -> None:
    """Count a promise, or step down for a newer epoch."""
    s.check_epoch(max(frame.binding.number, frame.last_epoch))
    link.answered += 1
    s.highest_seen = max(s.highest_seen, frame.binding.number)
    if s.role is HaRole.SLAVE:
        return
    if frame.binding.number > s.bound.number:
        s.step_down(f"replica {link.peer} is bound to epoch {frame.binding.number}")
        return
    if frame.binding != s.bound:
        if frame.binding.number == s.bound.number:
            _contest(s, frame.binding)
        return  # An older answer, or another master's binding of the same number: no promise.
    link.promise = frame
    if s.role is HaRole.MASTER:
        _consider(s, link, frame)
        _check_proof(s)
    evaluate(s)


def _contest(s: HaState, other: HaBinding) -> None:
    """Have a higher number bound: the replica that answered never leaves its pair for this one.

    A master always does, or that replica stays away until the next promotion. Of candidates, those
    whose rival has no higher id: the highest gets past all others.
    """
    s.counts["promises_refused"] += 1
    s.fx.is_contested = s.role is HaRole.MASTER or s.me >= other.master_id


def evaluate(s: HaState) -> None:
    """Serve if the fence stands and no log in it is longer; otherwise take that log (C3)."""
    if s.role is not HaRole.CANDIDATE or not s.is_synced:
        return
    fence = [
        (Rank(link.promise.last_epoch, link.promise.end), link.peer)
        for link in s.downs()
        if link.promise is not None and link.promise.standing is HaStanding.FULL
    ]
    if len(fence) + 1 < s.settings.fence_count:
        return
    best, donor = max(fence, default=(Rank(0, 0), s.me))
    if s.epochs.rank(s.end) >= best:
        _serve(s)
    else:
        _take_log_of(s, donor)


def _take_log_of(s: HaState, donor: int) -> None:
    link = s.up(donor)
    if link is None or (s.receiver is not None and s.receiver.link == link.id):
        return
    if link.had_session:
        # Frames of that session may still arrive, and the donor's log may have changed since.
        s.close(link, "a fresh link is needed to take the donor's log")
        return
    follower.begin(s, link)


def _serve(s: HaState) -> None:
    if s.receiver is not None and (link := s.links.get(s.receiver.link)) is not None:
        s.close(link, "the donor's log is taken")
    confirms = [link.promise.known_confirm for link in s.downs() if link.promise is not None]
    readable = max([s.known_confirm, *confirms])
    if readable > s.end:
        epoch = s.epochs.last.number
        s.fx.losses.append(LossReport(epoch, s.end, readable, readable, False))
    s.known_confirm = min(s.known_confirm, s.end)
    s.epochs.append(s.bound.number, s.end)
    s.fx.epochs = Epochs(s.epochs.entries)
    s.copies = Copies(s.settings, s.end)
    s.acked_here = s.end
    s.change_role(HaRole.MASTER, "the fence stands")
    for link in s.downs():
        if link.promise is not None:
            _consider(s, link, link.promise)
        else:
            ask(s, link)  # A refusal that a candidate passed over counts now.
        _stream(s, link)
    advance(s)


def on_handshake(s: HaState, link: SlaveLink, frame: Handshake) -> None:
    """Begin a stream: as master, or as donor of the candidate that this replica is bound to."""
    if frame.replica_id != link.peer:
        raise HaProtocolError(f"replica {link.peer} shakes hands as {frame.replica_id}")
    if s.role is not HaRole.SLAVE:
        if link.promise is not None:
            link.handshake = frame
            _stream(s, link)
    elif s.bound.master_id == link.peer:
        link.sender = HaSender(link.id, s.now_ms)
        s.fx.send.append(link.sender.reply(s.epochs, s.end))


def _stream(s: HaState, link: SlaveLink) -> None:
    if s.role is HaRole.MASTER and link.handshake is not None:
        link.sender = HaSender(link.id, s.now_ms)
        link.handshake = None
        s.fx.send.append(link.sender.reply(s.epochs, s.end))


def on_ack(s: HaState, link: SlaveLink, frame: Ack) -> None:
    """Count the synced bytes of a slave."""
    sender = link.sender
    if sender is None:
        return  # Of an older session.
    sender.on_ack(frame.position, s.log, s.end, s.now_ms)
    if s.role is HaRole.MASTER and link.promise is not None:
        if link.promise.standing is HaStanding.FULL:
            s.copies.on_ack(link.peer, sender.acked)
            advance(s)
        _admit(s, link)


def advance(s: HaState) -> None:
    """Move the readers' limit and decide appends."""
    if s.role is not HaRole.MASTER:
        return
    limit = s.durable if s.mode is AckMode.ASYNC else s.copies.position(s.durable)
    if limit > s.confirm:
        s.set_confirm(limit)
        _check_proof(s)
    while s.waiters and s.waiters[0][0] <= limit:
        s.acked_here, waiter = s.waiters.popleft()
        s.fx.resolved.append(Resolved(waiter, Outcome.APPLIED))


def pump(s: HaState) -> None:
    """Fill every stream. Bytes of this input are not in the log yet: the next input ships them."""
    if s.fx.write:
        return
    for link in s.downs():
        if link.sender is not None:
            s.fx.send += link.sender.ship(s.log, s.epochs, s.end, s.confirm, s.settings, s.now_ms)


def tick(s: HaState) -> None:
    """Close links of silent slaves."""
    for link in s.downs():
        sender = link.sender
        if sender is not None and s.now_ms - sender.contact_ms >= s.settings.silence_ms:
            s.close(link, f"nothing heard for {s.settings.silence_ms} ms")


# Admission of a replica with a new disk into the count.


def _consider(s: HaState, link: SlaveLink, promise: Bound) -> None:
    """Note a promise to a serving master, for admissions."""
    if promise.standing is HaStanding.JOINING:
        s.copies.forget(link.peer)
        admitted = s.admissions.get(link.peer)
        if admitted is None or admitted.incarnation != promise.incarnation:
            others = set(s.settings.replica_ids) - {s.me, link.peer}
            s.admissions[link.peer] = CopyAdmission(promise.incarnation, others)
            for other in s.downs():
                if other is not link:
                    ask(s, other)
                    other.marks[link.peer] = other.asked
    else:
        s.admissions.pop(link.peer, None)
    for joining, admission in s.admissions.items():
        if link.answered >= link.marks.get(joining, link.asked + 1):
            admission.missing.discard(link.peer)


def _admit(s: HaState, link: SlaveLink) -> None:
    admission, sender = s.admissions.get(link.peer), link.sender
    if admission is None or admission.missing or admission.is_sent or sender is None:
        return
    if sender.next is not None and sender.acked >= max(s.copies.epoch_start, s.confirm):
        admission.is_sent = True
        link.asked += 1
        s.fx.send.append(Send(link.id, Admit(s.bound.number, admission.incarnation)))
