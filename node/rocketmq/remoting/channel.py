"""A connection to the remoting port of another node: commands out, their answers back.

Owns one connection, the commands on it that wait for an answer, and those that wait to be written
because the other node does not read. Must not know what a command means. A command that was written
before the connection broke may have been carried out; one that still waited here was not.
"""

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final, cast

from node.framed.frames import (
    JSON_KIND,
    PREFIX_SIZE_BYTES,
    ROCKETMQ_KIND,
    FramedParser,
    FrameFault,
    Reason,
)
from node.framed.limits import FramedLimits
from node.rocketmq.remoting.protocol.command import (
    FORWARDED_GROWTH_SIZE_BYTES,
    ONEWAY,
    RESPONSE,
    Command,
    decode,
    encode_forwarded_head,
)
from node.rocketmq.remoting.protocol.marks import CHALLENGE, GREETING, PROOF, WITHDRAWAL, WITHDRAWN

CONNECT_S: Final = 0.5
"""Time to connect; then the caller looks again for the leader."""
_OPAQUE_MAX: Final = (1 << 31) - 1
_FAILED_COUNT: Final = 64
"""Commands that fail in one turn of the loop: some ms."""
_SENT: Final = FramedLimits()
"""What the other node takes, but for the growth of what is forwarded."""
_TAKEN: Final = FramedLimits(frame_size_bytes_max=16 << 20, header_size_bytes_max=(16 << 20) - 1)
"""Answers of every size that a node gives."""
STRAY_COUNT_MAX: Final = 1_024
"""Commands in a row that answer no request under way. Late answers are a few."""


class NotConnectedError(Exception):
    """There is no connection: the command was not sent."""


class BrokenError(Exception):
    """The connection broke before the answer: whether the command was carried out is unknown."""


