"""A name server and broker at one port of loopback that answers what a test wants.

Owns the answers of a sound source of one topic without messages; a test replaces some of them.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.node.rocketmq.remoting.clients import json_frame
from tests.node.rocketmq.remoting.codes import (
    ALL_GROUPS,
    CLUSTER,
    GET_OFFSET,
    MAX,
    MIN,
    PULL,
    ROUTE,
    TOPIC,
    TOPICS,
)

TOPICS_OF_GROUP = 343
Answer = tuple[int, dict[str, str], bytes]
"""Code, ext fields, body. A lie of bytes is written as it is."""
Lie = Callable[[dict[str, str]], Answer | bytes]


def said(document: Any = None, code: int = 0, **ext: str) -> Lie:
    """Always the same answer. A document that is no bytes becomes JSON."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return lambda _: (code, ext, body)


def frame(opaque: int, code: int, ext: dict[str, str], body: bytes, remark: str = "") -> bytes:
    """An answer as it is on the wire."""
    fields = {"code": code, "opaque": opaque, "flag": 1, "extFields": ext, "remark": remark}
    return json_frame(fields, body)


def route(broker: object, address: str) -> dict[str, Any]:
    """A route with one queue."""
    queues = {"brokerName": broker, "perm": 6, "readQueueNums": 1, "writeQueueNums": 1}
    brokers = {"brokerName": "b", "brokerAddrs": {"0": address}}
    return {"brokerDatas": [brokers], "queueDatas": [queues]}


@asynccontextmanager
async def source_with(lies: dict[int, Lie], remark: str = "") -> AsyncIterator[str]:
    """Yield the address of a source that lies in the answers to some codes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size_bytes = int.from_bytes(await reader.readexactly(4), "big")
                data = await reader.readexactly(size_bytes)
                header_size_bytes = int.from_bytes(data[1:4], "big")
                header = json.loads(data[4 : 4 + header_size_bytes])
                lie = answers.get(header["code"], said(code=1))(header["extFields"])
                if isinstance(lie, tuple):
                    lie = frame(header["opaque"], *lie, remark)
                writer.write(lie)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    brokers = {"b": {"brokerName": "b", "brokerAddrs": {"0": address}}}
    answers: dict[int, Lie] = {
        CLUSTER: said({"brokerAddrTable": brokers, "clusterAddrTable": {"c": ["b"]}}),
        TOPICS: said({"topicList": ["t"]}),
        ROUTE: said(route("b", address)),
        TOPIC: said({}),
        MIN: said(offset="0"),
        MAX: said(offset="5"),
        PULL: said(code=20, nextBeginOffset="5"),
        ALL_GROUPS: said({"subscriptionGroupTable": {}}),
        TOPICS_OF_GROUP: said({"topicList": ["t"]}),
        GET_OFFSET: said(code=22),
    } | lies
    try:
        yield address
    finally:
        server.close()
