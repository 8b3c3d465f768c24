"""The stream to one replica: from its handshake to the bytes it lacks.

Owns the position of a stream; must not know roles, fences or which replica counts. A master has one
for each slave, a donor one for the candidate that takes its log. Source: storage-formats 6.8.
"""

from __future__ import annotations

from collections.abc import Iterator

from node.replication.ha.core.effects import HaLogView, LinkId, Send, Ship
from node.replication.ha.core.epochs import Epochs
from node.replication.ha.core.types import HaError, HaSettings
from node.replication.ha.core.wire import HandshakeReply, Transfer


class HaProtocolError(HaError):
    """A peer's message is impossible. Nothing was changed; the link is closed."""

    code = "ha.protocol"
    text = "{detail}; the link is closed, the peer will dial again"
    detail: str


class EpochJumpError(HaProtocolError):
    """A peer showed an epoch that no promotions explain. Refused before it was bound or noted."""

    code = "ha.epoch_jump"

    def __init__(self, epoch: int, limit: int) -> None:
        HaError.__init__(self, epoch, limit)
        self.epoch, self.limit = epoch, limit
        self.detail = (
            f"epoch {epoch} is too far ahead, at most {limit} is taken now (check which hosts "
            f"can reach the peer port)"
        )


class HaSender:
    """A stream on one link. Made when the peer's handshake arrives."""

    def __init__(self, link: LinkId, now_ms: int) -> None:
        self.link = link
        self.next: int | None = None
        """First byte not yet shipped; None until the slave reported its position."""
        self.acked = 0
        self._first = 0
        self._confirm_sent = -1
        self._sent_ms = self.contact_ms = now_ms

    def reply(self, epochs: Epochs, end: int) -> Send:
        """Answer the handshake."""
        frame = HandshakeReply(end, epochs.last.number, epochs.entries)
        return Send(self.link, frame)

    def on_ack(self, position: int, log: HaLogView, end: int, now_ms: int) -> None:
        """Note the position up to which the slave has synced. Raises HaProtocolError.

        The first report is checked like all others (RocketMQ trusts it): a slave that claims more
        than the log holds must not make bytes look replicated.
        """
        self.contact_ms = now_ms
        if self.next is not None:
            if not self.acked <= position <= self.next:
                raise HaProtocolError(f"ack of {position}, not in {self.acked}..{self.next}")
            self.acked = position
            return
        if not 0 <= position <= end:
            raise HaProtocolError(f"first offset {position}, not in 0..{end}")
        if position > 0 and log.min_position <= position:
            self.next = self._first = self.acked = position
            return
        # The slave has nothing, or its next bytes have expired here. Its position is no ack of the
        # bytes it lacks below: `acked` stays 0.
        self.next = self._first = log.min_position

    def ship(
        self,
        log: HaLogView,
        epochs: Epochs,
        end: int,
        confirm: int,
        settings: HaSettings,
        now_ms: int,
    ) -> Iterator[Ship | Send]:
        """Send new bytes, within the window; only a header if `confirm` alone is new."""
        if self.next is None:
            return
        while self.next < end:
            lo = self.next
            if lo - max(self.acked, self._first) >= settings.window_size_bytes:
                break
            epoch = epochs.at(lo)
            # A transfer never spans two epochs. No epoch: bytes from before the first.
            first = epochs.entries[0].start if epochs.entries else end
            limit = epochs.end_of(epoch.number, end) if epoch.number else first
            hi = log.ship_end(lo, limit, settings.transfer_size_bytes)
            assert lo < hi <= limit, f"transfer [{lo}, {hi}) of [{lo}, {limit})"
            yield Ship(self.link, Transfer(lo, epoch.number, epoch.start, confirm), lo, hi)
            self.next = hi
            self._confirm_sent, self._sent_ms = confirm, now_ms
        if confirm != self._confirm_sent or now_ms - self._sent_ms >= settings.heartbeat_ms:
            epoch = epochs.at(self.next)
            yield Send(self.link, Transfer(self.next, epoch.number, epoch.start, confirm))
            self._confirm_sent, self._sent_ms = confirm, now_ms
