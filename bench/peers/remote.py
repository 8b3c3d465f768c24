"""A client in a process of its own that is driven by requests: one JSON line there, one back.

Owns the wire between this process and a driver: `produce` with a load, `consume`, `status`. For
peers whose client is not in Python, or lives inside a node. Must not know what the driver does.
"""

import asyncio
import json
from array import array
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from bench.peers.peer import (
    ConsumeResult,
    NotOfferedError,
    PeerFailedError,
    PeerLoad,
    ProduceResult,
)

Answer = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]

_LINE_SIZE_BYTES_MAX: Final = 256 << 20
_HOST: Final = "127.0.0.1"


async def ask(port: int, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
    """Send one request and return its answer. Raises PeerFailedError with the driver's error."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(_HOST, port, limit=_LINE_SIZE_BYTES_MAX)
            try:
                writer.write(json.dumps(request).encode() + b"\n")
                await writer.drain()
                line = await reader.readline()
            finally:
                writer.close()
                await writer.wait_closed()
    except (OSError, TimeoutError) as error:
        raise PeerFailedError(f"the driver did not answer {request['op']}: {error!r}") from error
    if not line:
        raise PeerFailedError(f"the driver ended while it was at {request['op']}")
    answer: dict[str, Any] = json.loads(line)
    if "not_offered" in answer:
        raise NotOfferedError(answer["not_offered"])
    if "error" in answer:
        # Errors of RocketMQ end with a link to more text, which does not help here.
        said = " ".join(answer["error"].split("See https://")[0].split())
        raise PeerFailedError(f"the driver failed at {request['op']}: {said}")
    return answer


async def produce(port: int, load: PeerLoad, *, timeout_s: float) -> ProduceResult:
    """Have the driver run a load."""
    found = await ask(port, {"op": "produce", **asdict(load)}, timeout_s=timeout_s)
    return ProduceResult(
        message_count=found["message_count"],
        seconds=found["seconds"],
        error_count=found["error_count"],
        began_s=array("d", found["began_s"]),
        took_s=array("d", found["took_s"]),
    )


async def consume(port: int, *, timeout_s: float) -> ConsumeResult:
    """Have the driver read the first topic."""
    found = await ask(port, {"op": "consume"}, timeout_s=timeout_s)
    return ConsumeResult(found["message_count"], found["size_bytes"], found["seconds"])


async def serve(port: int, answer: Answer) -> None:
    """Serve as a driver, until the process is ended: answer each line with one, errors too."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            try:
                found = await answer(json.loads(line))
            except NotOfferedError as error:
                found = {"not_offered": str(error)}
            except Exception as error:  # noqa: BLE001  The caller must get every error.
                found = {"error": repr(error)}
            writer.write(json.dumps(found).encode() + b"\n")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, _HOST, port)
    async with server:
        await server.serve_forever()
