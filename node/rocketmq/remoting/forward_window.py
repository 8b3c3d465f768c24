"""The window of forwarded commands: how many are on the way to other nodes, and of how many bytes.

Owns the limits, and the share of each caller. All clients of a node share its connection to the
leader, so one that sends much, or asks for what takes long, must leave room to others.
"""

from collections import Counter
from typing import Final

from node.rocketmq.hold import NothingDoneError
from node.rocketmq.remoting.protocol.answers import RefusedError
from node.rocketmq.remoting.protocol.codes import ResponseCode

COUNT_MAX: Final = 6_144
"""Below the calls under way that the leader takes of one connection."""
SIZE_BYTES_MAX: Final = 48 << 20
SHARE: Final = 3
"""One address may have a third of each."""


class ForwardWindow:
    """Counts what is on the way. One per gateway."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._sizes_bytes: Counter[str] = Counter()
        self.count = self.size_bytes = 0

    def take(self, host: str, size_bytes: int) -> None:
        """Note a command of a caller at an address. Raises NothingDoneError with the limit."""
        self._check(self._counts[host], self._sizes_bytes[host] + size_bytes, SHARE)
        self._check(self.count, self.size_bytes + size_bytes, 1)
        self._counts[host] += 1
        self._sizes_bytes[host] += size_bytes
        self.count += 1
        self.size_bytes += size_bytes

    @staticmethod
    def _check(count: int, size_bytes: int, share: int) -> None:
        count_max, size_bytes_max = COUNT_MAX // share, SIZE_BYTES_MAX // share
        if count < count_max and size_bytes <= size_bytes_max:
            return
        limit = f"{count_max} commands" if count >= count_max else f"{size_bytes_max} bytes"
        whose = "one address" if share > 1 else "all clients of this node"
        text = f"{limit} of {whose} are on the way to the leader, the limit; try again"
        raise NothingDoneError(RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, text))

    def give_back(self, host: str, size_bytes: int) -> None:
        """Forget a command that has its answer, or gets none."""
        self.count -= 1
        self.size_bytes -= size_bytes
        self._counts[host] -= 1
        self._sizes_bytes[host] -= size_bytes
        if not self._counts[host]:
            del self._counts[host], self._sizes_bytes[host]
