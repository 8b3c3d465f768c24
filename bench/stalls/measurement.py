"""Sends the inputs to a watched node, beside a producer.

Owns the order: tables are filled, then each input goes out alone and then BURST_COUNT times at
once, a few rounds of both. Must not know what an input means.
"""

import asyncio
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc

import quorumlog
from bench.own_cluster import parent_of_data
from bench.signalled import BEGIN, END, signalled
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
from deploy.local import LocalCluster
from deploy.local_process import free_ports
from node.rocketmq.remoting.calls.sent_messages import BATCH_COUNT_MAX
from node.rocketmq.remoting.channel import RemotingChannel
from node.rocketmq.remoting.protocol.codes import RequestCode
from node.rocketmq.remoting.protocol.command import VERSION, Command
from node.runtime.channel_options import CHANNEL_OPTIONS
from quorumlog.pb import admin_pb2

BURST_COUNT: Final = 8
ROUND_COUNT: Final = 3
Watch = Callable[[signal.Signals], dict[str, Any]]
"""Begins or ends a watch; returns what the node says. Raises MeasuredNodeError."""
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


@contextmanager
def watched_node() -> Iterator[tuple[LocalCluster, Watch, int]]:
    """Run a node in a new directory; yield it with its watch and its broker port."""
    root = tempfile.mkdtemp(prefix="qlog-stalls-", dir=parent_of_data())
    try:
        [port] = free_ports(1)
        settings = {"rocketmq_listen": f"127.0.0.1:{port}", "rocketmq_name_count": 1}
        nodes = LocalCluster.create(Path(root) / "nodes", 1, settings=settings)
        with signalled(nodes, "bench.stalls.watched_node") as ask:
            yield nodes, partial(ask, 1), port
    finally:
        shutil.rmtree(root)


async def measure(only: Sequence[str], on_row: Callable[[StandStill], None]) -> None:
    """Call `on_row` with the row of each input whose name has one of the texts in it; all
    without one."""
    with watched_node() as (nodes, watch, port):
        channel = await RemotingChannel.connect("127.0.0.1", port, None, lambda _: None)
        async with grpc.aio.insecure_channel(nodes.address(1), CHANNEL_OPTIONS) as link:
            asker = _Asker(channel, link)
            await _fill(asker)
            own_calls = [*own()]
            before = nodes.status()[0]
            async with _producer(nodes.bootstrap):
                count = ROUND_COUNT * (1 + BURST_COUNT)
                rounds: list[list[Input | OwnCall]] = [
                    [*classic(n), *own_calls] for n in range(count)
                ]
                for index, first in enumerate(rounds[0]):
                    name = _name(first)
                    if not only or any(one in name for one in only):
                        on_row(await _row(watch, asker, name, [row[index] for row in rounds]))
                if not only or any(one in LEAVE for one in only):
                    on_row(await _leave(watch, asker, port))
            after = nodes.status()[0]
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


async def _row(watch: Watch, asker: _Asker, name: str, inputs: list[Input | OwnCall]) -> StandStill:
    rounds: dict[int, list[dict[str, Any]]] = {1: [], BURST_COUNT: []}
    at, answers = 0, []
    for _ in range(ROUND_COUNT):
        for count, rows in rounds.items():
            watch(BEGIN)
            questions = [asker.ask(one) for one in inputs[at : at + count]]
            answers = await asyncio.gather(*questions, return_exceptions=True)
            at += count
            rows.append(watch(END))
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


async def _leave(watch: Watch, asker: _Asker, port: int) -> StandStill:
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
        watch(BEGIN)
        channel.close()
        for _ in range(20 * lasting):
            await asker.ask(Input(RequestCode.GET_BROKER_CONFIG, {}))
        pauses.append(watch(END))
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
