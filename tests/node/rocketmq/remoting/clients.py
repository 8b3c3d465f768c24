"""A classic client as a raw socket, over a gateway in the process of the test.

Its codec is its own, written from the protocol, and shares nothing with the node's.
"""

import asyncio
import json
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from node.config.settings import Settings
from node.config.types import Address
from node.framed.calls import FramedCalls
from node.framed.server import FramedServer
from node.rocketmq.clients import GatewayClients
from node.rocketmq.remoting.calls.transactions import Questions
from node.rocketmq.remoting.conversation import RemotingCalls
from node.rocketmq.remoting.protocol.marks import CHALLENGE, GREETING, PROOF
from node.rocketmq.remoting.service import OtherNodes, Remoting
from node.runtime.accounts import Accounts, Kind, Limit
from node.services.calls import ServedCalls
from node.users.guard import Guard
from quorumlog.pb.admin_pb2 import NodeStatusRequest, NodeStatusResponse
from quorumlog.pb.log_pb2 import RouteResponse
from quorumlog.pb.transaction_pb2 import TransactionCheck
from tests.node.broker_fakes import Fixture, node_at
from tests.node.rocketmq.guards import TOKEN, proofs_of
from tests.node.rocketmq.remoting import codes
from tests.patience import PATIENCE_S

RESPONSE, ONEWAY = 1, 2
"""The token of every node of these tests."""


class Heard(NamedTuple):
    """A command as a client reads it."""

    code: int
    opaque: int
    flag: int
    ext: dict[str, str]
    body: bytes
    remark: str | None
    version: int


def json_frame(document: dict[str, Any], body: bytes = b"") -> bytes:
    header = json.dumps(document).encode()
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def binary_frame(
    code: int, opaque: int, flag: int, ext: dict[str, str], body: bytes = b"", version: int = 479
) -> bytes:
    fields = b"".join(
        struct.pack(">h", len(k)) + k + struct.pack(">i", len(v)) + v
        for k, v in ((k.encode(), v.encode()) for k, v in ext.items())
    )
    header = struct.pack(">hBhii", code, 0, version, opaque, flag)
    header += struct.pack(">i", 0) + struct.pack(">i", len(fields)) + fields
    word = 1 << 24 | len(header)
    return struct.pack(">II", 4 + len(header) + len(body), word) + header + body


