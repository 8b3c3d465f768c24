"""Sends the inputs to a watched node, beside a producer.

Owns the order: tables are filled, then each input goes out alone and then BURST_COUNT times at
once, a few rounds of both. Must not know what an input means.
"""

import asyncio
import json
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

import quorumlog
from bench.own_cluster import parent_of_data
from bench.stalls.inputs import (
    QUEUE_COUNT,
    TOPIC,
    Input,
    OwnCall,
    batch,
    classic,
    heartbeat_of,
    locks_of,
    own,
    send_fields,
    topics_import,
)
from bench.stalls.watched_node import BEGIN, END, SOCKET_VARIABLE
from deploy.local import LocalCluster
from node.rocketmq.remoting.calls.sent_messages import BATCH_COUNT_MAX
from node.rocketmq.remoting.channel import RemotingChannel
from node.rocketmq.remoting.protocol.codes import RequestCode
from node.rocketmq.remoting.protocol.command import VERSION, Command
from node.runtime.channel_options import CHANNEL_OPTIONS
from quorumlog.pb import admin_pb2

BURST_COUNT: Final = 8
ROUND_COUNT: Final = 3
LEAVE: Final = "the end of a connection"
_CLIENT_COUNT: Final = 2_000
_TIMEOUT_S: Final = 60.0
_PACKAGE: Final = "quorumlog.v1"


@dataclass(frozen=True, slots=True)
class StandStill:
    """What one input did to the loop: the calmest of some rounds, as other work lengthens all."""

    name: str
    size_bytes: int
    answer: str
    alone: dict[str, Any]
    burst: dict[str, Any]


class WatchedNode:
    """One node as a process, with a watch over its loop."""

    def __init__(self, nodes: LocalCluster, server: socket.socket) -> None:
        self.nodes: Final = nodes
        self._server = server

    def tell(self, number: Any) -> dict[str, Any]:
        """Begin or end a watch; return what the node says. Raises TimeoutError."""
        process = self.nodes.process(1)
        assert process is not None, "the node was not started"
        assert process.send(number), "the node has ended"
        link, _ = self._server.accept()
        with link, link.makefile("rb") as file:
            answer: dict[str, Any] = json.load(file)
        return answer


@contextmanager
def watched_node() -> Iterator[tuple[WatchedNode, int]]:
    """Run a node in a new directory; yield it with its broker port."""
    with ExitStack() as held:
        root = tempfile.mkdtemp(prefix="qlog-stalls-", dir=parent_of_data())
        held.callback(shutil.rmtree, root)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings = {"rocketmq_listen": f"127.0.0.1:{port}", "rocketmq_name_count": 1}
        nodes = LocalCluster.create(Path(root) / "nodes", 1, settings=settings)
        server = held.enter_context(socket.socket(socket.AF_UNIX))
        server.bind(f"{root}/socket")
        server.listen()
        server.settimeout(_TIMEOUT_S)
        held.callback(nodes.stop)
        environment = {SOCKET_VARIABLE: f"{root}/socket"}
        nodes.start(environment=environment, module="bench.stalls.watched_node")
        nodes.wait_ready()
        yield WatchedNode(nodes, server), port


async def measure(only: Sequence[str], on_row: Callable[[StandStill], None]) -> None:
    """Call `on_row` with the row of each input whose name has one of the texts in it; all
    without one."""
    with watched_node() as (node, port):
        channel = await RemotingChannel.connect("127.0.0.1", port, None, lambda _: None)
        async with grpc.aio.insecure_channel(node.nodes.address(1), CHANNEL_OPTIONS) as link:
            asker = _Asker(channel, link)
            await _fill(asker)
            own_calls = [*own()]
            before = node.nodes.status()[0]
            async with _producer(node.nodes.bootstrap):
                count = ROUND_COUNT * (1 + BURST_COUNT)
                rounds: list[list[Input | OwnCall]] = [
                    [*classic(n), *own_calls] for n in range(count)
                ]
                for index, first in enumerate(rounds[0]):
                    name = _name(first)
                    if not only or any(one in name for one in only):
                        on_row(await _row(node, asker, name, [row[index] for row in rounds]))
                if not only or any(one in LEAVE for one in only):
                    on_row(await _leave(node, asker, port))
            after = node.nodes.status()[0]
            assert (after.role, after.term) == (before.role, before.term), "another term"
        channel.close()


