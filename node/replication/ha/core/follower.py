"""The slave side: bind, report the own log, cut to the consistent point, append, ack.

Owns the work of a replica on links that it dialled. A candidate uses the same way to take the log
of a donor. Must not know how a fence counts. Sources: storage-formats 6.8, fault-matrix 7 C2.
"""

from __future__ import annotations

from node.replication.ha.core.effects import LogCut, LogWrite, LossReport, Send
from node.replication.ha.core.epochs import Epochs
from node.replication.ha.core.receiver import Receiver
from node.replication.ha.core.sender import HaProtocolError
from node.replication.ha.core.state import HaState, SlaveLink
from node.replication.ha.core.types import BindingRefusedError, check_binding
from node.replication.ha.core.wire import (
    Ack,
    Admit,
    Bind,
    Bound,
    Handshake,
    HandshakeReply,
    Transfer,
)


def on_bind(s: HaState, link: SlaveLink, frame: Bind) -> None:
    """Accept an epoch, or answer with the binding that forbids it."""
    if frame.binding.master_id != link.peer:
        raise HaProtocolError(f"replica {link.peer} binds for {frame.binding.master_id}")
    s.check_epoch(frame.binding.number)
    link.owed += 1
    try:
        check_binding(s.bound, frame.binding)
    except BindingRefusedError:
        s.counts["bindings_refused"] += 1
    else:
        if frame.binding != s.bound:
            s.step_down(f"bound to epoch {frame.binding.number} of replica {link.peer}")
            s.bind(frame.binding, frame.mode)
        link.is_master = True
    answer(s)


def on_admit(s: HaState, link: SlaveLink, frame: Admit) -> None:
    """Count as a full replica from now on: the master found it safe."""
    if link.is_master and frame == Admit(s.bound.number, s.replica.incarnation):
        s.admit()
    link.owed += 1
    answer(s)


def answer(s: HaState) -> None:
    """Send the owed answers, once the whole log is synced: an answer may decide a fence."""
    if not s.is_synced:
        return
    for link in list(s.links.values()):
        if not link.is_upstream:
            continue
        for _ in range(link.owed):
            s.fx.send.append(Send(link.id, _bound(s)))
        link.owed = 0
        if link.is_master and s.receiver is None:
            begin(s, link)


def begin(s: HaState, link: SlaveLink) -> None:
    """Ask for the log at the other end of a link."""
    link.had_session = True
    s.receiver = Receiver(link.id, s.now_ms, s.now_ms)
    s.fx.send.append(Send(link.id, Handshake(s.me)))


def on_reply(s: HaState, link: SlaveLink, frame: HandshakeReply) -> None:
    """Cut to the consistent point and take over the epochs up to it."""
    receiver = s.receiver
    if receiver is None or receiver.link != link.id:
        return
    receiver.contact_ms = s.now_ms
    if frame.last_epoch > s.bound.number:
        # A sender to follow is bound to the same epoch, or to this candidate's own.
        raise HaProtocolError(f"a log of epoch {frame.last_epoch}, bound to {s.bound.number}")
    point = receiver.on_reply(frame, s.epochs, s.end)
    position = max(point or 0, s.log.min_position)
    theirs = receiver.epochs
    assert theirs is not None
    before = s.epochs.entries
    if position < s.end:
        _cut(s, position)
    if point is not None:
        s.epochs.truncate(position, theirs)
    else:
        s.epochs = Epochs()
    s.epochs.adopt(theirs, s.end)
    if s.epochs.entries != before:
        s.fx.epochs = Epochs(s.epochs.entries)
    ack(s)


