"""A client in a process of its own that is driven by requests: one JSON line there, one back.

Owns the wire between this process and a driver in Java: `produce` with a load, `consume`, `status`.
Must not know what the driver does.
"""

import asyncio
import json
from array import array
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from bench.peers.peer import (
    ConsumeResult,
    PeerFailedError,
    PeerLoad,
    ProduceResult,
)

_LINE_SIZE_BYTES_MAX: Final = 256 << 20
_HOST: Final = "127.0.0.1"
_MARGIN_S: Final = 120.0
"""Limit of the time of an answer, beside that of the load."""


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
    if "error" in answer:
        # Errors of RocketMQ end with a link to more text, which does not help here.
        said = " ".join(answer["error"].split("See https://")[0].split())
        raise PeerFailedError(f"the driver failed at {request['op']}: {said}")
    return answer


async def produce(port: int, load: PeerLoad) -> ProduceResult:
    """Have the driver run a load."""
    timeout_s = 10 * _MARGIN_S if load.seconds is None else load.seconds + _MARGIN_S
    answer = await ask(port, {"op": "produce", **asdict(load)}, timeout_s=timeout_s)
    return ProduceResult(
        message_count=answer["message_count"],
        seconds=answer["seconds"],
        error_count=answer["error_count"],
        began_s=array("d", answer["began_s"]),
        took_s=array("d", answer["took_s"]),
    )


async def consume(port: int) -> ConsumeResult:
    """Have the driver read the first topic."""
    answer = await ask(port, {"op": "consume"}, timeout_s=_MARGIN_S)
    return ConsumeResult(answer["message_count"], answer["size_bytes"], answer["seconds"])
