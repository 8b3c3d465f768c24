"""Requests in transit: how long one may take, and how many may be slow.

Owns the bound on memory that strangers take by sending a part of a request and no more. gRPC itself
has no such bound: it collects a message for as long as the connection lives, and calls a method
only with the complete message. So methods get their requests from this module. Must not know what a
method does.

A request that arrives within a second costs only an entry in a table. Slower requests are bounded
in number and time. A client may keep its stream silent, and gRPC does not tell whether a part of
the next message has arrived; so streams are bounded in number and in silence, and the stream that
was silent for longest is ended first. `half_sent` estimates the bytes that gRPC holds for each
connection, which its account bounds; a connection on which a message stays incomplete has its
silent streams ended. A stream whose method does not take the requests that arrived cannot be ended
from here, so its connection is cut.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import grpc

from node.config.limits import PortLimits
from node.errors.common import BadRequestError
from node.errors.requests import RequestSlowError, StreamSilentError
from node.runtime.accounts import Kind, Level
from node.runtime.busiest import of_busiest
from node.services.bounds.callers import GrpcCaller
from node.services.bounds.connection_cut import Cut
from node.services.bounds.half_sent import HALF_SIZE_BYTES_MIN, HalfSent, WatchedConnection
from node.services.bounds.look_timer import LookTimer
from node.services.bounds.reading_line import ReadingLine

SLOW_AFTER_MS: Final = 1_000
SLOW_COUNT_MAX: Final = 32
"""Requests that take longer than SLOW_AFTER_MS, half of them of one address: two thirds of what may
be read at once."""
STREAM_COUNT_MAX: Final = 1_024
"""Streams of requests at once. A producer that is cut off opens its stream again."""
STREAM_SILENCE_MS_MAX: Final = 600_000
"""Silence of a stream; RocketMQ's clients send at least every five minutes."""
_FEW_STREAMS: Final = 32
"""Streams whose messages of the largest size fit into the share of an address; with so few, samples
are rare."""
_LOOK_MS: Final = 250
_SAMPLE_S: Final = 5.0
_SAMPLE_COST: Final = 50
"""Pause before a sample, as a multiple of the time that the last one took."""
_REST_S: Final = 60.0
"""Time for which counting goes on after the last stream: to begin it again costs a sample."""

TOO_SLOW: Final = "too_slow"
TOO_MANY: Final = "too_many"
SILENT: Final = "silent"
TOO_MANY_STREAMS: Final = "too_many_streams"
HALF_TOO_SLOW: Final = "half_too_slow"
HALF_TOO_MUCH: Final = "half_too_much"
REASONS: Final = (TOO_SLOW, TOO_MANY, SILENT, TOO_MANY_STREAMS, HALF_TOO_SLOW, HALF_TOO_MUCH)


class _Wait:
    """A call or a stream that waits for the next bytes of its client."""

    __slots__ = ("caller", "given_up", "since_s", "task")

    def __init__(
        self, caller: GrpcCaller, task: "asyncio.Task[Any] | None", since_s: float
    ) -> None:
        self.caller, self.task, self.since_s = caller, task, since_s
        self.given_up = ""
        """The reason to end the call, whose task is then cancelled; empty: none."""

    def give_up(self, reason: str) -> None:
        assert self.task is not None, "there is no call that waits"
        self.given_up = reason
        self.task.cancel()


