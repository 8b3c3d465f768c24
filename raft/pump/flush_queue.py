"""Requested syncs that have not ended, and the promises that wait for each.

Owns the meaning of a ticket: how far the log was written when it was given out, which term and
vote, and which messages may leave once that is durable. Bounded: while a sync hangs, later tickets
join the newest waiting one, which delays no promise by more than the hanging sync. Must not
know what a message means, except that an ack includes an earlier one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raft.config import RaftConfig
from raft.messages import AppendReply, Index, Message, Refusal, Term
from raft.pump.effects import Ticket
from raft.ready import HardState

FLUSH_COUNT_MAX: Final = 8
"""Distinct tickets. A shell keeps one sync running and one behind it; the others are slack."""


@dataclass(slots=True, eq=False)
class Flush:
    """State that becomes durable with a ticket."""

    ticket: Ticket
    index: Index
    term: Term
    """(index, term): the last entry made durable; moves back when the log is truncated."""
    hard_state: HardState
    held: list[Message]


class FlushQueue:
    """Tickets in order, oldest first, and the messages that this turn holds for the next one."""

    __slots__ = ("_config", "_flushes", "held", "held_count", "held_dropped", "newest_ticket")

    def __init__(self, config: RaftConfig) -> None:
        self._config = config
        self._flushes: list[Flush] = []
        self.held: list[Message] = []
        """Promises that wait for the ticket of this turn."""
        self.held_count = 0
        self.held_dropped = 0
        self.newest_ticket: Ticket = 0

    def __len__(self) -> int:
        return len(self._flushes)

    def hold(self, message: Message) -> None:
        """Keep a promise until this turn's ticket; above the limit it is lost, as in a network."""
        if self.held and _replaces_last(self.held, message):
            self.held[-1] = message
            return
        if self.held_count >= self._config.held_message_count_max:
            self.held_dropped += 1
            return
        self.held += (message,)  # A call less than `append`, as below.
        self.held_count += 1

    def open(self, index: Index, term: Term, hard_state: HardState) -> Ticket:
        """Give out a ticket for everything written up to now."""
        self.newest_ticket += 1
        held, self.held = self.held, []
        if not self._flushes or len(self._flushes) < FLUSH_COUNT_MAX:
            self._flushes += (Flush(self.newest_ticket, index, term, hard_state, held),)
            return self.newest_ticket
        # The newest ticket gets later, never earlier: its messages wait for all of it.
        flush = self._flushes[-1]
        flush.ticket, flush.index, flush.term = self.newest_ticket, index, term
        flush.hard_state = hard_state
        for message in held:
            if _replaces_last(flush.held, message):
                flush.held[-1] = message
                self.held_count -= 1
            else:
                flush.held.append(message)
        return self.newest_ticket

    def take(self, ticket: Ticket) -> tuple[Flush | None, list[Message]]:
        """Return the newest flush that `ticket` covers, and all messages held for such flushes."""
        done: Flush | None = None
        released: list[Message] = []
        while self._flushes and self._flushes[0].ticket <= ticket:
            done = self._flushes[0]
            del self._flushes[0]
            released += done.held
        if released:
            self.held_count -= len(released)
        return done, released

    def move_back(self, index: Index, term: Term) -> None:
        """Move tickets back to (index, term), since later entries are replaced.

        A sync begun before does not cover the new entries. Without this, (index, term) written,
        truncated and written again would be taken as durable when the first write's sync ends
        (R16)."""
        for flush in self._flushes:
            if flush.index > index:
                flush.index, flush.term = index, term

    def forget_promises(self) -> None:
        """Drop all held messages: the core that promised them no longer exists."""
        self.held = []
        for flush in self._flushes:
            flush.held = []
        self.held_count = 0


def _replaces_last(held: list[Message], message: Message) -> bool:
    """Whether `message` is an ack that includes the last one held."""
    if not held or type(message) is not AppendReply:
        return False
    last = held[-1]
    return (
        type(last) is AppendReply
        and last.to == message.to
        and last.term == message.term
        and last.refusal is message.refusal is Refusal.NONE
        and last.match <= message.match
        and last.incarnation == message.incarnation
    )