class ClassicClient:
    """One connection: requests with answers, and what the node says by itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._opaque = 100
        self._answers: dict[int, asyncio.Future[Heard]] = {}
        self.told: asyncio.Queue[Heard] = asyncio.Queue()
        """Requests of the node."""
        self.has_ended = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._read())

    @classmethod
    async def connect(
        cls, port: int, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
    ) -> Self:
        """Connect from an address."""
        connection = asyncio.open_connection("127.0.0.1", port, ssl=tls, local_addr=(host, 0))
        return cls(*await connection)

    async def _read(self) -> None:
        try:
            while True:
                length, word = struct.unpack(">II", await self._reader.readexactly(8))
                rest = await self._reader.readexactly(length - 4)
                assert word >> 24 == 0, "answers are JSON"
                size = word & 0xFFFFFF
                document = json.loads(rest[:size])
                ext = document.get("extFields") or {}  # RocketMQ leaves out an empty table.
                code, opaque, flag = document["code"], document["opaque"], document["flag"]
                remark, version = document.get("remark"), document["version"]
                heard = Heard(code, opaque, flag, ext, rest[size:], remark, version)
                if heard.flag & RESPONSE:
                    self._answers.pop(heard.opaque).set_result(heard)
                else:
                    self.told.put_nowait(heard)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.has_ended.set_result(None)

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def begin(
        self, code: int, ext: dict[str, str] | None = None, body: object = b"", **more: Any
    ) -> "asyncio.Future[Heard]":
        """Send a request, a document as JSON; return the future of its answer."""
        self._opaque += 1
        future: asyncio.Future[Heard] = asyncio.get_running_loop().create_future()
        self._answers[self._opaque] = future
        document = {"code": code, "opaque": self._opaque, "flag": 0, "version": 479, **more}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.write(json_frame({**document, "extFields": ext or {}}, data))
        return future

    def begin_send(
        self, body: bytes = b"x", queue: int = 0, topic: str = "orders", **properties: str
    ) -> "asyncio.Future[Heard]":
        """Send one message to a broker's first name; return the future of its answer."""
        return self.begin(codes.SEND, send_fields(topic, queue, "g0-n1", **properties), body)

    async def ask(
        self, code: int, ext: dict[str, str] | None = None, body: object = b"", **more: Any
    ) -> Heard:
        async with asyncio.timeout(PATIENCE_S):
            return await self.begin(code, ext, body, **more)

    async def become_node(self) -> str:
        """Prove to be another node; return what everybody on the way saw of the proof."""
        challenge = str((await self.ask(GREETING)).ext[CHALLENGE])
        proof = proofs_of().answer(TOKEN, bytes.fromhex(challenge)).hex()
        assert (await self.ask(GREETING, {PROOF: proof})).code == 0
        return proof

    async def hear(self) -> Heard:
        """Return the next request of the node."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.told.get()

    async def send(
        self,
        body: bytes = b"x",
        topic: str = "orders",
        queue: int = 0,
        name: str = "g0-n1",
        sys_flag: int = 0,
        **properties: str,
    ) -> Heard:
        """Send one message with properties."""
        fields = send_fields(topic, queue, name, **properties) | {"f": str(sys_flag)}
        return await self.ask(codes.SEND, fields, body)

    async def pull(
        self, queue: int, offset: int, wait_ms: int = 0, ext: dict[str, str] | None = None
    ) -> Heard:
        """Pull from a queue of topic orders, of broker name g0-n1, with a subscription of all."""
        fields = {
            "consumerGroup": "readers", "topic": "orders", "queueId": str(queue),
            "queueOffset": str(offset), "maxMsgNums": "32", "sysFlag": "6" if wait_ms else "4",
            "commitOffset": "0", "suspendTimeoutMillis": str(wait_ms), "subscription": "*",
            "subVersion": "1", "bname": "g0-n1",
        }  # fmt: skip
        return await self.ask(codes.PULL, fields | (ext or {}))

    async def heartbeat(
        self,
        client_id: str,
        group: str = "readers",
        *topics: str,
        tags: str = "*",
        model: str = "CLUSTERING",
    ) -> Heard:
        """Register as a consumer of topics, of orders without any."""
        read = {"subString": tags, "subVersion": 1, "expressionType": "TAG"}
        read |= {"tagsSet": [], "codeSet": [], "classFilterMode": False}
        consumer = {
            "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": model,
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False,
            "subscriptionDataSet": [{"topic": topic, **read} for topic in topics or ("orders",)],
        }  # fmt: skip
        document = {"clientID": client_id, "producerDataSet": [], "consumerDataSet": [consumer]}
        return await self.ask(codes.HEARTBEAT, body=document)

    async def produce_for(self, client_id: str, group: str) -> Heard:
        """Register as a producer."""
        document = {"clientID": client_id, "producerDataSet": [{"groupName": group}]}
        return await self.ask(codes.HEARTBEAT, body=document)

    def answer(self, heard: Heard, code: int = 0, body: bytes = b"") -> None:
        """Answer a request of the node."""
        document = {"code": code, "opaque": heard.opaque, "flag": RESPONSE}
        self.write(json_frame(document, body))

    async def close(self) -> None:
        self._writer.close()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def send_fields(topic: str, queue: int, name: str, **properties: str) -> dict[str, str]:
    """Return the fields of a send in their short form."""
    properties.setdefault("UNIQ_KEY", "0A0000090001272A58B4000000000001")
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    fields = {"a": "producers", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0"}
    return fields | {"g": "1700000000000", "h": "0", "i": text, "n": name}


def entry(body: bytes, properties: bytes = b"", flag: int = 0) -> bytes:
    """Return one message of a batch."""
    rest = struct.pack(">IIii", 0xDAA320A7, 0, flag, len(body)) + body
    rest += struct.pack(">h", len(properties)) + properties
    return struct.pack(">i", 4 + len(rest)) + rest


@dataclass
class Gateway:
    """A gateway over one node, and its port."""

    node: Fixture
    remoting: Remoting
    calls: RemotingCalls
    server: FramedServer
    port: int
    _clients: list[ClassicClient] = field(default_factory=list)

    async def client(
        self, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
    ) -> ClassicClient:
        """Connect from an address."""
        client = await ClassicClient.connect(self.port, host, tls)
        self._clients.append(client)
        return client

    @property
    def call_count(self) -> int:
        """Calls under way."""
        return self.server.connections.call_count

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


@asynccontextmanager
async def gateway_at(
    root: Path,
    guard: Guard | None = None,
    settings: Settings | None = None,
    port_number: int = 0,
    tls: ssl.SSLContext | None = None,
    is_permissive: bool = False,
    held: dict[Kind, Limit] | None = None,
    questions: Questions | None = None,
    **how: Any,
) -> AsyncIterator[Gateway]:
    """A gateway over one node with topic orders of 4 queues and three broker names."""
    async with node_at(root, **how) as node:
        served = ServedCalls(on_fatal=_raise)
        node.broker.has_users = guard is not None
        accounts = Accounts(held or {})
        calls = RemotingCalls(served, accounts, guard)
        server = FramedServer(FramedCalls(served, accounts), others=calls.conversations())
        port = await server.bind(
            Address("127.0.0.1", 0), tls, port_number=port_number, is_permissive=is_permissive
        )
        server.open()
        remoting = Remoting(
            node.broker,
            calls,
            OtherNodes(
                _no_route, None, lambda _node: False, proofs_of(), questions or _no_questions
            ),
            GatewayClients(),
            _status,
            addresses=(f"127.0.0.1:{port}",),
            settings=settings or Settings(node_id=1, directory=root),
        )
        # A node of these never has links, so the clock of the machine would make it cut off.
        remoting.isolation._monotonic_s = lambda: 0.0
        await remoting.start()
        gateway = Gateway(node, remoting, calls, server, port)
        try:
            yield gateway
        finally:
            await gateway.close()
            await server.stop(0)
            await remoting.stop()


@asynccontextmanager
async def client_at(
    root: Path, *how: Any, **more: Any
) -> AsyncIterator[tuple[Gateway, ClassicClient]]:
    """A gateway as above, and a client of it."""
    async with gateway_at(root, *how, **more) as gateway:
        yield gateway, await gateway.client()


async def _no_questions(_address: str, _request: object) -> AsyncIterator[TransactionCheck]:
    for check in list[TransactionCheck]():
        yield check


async def _status(_request: NodeStatusRequest) -> NodeStatusResponse:
    """The node leads; node 2 has all entries, and node 3 lacks five."""
    status = NodeStatusResponse(node_id=1, leader_id=1, last_index=9, commit_index=9)
    for node, match in ((1, 9), (2, 9), (3, 4)):
        address = f"host{node}:808{node}"
        status.members.add(node_id=node, address=address, is_connected=True, match_index=match)
    return status


async def _no_route(_address: str) -> RouteResponse | None:
    return None


def _raise(error: BaseException) -> None:
    raise error