class RemotingChannel(asyncio.BufferedProtocol):
    """One connection to host and port, made by `connect`."""

    def __init__(
        self, on_end: "Callable[[RemotingChannel], None]", *, is_between_nodes: bool
    ) -> None:
        limits = _TAKEN if is_between_nodes else FramedLimits()
        self._scratch = memoryview(bytearray(limits.read_size_bytes))
        self._parser = FramedParser(self._scratch, (JSON_KIND, ROCKETMQ_KIND), limits)
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self._unwritten: dict[int, tuple[bytes, bytes]] = {}
        """Heads and bodies that the transport does not have, by opaque, oldest first."""
        self._is_taken = True
        """Whether the other node takes what is written."""
        self._is_between_nodes = is_between_nodes
        self._last_opaque = 0
        self._stray_count = 0

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        context: ssl.SSLContext | None,
        on_end: "Callable[[RemotingChannel], None]",
        prove: Callable[[bytes], bytes] | None = None,
    ) -> "RemotingChannel":
        """Connect, and prove with the answer to a challenge that this is a node; None: the other
        side is no node of this cluster. Raises NotConnectedError."""
        made: RemotingChannel | None = None
        try:
            async with asyncio.timeout(CONNECT_S):
                _, made = await asyncio.get_running_loop().create_connection(
                    lambda: cls(on_end, is_between_nodes=prove is not None), host, port, ssl=context
                )
                if prove is not None:
                    answer = await made.ask(Command(GREETING), CONNECT_S)
                    proof = prove(bytes.fromhex(answer.ext.get(CHALLENGE, "")))
                    answer = await made.ask(Command(GREETING, ext={PROOF: proof.hex()}), CONNECT_S)
                    if answer.code:
                        text = f"it takes this node for a stranger: {answer.remark}"
                        raise ConnectionError(text)
        except BaseException as error:
            if made is not None:
                made.close()
            # OSErrors are time-outs and TLS, too; ValueErrors are names.
            if not isinstance(error, (OSError, ValueError, BrokenError, NotConnectedError)):
                raise
            why = str(error) or "no connection in time"
            raise NotConnectedError(f"{host}:{port}: {why}") from error
        return made

    def ask(self, command: Command, timeout_s: float) -> "asyncio.Future[Command]":
        """Send a command with a number of this connection's own; return the future of its answer.

        The future fails with BrokenError for an outcome that is unknown, and with NotConnectedError
        for a command that was not written. Raises NotConnectedError, and ValueError for a command
        that has no form in which the other node takes it.
        """
        transport = self._transport
        if transport is None:
            raise NotConnectedError("the connection was closed")
        self._last_opaque = self._last_opaque + 1 if self._last_opaque < _OPAQUE_MAX else 1
        opaque = command.opaque = self._last_opaque
        head = encode_forwarded_head(command)
        for what, size_bytes, limit in (  # It would break the connection which other clients share.
            ("header", len(head) - PREFIX_SIZE_BYTES, _SENT.header_size_bytes_max),
            ("command", len(head) + len(command.body), _SENT.frame_size_bytes_max),
        ):
            if size_bytes > limit + FORWARDED_GROWTH_SIZE_BYTES:
                raise ValueError(f"the {what} has {size_bytes} bytes on its way to the leader")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Command] = loop.create_future()
        self._waiting[opaque] = future
        timer = loop.call_later(timeout_s, self._on_timeout, opaque, timeout_s)
        future.add_done_callback(partial(self._on_done, opaque, timer))
        if self._is_taken:
            _write(transport, head, command.body)
        else:
            self._unwritten[opaque] = (head, command.body)
        return future

    def withdraw(self, asked: "asyncio.Future[Command]", opaque: int) -> None:
        """Give a command up whose answer is of no use any more, at the other node, too."""
        is_there = opaque in self._waiting and opaque not in self._unwritten
        asked.cancel()
        if is_there and self._transport is not None and self._is_taken:
            command = Command(WITHDRAWAL, flag=ONEWAY, ext={WITHDRAWN: str(opaque)})
            _write(self._transport, encode_forwarded_head(command), b"")

    def _on_timeout(self, opaque: int, timeout_s: float) -> None:
        self._fail(opaque, f"no answer within {timeout_s:.1f} s")

    def _fail(self, opaque: int, why: str) -> None:
        """Give a command up. What was not written was not carried out."""
        future = self._waiting.pop(opaque, None)
        is_written = self._unwritten.pop(opaque, None) is None
        if future is not None and not future.done():
            text = f"{why}, before the command was written"
            future.set_exception(BrokenError(why) if is_written else NotConnectedError(text))

    def _on_done(
        self, opaque: int, timer: asyncio.TimerHandle, future: "asyncio.Future[Command]"
    ) -> None:
        timer.cancel()
        self._waiting.pop(opaque, None)
        self._unwritten.pop(opaque, None)
        if not future.cancelled():
            future.exception()  # Its client may have gone: then no call looks at it.

    def close(self, why: str = "it was closed") -> None:
        """Close for a reason; commands without an answer fail."""
        transport = self._transport
        self._end(why)
        if transport is not None:
            transport.abort()

    def _end(self, why: str) -> None:
        if self._transport is None:
            return
        self._transport = None
        self._fail_some(why)
        self._on_end(self)

    def _fail_some(self, why: str) -> None:
        """Fail some commands in each turn of the loop: their calls go on in the next one."""
        for opaque in list(islice(self._waiting, _FAILED_COUNT)):
            self._fail(opaque, why)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._fail_some, why)

    # --- asyncio.BufferedProtocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frame = self._parser.take(nbytes)
            while frame is not None:
                kind, header, body = frame
                if body is None:
                    raise FrameFault(Reason.LENGTH, "an answer of more than 16 MiB")
                command = decode(kind, header, body, is_from_node=self._is_between_nodes)
                future = self._waiting.get(command.opaque)
                if command.flag & RESPONSE and future is not None and not future.done():
                    self._stray_count = 0
                    future.set_result(command)
                elif not self._is_between_nodes:  # A node that stood still answers many late.
                    self._stray_count += 1
                    if self._stray_count > STRAY_COUNT_MAX:
                        detail = f"{self._stray_count} commands that answer no request"
                        raise FrameFault(Reason.OPAQUE, detail)
                frame = self._parser.next_frame() if self._parser.rest else None
        except FrameFault as fault:
            self.close(str(fault))

    def pause_writing(self) -> None:
        self._is_taken = False

    def resume_writing(self) -> None:
        self._is_taken = True
        while self._unwritten and self._is_taken and self._transport is not None:
            head, body = self._unwritten.pop(next(iter(self._unwritten)))
            _write(self._transport, head, body)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"it broke: {exc or 'closed by the other side'}")


def _write(transport: asyncio.Transport, head: bytes, body: bytes) -> None:
    if body:
        transport.writelines((head, body))
    else:
        transport.write(head)