class RequestWatch:
    """The watch over the requests of one server. For one event loop."""

    def __init__(
        self,
        half: HalfSent,
        cut: Cut,
        monotonic_s: Callable[[], float] | None = None,
        limits: PortLimits | None = None,
    ) -> None:
        """End streams by the estimates of `half`, connections by `cut`. `monotonic_s` is for tests;
        the default is the clock of the running loop."""
        self._half, self._cut, self._limits = half, cut, limits or PortLimits()
        self._timer = LookTimer(_LOOK_MS, self.look, self._is_watching, monotonic_s)
        self._now_s, self._look_later = self._timer.now_s, self._timer.go_on
        self._sampled_s = self._sample_took_s = self._rest_at_s = 0.0
        self._line = ReadingLine()
        self._arriving: dict[_Wait, None] = {}
        """Calls whose request is being read, oldest first."""
        self._streams: dict[_Wait, None] = {}
        self.given_up: Final[Counter[str]] = Counter(dict.fromkeys(REASONS, 0))
        """Calls that were ended because their requests did not arrive, by reason."""

    @property
    def slow_count(self) -> int:
        """The count of requests that take longer than SLOW_AFTER_MS."""
        return sum(1 for _ in self._slow(self._now_s()))

    @property
    def stream_count(self) -> int:
        """The count of streams of requests."""
        return len(self._streams)

    async def whole(self, read: Callable[[], Awaitable[Any]], caller: GrpcCaller) -> bytes:
        """Return the request of a call, which `read` returns, once there is room to read it. The
        caller charges its bytes before it awaits again. Raises RequestSlowError, BusyError, or
        BadRequestError without one."""
        self._look_later()
        await self._line.enter(caller, self._now_s())
        wait = _Wait(caller, asyncio.current_task(), self._now_s())
        self._arriving[wait] = None
        try:
            data = await read()
        except asyncio.CancelledError:
            if not wait.given_up:
                raise
            why = f"it has {self._limits.request_ms_max} ms"
            if wait.given_up == TOO_MANY:
                why = "too many others were slow, too"
            waited_ms = int((self._now_s() - wait.since_s) * 1000)
            raise RequestSlowError(waited_ms, why) from None
        finally:
            del self._arriving[wait]
            self._line.leave(caller)
        if data is grpc.aio.EOF:
            raise BadRequestError("request", "one message", "none")
        request: bytes = data
        if self._half.is_counting:
            self._half.took_call(caller.peer, len(request))
        return request

    async def each(
        self, requests: AsyncIterator[bytes], caller: GrpcCaller
    ) -> AsyncIterator[bytes]:
        """Yield the requests of a stream. Raises StreamSilentError, while it waits for one."""
        # Each message passes here, so each costs only a reading of the clock.
        loop, now_s = asyncio.get_running_loop(), self._timer.clock()
        peer, half = caller.peer, self._half
        wait = _Wait(caller, None, now_s())
        if len(self._streams) >= STREAM_COUNT_MAX:
            self._make_room()
        half.opened(caller, wait.since_s)
        self._streams[wait] = None
        self._look_later()
        try:
            wait.task, wait.since_s = asyncio.current_task(loop), now_s()
            async for data in requests:
                wait.task = None
                half.took(peer, len(data))
                yield data
                wait.task, wait.since_s = asyncio.current_task(loop), now_s()
        except asyncio.CancelledError:
            if not wait.given_up:
                raise
            raise self._silent_error(wait) from None
        finally:
            wait.task = None
            del self._streams[wait]
            half.closed(peer)

    # --- Ending calls and streams ---

    def look(self) -> None:
        """End calls and streams that take too long, and slow requests beyond their number."""
        now_s = self._now_s()
        for wait in self._slow(now_s):
            if (now_s - wait.since_s) * 1000 >= self._limits.request_ms_max:
                self._give_up(wait, TOO_SLOW)
        slow = [wait for wait in self._slow(now_s) if not wait.given_up]
        while slow:
            wait = of_busiest(slow, _host)
            of_address = sum(_host(other) == _host(wait) for other in slow)
            if len(slow) <= SLOW_COUNT_MAX and of_address <= SLOW_COUNT_MAX // 2:
                break
            self._give_up(wait, TOO_MANY)
            slow.remove(wait)
        self._line.go_on()
        self._line.refuse(now_s - self._limits.request_ms_max / 1000)
        for wait in self._silent_streams():
            if (now_s - wait.since_s) * 1000 >= STREAM_SILENCE_MS_MAX:
                self._give_up(wait, SILENT)
        is_much_possible = len(self._streams) > _FEW_STREAMS
        wait_s = max(0.0 if is_much_possible else _SAMPLE_S, _SAMPLE_COST * self._sample_took_s)
        if (self._streams or self._half.is_counting) and now_s >= self._sampled_s + wait_s:
            self._sample(now_s)

    def _sample(self, now_s: float) -> None:
        """End streams that hold too much, or a part of a message for too long."""
        half, began_s = self._half, time.perf_counter()
        half.sample(now_s)
        streams: dict[str, list[_Wait]] = {}
        for wait in self._streams:
            streams.setdefault(wait.caller.peer, []).append(wait)
        for peer, one in half.connections.items():
            since_s = one.likely_since_s
            if since_s is not None and (now_s - since_s) * 1000 >= self._limits.half_ms_max:
                self._end(streams[peer], HALF_TOO_SLOW, now_s, silent_ms=self._limits.half_ms_max)
        freed: Counter[Level] = Counter()
        for peer, one in _of_greediest(half.connections):
            levels, held_size_bytes = one.account.levels, one.held_size_bytes
            if held_size_bytes <= one.streams * HALF_SIZE_BYTES_MIN:
                continue  # To end its streams would free nothing.
            kind = Kind.HALF_STREAMS
            if all(one.sizes[kind] - freed[one] <= one.limits[kind][1] for one in levels):
                continue
            if self._end(streams[peer], HALF_TOO_MUCH, now_s, silent_ms=_LOOK_MS):
                freed.update(dict.fromkeys(levels, held_size_bytes))
        self._sampled_s, self._sample_took_s = now_s, time.perf_counter() - began_s

    def _end(self, streams: list[_Wait], reason: str, now_s: float, *, silent_ms: int) -> bool:
        """End the streams of a connection that are silent for `silent_ms`, or cut the connection
        when no method takes the requests of a stream for `half_ms_max`; return whether any ends."""
        has_ended = False
        for wait in streams:
            ms = (now_s - wait.since_s) * 1000
            if wait.given_up:
                has_ended = True
            elif wait.task is None:
                if ms >= self._limits.half_ms_max and self._cut(wait.caller.peer):
                    self.given_up[reason] += 1
                    return True
            elif ms >= silent_ms:
                self._give_up(wait, reason)
                has_ended = True
        return has_ended

    def _make_room(self) -> None:
        """End the stream of the busiest address that was silent for longest."""
        waiting = sorted(self._silent_streams(), key=lambda wait: wait.since_s)
        if waiting:
            self._give_up(of_busiest(waiting, _host), TOO_MANY_STREAMS)

    def _give_up(self, wait: _Wait, reason: str) -> None:
        self.given_up[reason] += 1
        wait.give_up(reason)

    def _slow(self, now_s: float) -> Iterable[_Wait]:
        for wait in self._arriving:
            if (now_s - wait.since_s) * 1000 < SLOW_AFTER_MS:
                return
            yield wait

    def _silent_streams(self) -> list[_Wait]:
        return [wait for wait in self._streams if wait.task is not None and not wait.given_up]

    def _silent_error(self, wait: _Wait) -> StreamSilentError:
        silent_ms = int((self._now_s() - wait.since_s) * 1000)
        why = f"a stream may be silent for {STREAM_SILENCE_MS_MAX} ms"
        if wait.given_up == TOO_MANY_STREAMS:
            why = f"{STREAM_COUNT_MAX} streams are open, and a new one came"
        elif wait.given_up == HALF_TOO_SLOW:
            why = f"a message has {self._limits.half_ms_max} ms to arrive"
        elif wait.given_up == HALF_TOO_MUCH:
            why = "parts of messages have too many bytes"
        return StreamSilentError(silent_ms, why)

    # --- Time ---

    def _is_watching(self) -> bool:
        now_s = self._now_s()
        if self._streams:
            self._rest_at_s = now_s + _REST_S
        elif self._half.is_counting and now_s >= self._rest_at_s:
            self._half.rest()
        is_idle = self._line.is_empty and not (self._arriving or self._streams)
        return not is_idle or self._half.is_counting


def _of_greediest(
    connections: Mapping[str, WatchedConnection],
) -> Iterator[tuple[str, WatchedConnection]]:
    """Yield all connections; the next is always the largest of the address that holds most of the
    remaining bytes."""
    by_host: dict[str, list[tuple[str, WatchedConnection]]] = {}
    sizes: Counter[str] = Counter()
    for peer, connection in sorted(connections.items(), key=lambda item: item[1].held_size_bytes):
        by_host.setdefault(connection.account.address.what, []).append((peer, connection))
        sizes[connection.account.address.what] += connection.held_size_bytes
    while sizes:
        host = max(sizes, key=sizes.__getitem__)
        peer, connection = by_host[host].pop()
        sizes[host] -= connection.held_size_bytes
        if not by_host[host]:
            del sizes[host]
        yield peer, connection


def _host(wait: _Wait) -> str:
    return wait.caller.host
