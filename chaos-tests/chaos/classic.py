"""A classic consumer of RocketMQ, as its clients of version 5 are: it computes its queues alone.

Owns its connections, heartbeats, division, pulls and offsets, at the intervals of those clients.
Its codec is its own, written from the protocol, and shares nothing with the node's. Must not know
faults: a call that fails is made again at the next interval.
"""

import asyncio
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Final, NamedTuple

from quorumlog.consume.rebalance import averagely
from store.record.message import Message, decode_message

HEARTBEAT_S: Final = 30.0
ROUTE_S: Final = 30.0
REBALANCE_S: Final = 20.0
"""Without a notice that the group changed."""
COMMIT_S: Final = 5.0
_SUSPEND_MS: Final = 15_000
_ANSWER_S: Final = 5.0
_PULL_S: Final = 30.0
_PAUSE_S: Final = 3.0
"""After a pull that failed."""
_PULL, _FETCH, _COMMIT, _HEARTBEAT, _LEAVE, _MEMBERS, _CHANGED, _ROUTE = (
    11, 14, 15, 34, 35, 38, 40, 105
)  # fmt: skip
_FOUND, _NOT_FOUND, _RETRY, _MOVED, _NO_OFFSET = 0, 19, 20, 21, 22
_PREFIX: Final = struct.Struct(">II")
Queue = tuple[str, int]
"""Broker name, and queue id under it."""


class _Answer(NamedTuple):
    code: int
    ext: Mapping[str, str]
    body: bytes


class _Connection:
    """Requests and their answers; notices of a changed group go to a callback."""

    def __init__(
        self, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], notice: Callable[[], None]
    ) -> None:
        self._reader, self._writer = streams
        self._notice = notice
        self._answers: dict[int, asyncio.Future[_Answer]] = {}
        self._opaque = 0
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            while True:
                size, word = _PREFIX.unpack(await self._reader.readexactly(_PREFIX.size))
                rest = await self._reader.readexactly(size - 4)
                head = json.loads(rest[:word])  # Answers are JSON, which is kind 0.
                if head["flag"] & 1 and head["opaque"] in self._answers:
                    answer = _Answer(head["code"], head["extFields"], rest[word:])
                    self._answers.pop(head["opaque"]).set_result(answer)
                elif head["code"] == _CHANGED:
                    self._notice()
        except (asyncio.IncompleteReadError, ConnectionError):
            self._writer.close()
            for future in self._answers.values():
                future.cancel()

    def close(self) -> None:
        """Close; who waits for an answer gets none."""
        self._writer.close()
        self.task.cancel()

    async def ask(self, code: int, ext: Mapping[str, str], body: bytes, wait_s: float) -> _Answer:
        """Return the answer. Raises OSError without one."""
        if self.task.done():
            raise ConnectionError
        self._opaque = opaque = self._opaque + 1
        future: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._answers[opaque] = future
        head = {"code": code, "opaque": opaque, "flag": 0, "version": 479, "extFields": ext}
        data = json.dumps(head).encode()
        self._writer.write(_PREFIX.pack(4 + len(data) + len(body), len(data)) + data + body)
        await asyncio.wait({future}, timeout=wait_s)
        self._answers.pop(opaque, None)
        if not future.done() or future.cancelled():
            raise ConnectionError
        return future.result()


