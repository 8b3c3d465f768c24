"""Unique keys of messages that were stored a moment ago: a send that comes again is stored once.

Owns the window and the table of the leader's own sends. Clients repeat a send, with the same key
and at another broker name, when its answer was lost. What an earlier leader stored is found in the
key index; a key that is older than the window is a new message.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from node.broker.core.context import Context
from node.rocketmq.remoting.calls.pending import Pending
from quorumlog.pb.log_pb2 import AppendResponse
from store.record.message import Message

KEY_COUNT_MAX: Final = 262_144
"""Keys in memory. Older ones of the window are looked up in the index."""
_STEP_COUNT_MAX: Final = 64
"""Entries of the index that one look passes: those with the same hash."""


class UniqueKeys:
    """The keys of one window. A LeaderWork. One per gateway."""

    def __init__(self, context: Context, window_ms: int, unix_ms: Callable[[], int]) -> None:
        self._context = context
        self._window_ms: Final = window_ms
        self._unix_ms = unix_ms
        self._sends: OrderedDict[tuple[str, str], tuple[Pending, int]] = OrderedDict()
        self._known_since_ms = 0
        """From this time on the table has all keys."""
        self.repeated_total = 0

    def begin(self) -> None:
        """See `LeaderWork.begin`: the table is of this leadership."""
        self._sends.clear()
        self._known_since_ms = self._unix_ms()

    def end(self) -> None:
        """See `LeaderWork.end`."""
        self._sends.clear()

    def send_of(self, topic: str, key: str) -> Pending | None:
        """Return the send of a key, under way or done; None if none is known to have it."""
        entry = self._sends.get((topic, key))
        if entry is None or entry[1] < self._unix_ms() - self._window_ms:
            return None
        self.repeated_total += 1
        return entry[0]

    def stored(self, topic: str, key: str) -> Message | None:
        """Return the stored message of a key that the table need not know; None if there is none.
        Raises CorruptionError."""
        since_ms = self._unix_ms() - self._window_ms
        if since_ms >= self._known_since_ms:
            return None
        steps = self._context.store.newest_by_key(topic, key, lo_unix_ms=max(0, since_ms))
        for number, step in enumerate(steps):
            if step.message is not None:
                self.repeated_total += 1
                return step.message
            if number == _STEP_COUNT_MAX:
                break
        return None

    def note(self, topic: str, key: str, send: Pending) -> None:
        """Note a send that begins; one that fails is forgotten."""
        now_ms, name = self._unix_ms(), (topic, key)
        self._sends[name] = (send, now_ms)
        self._sends.move_to_end(name)
        while self._sends:
            _, (_, at_ms) = oldest = next(iter(self._sends.items()))
            if at_ms >= now_ms - self._window_ms and len(self._sends) <= KEY_COUNT_MAX:
                break
            del self._sends[oldest[0]]
            if at_ms >= now_ms - self._window_ms:
                self._known_since_ms = max(self._known_since_ms, at_ms + 1)
        send.future.add_done_callback(lambda done: self._on_done(name, send, done))

    def _on_done(
        self, name: tuple[str, str], send: Pending, done: "asyncio.Future[AppendResponse]"
    ) -> None:
        if done.cancelled() or done.exception() is not None:
            entry = self._sends.get(name)
            if entry is not None and entry[0] is send:
                del self._sends[name]