def on_transfer(s: HaState, link: SlaveLink, frame: Transfer, checked: object) -> None:
    """Append raw bytes and move the readers' limit."""
    receiver = s.receiver
    if receiver is None or receiver.link != link.id or not receiver.is_streaming:
        return  # Of an older session on this link.
    is_left_behind = is_behind(s, link, frame.position)
    receiver.check_transfer(frame, s.end, s.is_empty or is_left_behind)
    receiver.contact_ms, receiver.has_begun = s.now_ms, not is_left_behind
    assert receiver.epochs is not None
    if frame.body and not is_left_behind:
        if frame.position != s.end:
            s.end = s.durable = frame.position  # The log is empty and begins here.
        s.fx.write.append(LogWrite(frame.position, frame.body, checked))
        s.end += len(frame.body)
        # Bytes of an epoch come after its entry, so they never belong to a wrong epoch.
        if s.epochs.adopt(receiver.epochs, s.end):
            s.fx.epochs = Epochs(s.epochs.entries)
    s.known_confirm = max(s.known_confirm, frame.confirm)
    if min(frame.confirm, s.end) > s.confirm:
        s.set_confirm(min(frame.confirm, s.end))


def is_behind(s: HaState, link: SlaveLink, position: int) -> bool:
    """Whether the sender begins, at `position`, behind the end of this log.

    The sender stated in the handshake that all of this log is part of its own history, and has
    deleted the bytes that follow: only confirmed bytes expire. The log stays as it is until the
    shell has an image of the sender, and then begins again with that image.
    """
    receiver = s.receiver
    if receiver is None or receiver.link != link.id or not receiver.is_streaming:
        return False
    return not receiver.has_begun and not s.is_empty and position > s.end


def on_contact(s: HaState, link: SlaveLink) -> None:
    """Note a sign of life: a frame for the shell, or one that is of no use yet."""
    if s.receiver is not None and s.receiver.link == link.id:
        s.receiver.contact_ms = s.now_ms


def ack(s: HaState) -> None:
    """Report the synced position. The first report also says where to begin."""
    receiver = s.receiver
    if receiver is None or receiver.epochs is None:
        return
    position = 0 if s.is_empty else s.durable
    if receiver.is_streaming:
        if position <= receiver.acked:
            return
    elif not s.is_synced:
        return
    receiver.is_streaming = True
    _send_ack(s, receiver, position)


def tick(s: HaState) -> None:
    """Repeat the last ack, and close the link of a silent master."""
    receiver = s.receiver
    if receiver is None:
        return
    if s.now_ms - receiver.contact_ms >= s.settings.silence_ms:
        link = s.links[receiver.link]
        s.close(link, f"nothing heard for {s.settings.silence_ms} ms")
    elif receiver.is_streaming and s.now_ms - receiver.sent_ms >= s.settings.heartbeat_ms:
        _send_ack(s, receiver, receiver.acked)


def _send_ack(s: HaState, receiver: Receiver, position: int) -> None:
    receiver.acked, receiver.sent_ms = position, s.now_ms
    s.fx.send.append(Send(receiver.link, Ack(position)))


def _cut(s: HaState, point: int) -> None:
    """Set the end of the log aside and report the loss."""
    for link in s.downs():
        if link.sender is not None:
            s.close(link, "the log that was sent is cut")
    acked = s.acked_here
    s.fx.cut = LogCut(point, s.end)
    readable = max(s.confirm, acked or 0, min(s.acked_before, s.end))
    s.fx.losses.append(
        LossReport(s.epochs.last.number, point, s.end, max(point, readable), acked is not None)
    )
    s.counts["cuts"] += 1
    s.counts["cut_size_bytes"] += s.end - point
    s.end, s.durable = point, min(s.durable, point)
    s.known_confirm = min(s.known_confirm, point)
    if s.confirm > point:
        s.set_confirm(point)
    s.acked_here, s.acked_before = None, 0


def _bound(s: HaState) -> Bound:
    assert s.is_synced
    last = s.epochs.last.number
    standing, incarnation = s.replica.standing, s.replica.incarnation
    return Bound(s.bound, last, s.end, s.confirm, s.known_confirm, standing, incarnation)
