"""Responses in transit: how many bytes may wait for clients that do not take them.

Owns the bound. gRPC keeps a response until its client has room for it, and a client may have none
for as long as its connection lives; gRPC has no way to end such a call. So the watch cuts a
connection: of the address for which most bytes wait, if the response has not moved for a while.
Must not know the content of a response. Bytes of small responses are not counted, but a client that
takes none of them holds its calls, and a node serves a limited number at once: such responses are
bounded in number and time.
"""

from collections.abc import Callable, Iterator
from typing import Final

from node.errors.requests import ResponsesWaitError
from node.runtime.accounts import Account, Kind, Level
from node.runtime.busiest import of_busiest
from node.services.bounds.callers import GrpcCaller
from node.services.bounds.connection_cut import Cut
from node.services.bounds.look_timer import LookTimer

LARGE_SIZE_BYTES: Final = 64 * 1024
"""Size that a client takes at once with the default window; smaller responses are not counted."""
COPY_COUNT: Final = 2
"""What waits costs its size twice: gRPC copies a response, and the caller's bytes stay until it is
written."""
UNREAD_COUNT_MAX: Final = 1_024
"""Responses of any size that have waited for UNREAD_MS: above it the watch cuts connections, those
of the busiest address first."""
UNREAD_MS: Final = 10_000
"""Age of an unread response: more than it takes to send to all clients that were woken at once."""
STUCK_MS: Final = 1_000
"""Age after which a large response may be dropped to make room for others."""
RESPONSE_MS_MAX: Final = 120_000
"""From the first byte of a response to the last one: 16 MiB at 1.1 Mbit/s."""
_LOOK_MS: Final = 1_000
_PAUSE_MS: Final = 3 * _LOOK_MS
"""Pause between two looks after which the process itself was held, so clients could take nothing.
"""


class Response:
    """A response that waits for its client."""

    __slots__ = ("account", "peer", "since_s", "size_bytes")

    def __init__(self, caller: GrpcCaller, size_bytes: int, since_s: float) -> None:
        self.account, self.peer = caller.account, caller.peer
        self.size_bytes, self.since_s = size_bytes, since_s


class ResponseWatch:
    """The watch over the responses of one server. For one event loop."""

    def __init__(self, cut: Cut, monotonic_s: Callable[[], float] | None = None) -> None:
        """End connections by `cut`. `monotonic_s` is for tests; the default is the clock of the
        running loop."""
        self._cut = cut
        self._timer = LookTimer(_LOOK_MS, self.look, lambda: self._waiting, monotonic_s)
        self._waiting: dict[Response, None] = {}
        """The waiting responses, oldest first."""
        self._looked_s = 0.0
        self.cut_count = 0
        """Connections that were cut, because no response moved on them."""
        self.dropped_count = 0
        """Responses that were dropped for want of room."""

    def begin(self, caller: GrpcCaller, size_bytes: int) -> Response:
        """Count a response as waiting until `end`. Raises ResponsesWaitError."""
        if size_bytes < LARGE_SIZE_BYTES:
            size_bytes = 0
        else:
            size_bytes *= COPY_COUNT
            self._hold(caller.account, size_bytes)
        response = Response(caller, size_bytes, self._timer.now_s())
        self._waiting[response] = None
        self._timer.go_on()
        return response

    def end(self, response: Response) -> None:
        """Remove a response that its client took, or whose client is gone."""
        if response in self._waiting:
            del self._waiting[response]
            if response.size_bytes:
                _add(response.account, -response.size_bytes)

    def look(self) -> None:
        """Cut connections on which a response has waited for too long, or too many do."""
        now_s = self._timer.now_s()
        was_held = (now_s - self._looked_s) * 1000 >= _PAUSE_MS
        self._looked_s = now_s
        unread = list(self._older(now_s, UNREAD_MS))
        while len(unread) > UNREAD_COUNT_MAX and not was_held:
            peer = of_busiest(unread, _host).peer
            unread = [response for response in unread if response.peer != peer]
            self._let_go(peer)
        late = {
            response.peer
            for response in self._waiting
            if (now_s - response.since_s) * 1000 >= RESPONSE_MS_MAX
        }
        for peer in late:
            self._let_go(peer)

    def _hold(self, account: Account, size_bytes: int) -> None:
        over = _over(account, size_bytes)
        if over is not None:
            self._make_room(over)
            over = _over(account, size_bytes)
        if over is not None:
            self.dropped_count += 1
            held, (_, limit) = over.sizes[Kind.ANSWERS], over.limits[Kind.ANSWERS]
            raise ResponsesWaitError(held, size_bytes, limit)
        _add(account, size_bytes)

    def _make_room(self, over: Level) -> None:
        """Cut the connection with the oldest stuck response of the address with most bytes, of
        those that a level counts."""
        older = self._older(self._timer.now_s(), STUCK_MS)
        stuck = [one for one in older if one.size_bytes and over in one.account.levels]
        if stuck:
            self._let_go(of_busiest(stuck, _host, lambda response: response.size_bytes).peer)

    def _older(self, now_s: float, age_ms: int) -> Iterator[Response]:
        for response in self._waiting:
            if (now_s - response.since_s) * 1000 < age_ms:
                return
            yield response

    def _let_go(self, peer: str) -> None:
        """Cut a connection, and remove its responses at once, although gRPC frees them a moment
        later."""
        self.cut_count += self._cut(peer)
        for response in [response for response in self._waiting if response.peer == peer]:
            self.end(response)


def _over(account: Account, size_bytes: int) -> Level | None:
    """Return the level that has no room. A connection of gRPC carries all calls of its client, so
    it may have what its address may."""
    for level in account.levels[1:]:
        if level.sizes[Kind.ANSWERS] + size_bytes > level.limits[Kind.ANSWERS][1]:
            return level
    return None


def _add(account: Account, size_bytes: int) -> None:
    account.set_size(Kind.ANSWERS, account.sizes[Kind.ANSWERS] + size_bytes)


def _host(response: Response) -> str:
    return response.account.address.what
