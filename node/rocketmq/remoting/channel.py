"""A connection to the remoting port of another node: commands out, their answers back.

Owns one connection and the commands on it that wait for an answer. Must not know what a command
means. A command that was written before the connection broke may have been carried out.
"""

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from node.framed.frames import JSON_KIND, ROCKETMQ_KIND, FramedParser, FrameFault, Reason
from node.framed.limits import FramedLimits
from node.rocketmq.remoting.protocol.command import Command, decode, encode_head

CONNECT_S: Final = 0.5
"""Time to connect; then the caller looks again for the leader."""
_OPAQUE_MAX: Final = (1 << 31) - 1
STRAY_COUNT_MAX: Final = 1_024
"""Commands in a row that answer no request under way. Late answers are a few."""


class NotConnectedError(Exception):
    """There is no connection: the command was not sent."""


class BrokenError(Exception):
    """The connection broke before the answer: whether the command was carried out is unknown."""


class RemotingChannel(asyncio.BufferedProtocol):
    """One connection to host and port, made by `connect`."""

    def __init__(self, on_end: "Callable[[RemotingChannel], None]") -> None:
        limits = FramedLimits()
        self._scratch = memoryview(bytearray(limits.read_size_bytes))
        self._parser = FramedParser(self._scratch, (JSON_KIND, ROCKETMQ_KIND), limits)
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self._last_opaque = 0
        self._stray_count = 0

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        context: ssl.SSLContext | None,
        on_end: "Callable[[RemotingChannel], None]",
    ) -> "RemotingChannel":
        """Connect. Raises NotConnectedError."""
        try:
            async with asyncio.timeout(CONNECT_S):
                _, made = await asyncio.get_running_loop().create_connection(
                    lambda: cls(on_end), host, port, ssl=context
                )
        except (OSError, ValueError) as error:  # The first: time-outs and TLS; the second: names.
            why = str(error) or "no connection in time"
            raise NotConnectedError(f"{host}:{port}: {why}") from error
        return made

    def ask(self, command: Command, timeout_s: float) -> "asyncio.Future[Command]":
        """Send a command with a number of this connection's own; return the future of its answer.

        The future fails with BrokenError for an outcome that is unknown. Raises NotConnectedError.
        """
        transport = self._transport
        if transport is None:
            raise NotConnectedError("the connection was closed")
        self._last_opaque = self._last_opaque + 1 if self._last_opaque < _OPAQUE_MAX else 1
        opaque = command.opaque = self._last_opaque
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Command] = loop.create_future()
        self._waiting[opaque] = future
        timer = loop.call_later(timeout_s, self._on_timeout, future, timeout_s)
        future.add_done_callback(partial(self._on_done, opaque, timer))
        head = encode_head(command)
        if command.body:
            transport.writelines((head, command.body))
        else:
            transport.write(head)
        return future

    @staticmethod
    def _on_timeout(future: "asyncio.Future[Command]", timeout_s: float) -> None:
        if not future.done():
            future.set_exception(BrokenError(f"no answer within {timeout_s:.1f} s"))

    def _on_done(self, opaque: int, timer: asyncio.TimerHandle, _: object) -> None:
        timer.cancel()
        self._waiting.pop(opaque, None)

    def close(self) -> None:
        """Close; commands without an answer fail."""
        if self._transport is not None:
            self._transport.abort()
        self._end("it was closed")

    def _end(self, why: str) -> None:
        if self._transport is None:
            return
        self._transport = None
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(BrokenError(why))
        self._on_end(self)

    # --- asyncio.BufferedProtocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frame = self._parser.take(nbytes)
            while frame is not None:
                command = decode(*frame)
                future = self._waiting.get(command.opaque)
                if command.is_response and future is not None and not future.done():
                    self._stray_count = 0
                    future.set_result(command)
                else:
                    self._stray_count += 1
                    if self._stray_count > STRAY_COUNT_MAX:
                        detail = f"{self._stray_count} commands that answer no request"
                        raise FrameFault(Reason.OPAQUE, detail)
                frame = self._parser.next_frame() if self._parser.rest else None
        except FrameFault as fault:
            transport = self._transport
            self._end(str(fault))
            if transport is not None:
                transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"it broke: {exc or 'closed by the other side'}")
