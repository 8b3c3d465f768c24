"""Strangers: callers of the framed port that nobody checks.

Owns their connections: what they send, when they read, and how they end. Must not know what a node
makes of it.

As a program it is the strangers of one cluster: `python -m tests.strangers SEED SECONDS PORT...`.
"""

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from node.framed.calls import NO_BODY
from node.rocketmq.remoting.protocol.codes import RequestCode
from node.runtime.accounts import Kind
from quorumlog.pb import consumer_pb2, log_pb2, pop_pb2
from tests.cluster.hostile import Hostile
from tests.loopback import HOST
from tests.node.framed import clients as framed
from tests.node.rocketmq.remoting.clients import RESPONSE
from tests.patience import PATIENCE_S
from tests.store.records import record
from tests.strange_requests import CLIENTS, GROUPS, TOPICS, Drawn, draw

COUNT: Final = 8
ENDING_COUNT: Final = 4
"""Strangers whose connections end at random moments."""
DURABLE: Final = frozenset(
    {
        *(Kind.TRANSACTIONS, Kind.DELIVERIES, Kind.NAMES),
        *(Kind.OFFSETS, Kind.PRODUCERS, Kind.DELAYED, Kind.KEYS, Kind.VALUES),
    }
)
"""What stays when its caller has gone."""
_BURST_MAX: Final = 16
_BURST_COUNT_MAX: Final = 4
_MARKER: Final = 1_000_000_000
_METHODS: Final[Sequence[tuple[int, Any]]] = (
    (framed.APPEND, log_pb2.AppendRequest),
    (framed.PULL, log_pb2.PullRequest),
    (framed.TAIL, log_pb2.TailRequest),
    (framed.COMMIT, consumer_pb2.CommitOffsetsRequest),
    (framed.FETCH, consumer_pb2.FetchOffsetsRequest),
    (framed.ACK, pop_pb2.AckRequest),
    (framed.HEARTBEAT, consumer_pb2.HeartbeatRequest),
    (framed.ROUTE, log_pb2.RouteRequest),
    (framed.RECEIVE, pop_pb2.ReceiveRequest),
)
_KNOWN: Final[Mapping[str, Sequence[Any]]] = {
    "topic": TOPICS,
    "topics": TOPICS,
    "group": GROUPS,
    "consumer_group": GROUPS,
    "producer_group": GROUPS,
    "client_id": CLIENTS,
    "name": ("odd",),
    "cluster_id": ("",),
    "queue_id": (0, 1),
    "offset": (0, 1, 5),
    "wait_ms": (0, 15_000),
    "timeout_ms": (0, 1_000),
    "producer_id": (7,),
    "at_least_index": (0,),
    "tags": ("a",),
    "sql": ("",),
    "handles": ("x",),
}


def own_frame(hostile: Hostile, opaque: int) -> bytes:
    """Return a frame of one of our own methods, or a cancel."""
    chance = hostile.random
    method, kind = chance.choice(_METHODS)
    if chance.random() < 0.1:
        return framed.request(method, chance.randrange(1 << 16), flags=framed.CANCEL)
    message, body = hostile.request(kind.DESCRIPTOR), NO_BODY
    if method == framed.APPEND:
        message.ClearField("records")
        topic = chance.choice(TOPICS)
        body, message.record_count = hostile.records(record(1, topic=topic))
    timeout_ms = chance.choice((0, 0, 1, 1_000, (1 << 32) - 1))
    return framed.request(method, opaque, message.SerializeToString(), body, timeout_ms=timeout_ms)


class Stranger:
    """One caller: connection after connection, each with some requests."""

    def __init__(self, seed: int, *, is_ending: bool, host: str = "127.0.0.1") -> None:
        """`host` is the address that it comes from. With `is_ending` its connections end at random
        moments, as those of a process that is killed, some with answers that it never read."""
        self._hostile = Hostile(seed, _KNOWN)
        self._chance = self._hostile.random
        self._is_ending, self._host = is_ending, host
        self._opaque = 0
        self.sent_count = 0
        self._marker = _MARKER
        self.answered_count = 0
        """Bursts that were answered."""

    def _frame(self) -> bytes:
        self._opaque += 1
        self.sent_count += 1
        if self._chance.random() < 0.2:
            return own_frame(self._hostile, self._opaque)
        drawn = draw(self._chance)
        is_answer = drawn.flag & RESPONSE
        return drawn.frame(self._chance.randint(1, 4) if is_answer else self._opaque)

    async def connect(self, port: int) -> None:
        """Send some requests on a connection, and end it. Raises ConnectionError, TimeoutError."""
        chance = self._chance
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, local_addr=(self._host, 0)
        )
        is_deaf = self._is_ending and chance.random() < 0.5
        try:
            for _ in range(chance.randint(1, _BURST_COUNT_MAX)):
                for _ in range(chance.randint(1, _BURST_MAX)):
                    writer.write(self._frame())
                if not is_deaf and not await self._has_answer(reader, writer):
                    return
            if self._is_ending:
                frame = self._frame()
                writer.write(frame[: chance.randrange(len(frame))])
        except ConnectionError:  # The node has closed it.
            pass
        finally:
            if self._is_ending:
                writer.transport.abort()
            else:
                writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _has_answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Read on until a last request has its answer; False: the node closed the connection."""
        self._marker += 1
        writer.write(Drawn(RequestCode.GET_TOPICS_BY_CLUSTER, {}, b"").frame(self._marker))
        wanted, seen = b'"opaque":%d' % self._marker, b""
        async with asyncio.timeout(PATIENCE_S):
            while data := await reader.read(1 << 16):
                seen = seen[-len(wanted) :] + data
                if wanted in seen.replace(b" ", b""):
                    self.answered_count += 1
                    return True
        return False


async def _main(seed: int, seconds: float, ports: list[int]) -> None:
    strangers = [
        Stranger(seed * COUNT + n, is_ending=n < ENDING_COUNT, host=HOST) for n in range(COUNT)
    ]

    async def live(number: int, stranger: Stranger) -> None:
        while True:
            with suppress(ConnectionError):
                await stranger.connect(ports[(number + stranger.sent_count) % len(ports)])

    try:
        async with asyncio.timeout(seconds) as limit:
            await asyncio.gather(*(live(n, one) for n, one in enumerate(strangers)))
    except TimeoutError:
        assert limit.expired(), "a request had no answer"
    print(json.dumps([sum(one.sent_count for one in strangers)]))


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), float(sys.argv[2]), list(map(int, sys.argv[3:]))))
