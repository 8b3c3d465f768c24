"""The stream from one replica: where to cut, which bytes to append, which to ack.

Owns the checks of everything a master (or a donor) sends; must not know why this replica follows
it. Source: storage-formats 6.8.
"""

from __future__ import annotations

from dataclasses import dataclass

from node.replication.ha.core.effects import LinkId
from node.replication.ha.core.epochs import Epochs
from node.replication.ha.core.sender import HaProtocolError
from node.replication.ha.core.types import EpochStart
from node.replication.ha.core.wire import HandshakeReply, Transfer


@dataclass(slots=True, eq=False)
class Receiver:
    """A stream on one link. Made when the handshake is sent."""

    link: LinkId
    contact_ms: int
    sent_ms: int
    epochs: Epochs | None = None
    """The sender's epochs, once it replied."""
    is_streaming: bool = False
    """Whether the first offset was reported."""
    has_begun: bool = False
    """Whether a transfer followed that report."""
    acked: int = 0

    def on_reply(self, reply: HandshakeReply, mine: Epochs, end: int) -> int | None:
        """Take the sender's epochs; return the position at which this log and the sender's part,
        None if they have no common part. Raises HaProtocolError."""
        if self.epochs is not None:
            raise HaProtocolError("a second reply to one handshake")
        self._check_reply(reply)
        self.epochs = Epochs(reply.epochs)
        return mine.consistent_point(end, self.epochs, reply.end)

    def check_transfer(self, transfer: Transfer, end: int, may_begin: bool) -> None:
        """Raise HaProtocolError unless the bytes continue the log in the epoch they claim. With
        `may_begin` they may begin anywhere."""
        assert self.epochs is not None
        position, size_bytes = transfer.position, len(transfer.body)
        if position != end and not (may_begin and position >= 0):
            raise HaProtocolError(f"transfer at {position}, the log ends at {end}")
        epoch = self.epochs.at(position)
        if EpochStart(transfer.epoch, transfer.epoch_start) != epoch:
            raise HaProtocolError(
                f"epoch {transfer.epoch} from {transfer.epoch_start} at {position}, which is of "
                f"epoch {epoch.number} from {epoch.start}"
            )
        for _, start in self.epochs.entries:
            if position < start < position + size_bytes:
                raise HaProtocolError(f"transfer at {position} spans the epoch start {start}")

    @staticmethod
    def _check_reply(reply: HandshakeReply) -> None:
        last = EpochStart(0, -1)
        for entry in reply.epochs:
            if entry.number <= last.number or entry.start <= last.start:
                raise HaProtocolError(f"epochs out of order: {last} then {entry}")
            last = entry
        if last.number != reply.last_epoch or last.start > reply.end:
            raise HaProtocolError(f"last epoch {reply.last_epoch}, end {reply.end}, list to {last}")