class ClassicMember:
    """A member of a group that reads one topic. Makes no call of itself after `run`."""

    def __init__(
        self,
        name_servers: Sequence[str],
        topic: str,
        group: str,
        client_id: str,
        *,
        on_message: Callable[[Message], None],
        on_queues: Callable[[list[int]], None],
        on_moved: Callable[[str], None],
    ) -> None:
        """`on_queues` is called with the broker group's queues that it holds, when they change;
        `on_moved` with a pull that was told to go on elsewhere."""
        self._name_servers, self._topic, self._group = name_servers, topic, group
        self._client_id = client_id
        self._on_message, self._on_queues, self._on_moved = on_message, on_queues, on_moved
        self._random = Random(client_id)
        self._addresses: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._connections: dict[str, _Connection] = {}
        self._connecting = asyncio.Lock()
        self._pulling: dict[Queue, asyncio.Task[None]] = {}
        self._offsets: dict[Queue, int] = {}
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Consume until cancelled, and leave in order."""
        while not self._addresses:
            with suppress(OSError):
                await self._find_route()
            await asyncio.sleep(0.2)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._every(ROUTE_S, self._find_route))
                tasks.create_task(self._every(HEARTBEAT_S, self._beat))
                tasks.create_task(self._every(COMMIT_S, self._commit))
                tasks.create_task(self._every(REBALANCE_S, self._rebalance, self._wake))
        finally:
            for task in self._pulling.values():
                task.cancel()
            self._pulling.clear()
            self._on_queues([])
            await self._commit()
            for address in set(self._addresses.values()):
                ext = {"clientID": self._client_id, "consumerGroup": self._group}
                with suppress(OSError):
                    await self._ask(address, _LEAVE, ext)

    async def _every(
        self,
        interval_s: float,
        work: Callable[[], Any],
        wake: asyncio.Event | None = None,
    ) -> None:
        wake = wake or asyncio.Event()
        while True:
            wake.clear()
            with suppress(OSError):  # Clients log it, and go on at the next interval.
                await work()
            waiting = asyncio.ensure_future(wake.wait())
            await asyncio.wait({waiting}, timeout=interval_s)
            waiting.cancel()

    async def _ask(
        self,
        address: str,
        code: int,
        ext: Mapping[str, str],
        wait_s: float = _ANSWER_S,
        body: bytes = b"",
    ) -> _Answer:
        async with self._connecting:
            connection = self._connections.get(address)
            if connection is None or connection.task.done():
                connection = self._connections[address] = await self._connect(address)
                # Clients of version 5 introduce themselves on each new connection.
                await connection.ask(_HEARTBEAT, {}, self._introduction(), _ANSWER_S)
        return await connection.ask(code, ext, body, wait_s)

    async def _connect(self, address: str) -> _Connection:
        host, _, port = address.rpartition(":")
        async with asyncio.timeout(_ANSWER_S):
            return _Connection(await asyncio.open_connection(host, int(port)), self._wake.set)

    def _introduction(self) -> bytes:
        subscription = {"topic": self._topic, "subString": "*", "subVersion": 1}
        consumer = {
            "groupName": self._group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [{**subscription, "expressionType": "TAG"}],
        }
        document = {"clientID": self._client_id, "consumerDataSet": [consumer]}
        return json.dumps(document).encode()

    async def _find_route(self) -> None:
        connection = await self._connect(self._random.choice(self._name_servers))
        try:
            answer = await connection.ask(_ROUTE, {"topic": self._topic}, b"", _ANSWER_S)
        finally:
            connection.close()
        if answer.code == 0:
            route = json.loads(answer.body)
            self._addresses = {
                row["brokerName"]: row["brokerAddrs"]["0"] for row in route["brokerDatas"]
            }
            self._counts = {row["brokerName"]: row["readQueueNums"] for row in route["queueDatas"]}

    async def _beat(self) -> None:
        for address in set(self._addresses.values()):
            with suppress(OSError):
                await self._ask(address, _HEARTBEAT, {}, body=self._introduction())

    # --- Queues ---

    async def _rebalance(self) -> None:
        for task in self._pulling.values():
            if task.done():
                task.result()
        address = self._random.choice(sorted(set(self._addresses.values())))
        answer = await self._ask(address, _MEMBERS, {"consumerGroup": self._group})
        if answer.code:
            return
        members = sorted(json.loads(answer.body)["consumerIdList"])
        queues = sorted((name, i) for name, n in self._counts.items() for i in range(n))
        mine = averagely(self._client_id, queues, members)
        for queue in [one for one in self._pulling if one not in mine]:
            self._pulling.pop(queue).cancel()
            self._told()
            await self._commit_one(queue)
            self._offsets.pop(queue, None)
        for queue in [one for one in mine if one not in self._pulling]:
            answer = await self._ask(self._addresses[queue[0]], _FETCH, self._place(queue))
            if answer.code not in (_FOUND, _NO_OFFSET):
                raise ConnectionError
            offset = int(answer.ext.get("offset", "0"))
            self._pulling[queue] = asyncio.create_task(self._pull(queue, offset))
            self._told()

    def _told(self) -> None:
        count = len(self._counts)
        self._on_queues([i * count + _number(name) for name, i in sorted(self._pulling)])

    def _place(self, queue: Queue) -> dict[str, str]:
        name, queue_id = queue
        place = {"consumerGroup": self._group, "topic": self._topic, "queueId": str(queue_id)}
        return place | {"bname": name}

    async def _commit(self) -> None:
        for queue in list(self._offsets):
            await self._commit_one(queue)

    async def _commit_one(self, queue: Queue) -> None:
        if queue in self._offsets:
            ext = self._place(queue) | {"commitOffset": str(self._offsets[queue])}
            with suppress(OSError):  # The next commit has it.
                await self._ask(self._addresses[queue[0]], _COMMIT, ext)

    async def _pull(self, queue: Queue, offset: int) -> None:
        more = {
            "maxMsgNums": "32",
            "sysFlag": "6",
            "commitOffset": "0",
            "suspendTimeoutMillis": str(_SUSPEND_MS),
            "subscription": "*",
            "subVersion": "1",
        }
        while True:
            ext = self._place(queue) | more | {"queueOffset": str(offset)}
            try:
                answer = await self._ask(self._addresses[queue[0]], _PULL, ext, _PULL_S)
            except OSError:
                await asyncio.sleep(_PAUSE_S)
                continue
            if answer.code == _MOVED:
                self._on_moved(f"{queue} from {offset}: {answer.ext}")
            if answer.code not in (_FOUND, _NOT_FOUND, _RETRY, _MOVED):
                await asyncio.sleep(_PAUSE_S)
                continue
            at = 0
            while at < len(answer.body):
                message = decode_message(answer.body, at)
                at += message.size_bytes
                self._on_message(message)
                self._offsets[queue] = message.queue_offset + 1
            offset = int(answer.ext["nextBeginOffset"])


def _number(name: str) -> int:
    """Return the number of a broker name, from 0."""
    return int(name.rpartition("-n")[2]) - 1