class _Asker:
    def __init__(self, channel: RemotingChannel, link: grpc.aio.Channel) -> None:
        self._channel, self.link = channel, link

    def ask(self, call: Input | OwnCall) -> Awaitable[Any]:
        """Send a request; return the future of its answer."""
        if isinstance(call, Input):
            command = Command(call.code, ext=call.ext, body=call.body, version=VERSION)
            return self._channel.ask(command, _TIMEOUT_S)
        path = f"/{_PACKAGE}.{call.service}Service/{call.method}"
        method = self.link.unary_unary(
            path, request_serializer=type(call.request).SerializeToString
        )
        answer: Awaitable[Any] = method(call.request, timeout=_TIMEOUT_S)
        return answer


async def _row(
    node: WatchedNode, asker: _Asker, name: str, inputs: list[Input | OwnCall]
) -> StandStill:
    rounds: dict[int, list[dict[str, Any]]] = {1: [], BURST_COUNT: []}
    at, answers = 0, []
    for _ in range(ROUND_COUNT):
        for count, rows in rounds.items():
            node.tell(BEGIN)
            questions = [asker.ask(one) for one in inputs[at : at + count]]
            answers = await asyncio.gather(*questions, return_exceptions=True)
            at += count
            rows.append(node.tell(END))
    last, first = answers[-1], inputs[0]
    said = f"{last.code}" if isinstance(last, Command) else "0"
    if isinstance(last, BaseException):
        said = type(last).__name__
    if isinstance(first, Input):
        size_bytes = len(first.body) + sum(map(len, first.ext.values()))
    else:
        size_bytes = first.request.ByteSize()
    calm = [min(rows, key=lambda row: row["longest_ms"]) for rows in rounds.values()]
    return StandStill(name, size_bytes, said, *calm)


async def _leave(node: WatchedNode, asker: _Asker, port: int) -> StandStill:
    """End a connection that has as many client ids and locks as one may have."""
    pauses = []
    for lasting in (1, 2):
        channel = await RemotingChannel.connect("127.0.0.1", port, None, lambda _: None)
        leaver = _Asker(channel, asker.link)
        for number in range(0, _CLIENT_COUNT, 256):
            beats = map(heartbeat_of, range(number, number + 256))
            await asyncio.gather(*map(leaver.ask, beats))
        for number in range(16):
            await leaver.ask(locks_of(f"lock{number}"))
        node.tell(BEGIN)
        channel.close()
        for _ in range(20 * lasting):
            await asker.ask(Input(RequestCode.GET_BROKER_CONFIG, {}))
        pauses.append(node.tell(END))
    return StandStill(LEAVE, 0, "", *pauses)


def _name(call: Input | OwnCall) -> str:
    if isinstance(call, OwnCall):
        return f"{call.service}/{call.method}"
    return f"{call.code} {RequestCode(call.code).name.lower()}"


async def _fill(asker: _Asker) -> None:
    """Fill the tables: topics, a wide topic with a batch in queue 0, a group with offsets."""
    await asker.ask(OwnCall("Retry", "ImportConfigFiles", topics_import()))
    wide = admin_pb2.CreateTopicRequest(topic=TOPIC, queue_count=QUEUE_COUNT)
    await asker.ask(OwnCall("Admin", "CreateTopic", wide))
    keys = "".join(f"k{n % 99}\x01{n}\x02" for n in range(2_000)) + "KEYS\x011\x02"
    for _ in range(256):
        await asker.ask(Input(RequestCode.SEND_MESSAGE_V2, send_fields(keys), b"x"))
    many = batch(BATCH_COUNT_MAX, is_uniform=False)
    await asker.ask(Input(RequestCode.SEND_BATCH_MESSAGE, send_fields("", is_batch=True), many))
    for queue_id in range(0, QUEUE_COUNT, 8):
        fields = send_fields("", queue_id)
        await asker.ask(Input(RequestCode.SEND_MESSAGE_V2, fields, b"x"))
    await asker.ask(next(one for one in own() if one.method == "CommitOffsets"))


@asynccontextmanager
async def _producer(bootstrap: str) -> AsyncIterator[None]:
    """Send one message after another meanwhile."""
    async with quorumlog.connect(bootstrap) as client, client.producer() as producer:

        async def send() -> None:
            while True:
                await producer.send(TOPIC, b"x" * 100)

        task = asyncio.create_task(send())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
