"""Sends and their unique keys: one that comes again within a moment is stored once.

Owns the window, the table of the leader's own sends, and the answer of each. Clients repeat a send,
with the same key and at another broker name, when its answer was lost. What an earlier leader
stored is found in the key index; a key that is older than the window is a new message, and so is
one of a topic that was deleted and made again. Keys are
known whichever address repeats them, and a full table forgets those of the address that sent most.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import Final, NamedTuple

from node.broker.core.context import Context
from node.errors.common import AppendTimeoutError, OutcomeUnknownError
from node.runtime.turn import Turn
from quorumlog.pb.log_pb2 import AppendResponse
from raft.messages import NO_INDEX, NO_TERM
from store.errors import Outcome
from store.format import Host
from store.record.message import Message

KEY_COUNT_MAX: Final = 262_144
"""Keys in memory; an address has half of them. Older ones of the window are looked up in the
index."""
_KEY_LENGTH_MAX: Final = 64
"""Longer keys stand in the table with their digest; those of clients have 32 characters."""
_STEP_COUNT_MAX: Final = 64
"""Entries of the index that one look passes: those with the same hash."""
_FORGOTTEN_COUNT: Final = 2
_EXPIRED_COUNT: Final = 512
_LOOKED_AT_COUNT: Final = 4
"""Addresses that a send looks at where the table is full."""
_Name = tuple[str, str]
"""Topic and key."""


class Pending(NamedTuple):
    """A send under way, or done."""

    future: "asyncio.Future[AppendResponse]"
    queue_id: int
    """As the broker name shows it."""
    key: str
    sizes: list[int]
    """Sizes of the records in bytes."""
    host: Host
    """This node, for message ids."""

    def is_before(self, origin: int) -> bool:
        """Whether the message is stored before a position of the log. One that is under way comes
        behind the beginning of its topic: entries are applied in order, and answered then."""
        done = self.future
        if not done.done() or done.cancelled() or done.exception() is not None:
            return False
        return done.result().position < origin


@dataclass(slots=True)
class _Sender:
    names: OrderedDict[_Name, None]
    """The oldest one first. The first one of a plain dict is behind all that were removed."""
    known_since_ms: int
    """From this time on the table has all its keys."""


class _Send(NamedTuple):
    pending: Pending
    at_ms: int
    sender: _Sender


class UniqueKeys:
    """The keys of one window. A LeaderWork. One per gateway."""

    def __init__(self, context: Context, window_ms: int, unix_ms: Callable[[], int]) -> None:
        self._context = context
        self.window_ms: Final = window_ms
        """0: each send is stored."""
        self._unix_ms = unix_ms
        self._sends: dict[_Name, _Send] = {}
        self._sent_by: dict[str, _Sender] = {}
        self._busiest = _Sender(OrderedDict(), 0)
        """The one that sent most, of those that were looked at."""
        self._others: Iterator[_Sender] = iter(())
        self._began_ms = 0
        self.repeated_total = 0
        """Sends that came again and were stored once."""

    def begin(self) -> None:
        """See `LeaderWork.begin`: the table is of this leadership."""
        self.end()
        self._began_ms = self._unix_ms()

    def end(self) -> None:
        """See `LeaderWork.end`."""
        self._sends.clear()
        self._sent_by.clear()
        self._busiest, self._others = _Sender(OrderedDict(), 0), iter(())

    def send_of(self, topic: str, key: str) -> Pending | None:
        """Return the send of a key, under way or done; None if none is known to have it."""
        send = self._sends.get((topic, key if len(key) <= _KEY_LENGTH_MAX else _digest(key)))
        if send is None or send.at_ms < self._unix_ms() - self.window_ms:
            return None
        if send.pending.is_before(self._context.origin(topic)):
            return None  # Stored in a topic that was deleted; this one has the name again.
        self.repeated_total += 1
        return send.pending._replace(key=key)

    def stored(self, topic: str, key: str, host: str) -> Message | None:
        """Return the stored message of a key, sent by an address, that the table need not know;
        None if there is none. Raises CorruptionError."""
        since_ms, sender = self._unix_ms() - self.window_ms, self._sent_by.get(host)
        if since_ms >= max(self._began_ms, sender.known_since_ms if sender is not None else 0):
            return None
        steps = self._context.store.newest_by_key(topic, key, lo_unix_ms=max(0, since_ms))
        for number, step in enumerate(steps):
            if step.message is not None:
                self.repeated_total += 1
                return step.message
            if number == _STEP_COUNT_MAX:
                break
        return None

    def note(self, topic: str, key: str, host: str, send: Pending) -> None:
        """Note a send of an address that begins. One that stored nothing is forgotten; one that is
        late stays, and one whose outcome is not known is looked up."""
        if len(key) > _KEY_LENGTH_MAX:
            key, send = _digest(key), send._replace(key="")
        now_ms, name = self._unix_ms(), (topic, key)
        before = self._sends.pop(name, None)
        if before is not None:
            del before.sender.names[name]
        sender = self._sent_by.get(host)
        if sender is None:
            sender = self._sent_by[host] = _Sender(OrderedDict(), 0)
        self._sends[name] = _Send(send, now_ms, sender)
        sender.names[name] = None
        self._forget_old(sender, now_ms - self.window_ms)
        if len(sender.names) > KEY_COUNT_MAX // 2:
            self._leave(next(iter(sender.names)))
        elif len(self._sends) > KEY_COUNT_MAX:
            self._leave(next(iter(self._largest().names)))
        send.future.add_done_callback(partial(self._on_done, name, send))

    def _largest(self) -> "_Sender":
        """Return the address that sent most: the one found before, or one of a few others."""
        others = [*islice(self._others, _LOOKED_AT_COUNT)]
        if not others:
            self._others = iter([*self._sent_by.values()])
        self._busiest = max((self._busiest, *others), key=_key_count)
        if not self._busiest.names:
            self._busiest = max(self._sent_by.values(), key=_key_count)
        return self._busiest

    def _forget_old(self, sender: "_Sender", since_ms: int) -> bool:
        """Forget the keys of an address that are older than the window, two of them at most; return
        whether there may be more."""
        for _ in range(_FORGOTTEN_COUNT):
            name = next(iter(sender.names), None)
            if name is None or self._sends[name].at_ms >= since_ms:
                return False
            del self._sends[name], sender.names[name]
        return True

    def _leave(self, name: "_Name") -> None:
        """Leave a key of the window to the index."""
        send = self._sends.pop(name)
        send.sender.known_since_ms = max(send.sender.known_since_ms, send.at_ms + 1)
        del send.sender.names[name]

    async def expire(self, turn: Turn) -> None:
        """Forget old keys of addresses that send no more, some of each."""
        since_ms = self._unix_ms() - self.window_ms
        async for host, sender in turn.over([*self._sent_by.items()]):
            if self._sent_by.get(host) is not sender:
                continue  # Another leadership.
            for _ in range(_EXPIRED_COUNT):
                if not self._forget_old(sender, since_ms):
                    break
            if not sender.names and sender.known_since_ms <= since_ms:
                del self._sent_by[host]

    def _on_done(
        self, name: "_Name", pending: Pending, done: "asyncio.Future[AppendResponse]"
    ) -> None:
        error = OutcomeUnknownError(NO_INDEX, NO_TERM) if done.cancelled() else done.exception()
        send = self._sends.get(name)
        if error is None or send is None or send.pending is not pending:
            return
        if isinstance(error, AppendTimeoutError) and error.decided is not None:
            late = pending._replace(future=error.decided)
            self._sends[name] = send._replace(pending=late)
            late.future.add_done_callback(partial(self._on_done, name, late))
        elif getattr(error, "outcome", Outcome.UNKNOWN) is Outcome.NOT_APPLIED:
            del self._sends[name], send.sender.names[name]
        else:
            self._leave(name)


def _key_count(sender: _Sender) -> int:
    return len(sender.names)


def _digest(key: str) -> str:
    return blake2b(key.encode(), digest_size=16).hexdigest()
