"""Responses on their way: how many bytes may wait for clients that do not take them.

Owns the bound. gRPC keeps a response until its client has room for it, and a client may have none
for as long as its connection lives; gRPC has no way to end such a call. So the connection goes: the
one of the address for which most bytes wait, if it has not moved for a while. Must not know what a
response says. Small ones are not looked at: a table of their calls would cost as much.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from node.request_errors import ResponsesWaitError
from node.services.look_timer import LookTimer

LARGE_SIZE_BYTES: Final = 64 * 1024
"""What a client takes at once, if it says nothing of its window."""
WAITING_SIZE_BYTES_MAX: Final = 256 << 20
"""More than a second of reading at full speed."""
STUCK_MS: Final = 1_000
"""A response that has waited for so long may be let go for others."""
RESPONSE_MS_MAX: Final = 120_000
"""From the first byte of a response to the last one: 16 MiB at 1.1 Mbit/s."""
_LOOK_MS: Final = 5_000

Cut = Callable[[str], bool]
"""Ends the connection of a peer."""


class Response:
    """One that waits for its client."""

    __slots__ = ("peer", "since_s", "size_bytes")

    def __init__(self, peer: str, size_bytes: int, since_s: float) -> None:
        self.peer, self.size_bytes, self.since_s = peer, size_bytes, since_s


class ResponseWatch:
    """One per server. For one event loop."""

    def __init__(self, cut: Cut, monotonic_s: Callable[[], float] | None = None) -> None:
        """`monotonic_s` is for tests; without it the running loop's."""
        self._cut = cut
        self._timer = LookTimer(_LOOK_MS, self._look_again, monotonic_s)
        self._waiting: dict[Response, None] = {}
        """Oldest first."""
        self.size_bytes = 0
        """Of large responses that wait."""
        self.cut_count = 0
        """Connections that were ended, because nothing moved on them."""
        self.dropped_count = 0
        """Responses that were refused for want of room."""

    def begin(self, peer: str, size_bytes: int) -> Response | None:
        """Note a response, until `end`; None: it is small. Raises ResponsesWaitError."""
        if size_bytes < LARGE_SIZE_BYTES:
            return None
        if self.size_bytes + size_bytes > WAITING_SIZE_BYTES_MAX:
            self._make_room()
        if self.size_bytes + size_bytes > WAITING_SIZE_BYTES_MAX:
            self.dropped_count += 1
            raise ResponsesWaitError(self.size_bytes, size_bytes, WAITING_SIZE_BYTES_MAX)
        response = Response(peer, size_bytes, self._timer.now_s())
        self._waiting[response] = None
        self.size_bytes += size_bytes
        self._timer.go_on()
        return response

    def end(self, response: Response | None) -> None:
        """It was taken, or nobody is there any more."""
        if response is not None and response in self._waiting:
            del self._waiting[response]
            self.size_bytes -= response.size_bytes

    def look(self) -> None:
        """End connections on which a response has waited for too long."""
        now_s = self._timer.now_s()
        late = {
            response.peer
            for response in self._waiting
            if (now_s - response.since_s) * 1000 >= RESPONSE_MS_MAX
        }
        for peer in late:
            self._let_go(peer)

    def _make_room(self) -> None:
        """End the connection with the oldest stuck response of the address with most bytes."""
        now_s = self._timer.now_s()
        by_host: Counter[str] = Counter()
        oldest: dict[str, str] = {}
        for response in self._waiting:
            if (now_s - response.since_s) * 1000 < STUCK_MS:
                break
            host = response.peer.rpartition(":")[0]
            by_host[host] += response.size_bytes
            oldest.setdefault(host, response.peer)
        for host, _ in by_host.most_common(1):
            self._let_go(oldest[host])

    def _let_go(self, peer: str) -> None:
        """What waits there is let go at once, although gRPC needs a moment to free it."""
        self.cut_count += self._cut(peer)
        for response in [response for response in self._waiting if response.peer == peer]:
            self.end(response)

    def _look_again(self) -> bool:
        self.look()
        return bool(self._waiting)
