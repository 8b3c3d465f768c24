"""One stream of appends to one node, from its first batch until its end; over gRPC or frames.

Owns the batches in flight on the stream, the order of the answers, and the reason for its end; must
not know what is sent afterwards. A stream of gRPC answers in order. Frames are answered in any
order, so an answer that comes early waits here for those before it: the sender sees one order.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio

from quorumlog import errors
from quorumlog.cluster.channels import NodeChannel, is_cancelled
from quorumlog.cluster.framed.connection import NodeConnection
from quorumlog.cluster.framed.frames import APPEND, ERROR, MORE, FrameError, has_room
from quorumlog.errors import (
    Outcome,
    PermissionDeniedError,
    QuorumlogError,
    UnavailableError,
    UnimplementedError,
)
from quorumlog.pb import common_pb2, log_pb2
from quorumlog.produce.delivery import Batch

OnAnswer = Callable[["AppendSession", log_pb2.AppendResponse], None]
"""Called with each answer, in the order of the batches; takes the batch out of `in_flight`."""


class AppendSession:
    """An append stream. Answers come in the order of the batches."""

    def __init__(self, node: NodeChannel, on_answer: OnAnswer) -> None:
        self.node = node
        self.in_flight: deque[Batch] = deque()
        self.refused: list[Batch] = []
        """To be sent again, before those in flight."""
        self.error: QuorumlogError | None = None
        """The reason of its end; the first one counts. None at the end: it was retired."""
        self.is_draining = False
        """Send nothing more, but take the answers that are due."""
        self.is_unsent = False
        """Nothing was taken of what has no answer: there was no connection, or the node refused
        the stream at its beginning."""
        self.decided_count = 0
        """Batches with a receipt or a final refusal."""
        self.progress_s = time.monotonic()
        """Time of the last answer, or of the first batch after all were answered."""
        self._on_answer = on_answer

    async def run(self) -> None:
        """Hand out answers until the stream is over."""
        raise NotImplementedError

    async def wait_for_room(self) -> None:
        """Wait until a batch may be sent, or until the stream is ending. With gRPC `send` waits."""

    async def send(self, batch: Batch) -> None:
        """Send a batch that is the last in flight."""
        raise NotImplementedError

    def takes(self, batch: Batch) -> bool:
        """Whether a batch should travel on this stream; if not, it is retired for another."""
        raise NotImplementedError

    def end(self, error: QuorumlogError, *, drain: bool = False) -> None:
        """Begin to end the stream: at once, or after the answers that are due."""
        if self.error is None:
            self.error = error
        self.is_draining = True
        if not drain:
            self.stop()

    def retire(self) -> None:
        """End the stream after the answers that are due, for no fault."""
        self.is_draining = True
        if not self.in_flight:
            self.stop()

    def stop(self) -> None:
        """End at once; nothing waits for answers any more."""
        raise NotImplementedError


class GrpcSession(AppendSession):
    """A call of AppendStream."""

    def __init__(self, node: NodeChannel, on_answer: OnAnswer) -> None:
        """Open the stream. Raises grpc.aio.UsageError if the channel was closed."""
        super().__init__(node, on_answer)
        self._call: Any = node.append_stream()

    async def send(self, batch: Batch) -> None:
        await self._call.write(batch.whole_request())

    def takes(self, batch: Batch) -> bool:
        """Whether the batch need not wait for frames: a port that can be reached is preferred."""
        framed = self.node.framed
        return framed is None or not framed.is_ready or not fits(batch)

    def stop(self) -> None:
        self._call.cancel()

    async def run(self) -> None:
        while True:
            try:
                response = await self._call.read()
            except grpc.aio.AioRpcError as error:
                met = errors.from_rpc(error, self.node.address)
                is_refused = isinstance(met, PermissionDeniedError | UnimplementedError)
                is_refused = is_refused and met.outcome is Outcome.NOT_APPLIED
                self.is_unsent = is_refused or errors.is_not_connected(met)
                self.end(met)
                return
            except asyncio.CancelledError as cancelled:
                if is_cancelled():
                    cancelled.__traceback__ = None  # As in `answer_of`.
                    raise
                if self.is_draining and self.error is None and not self.in_flight:
                    return  # It was retired.
                # The call was cancelled, not this task: by `end`, or when its channel was closed.
                text = f"{self.node.address}: its connection was closed; ask again"
                self.end(UnavailableError(text, outcome=Outcome.UNKNOWN))
                return
            if response is grpc.aio.EOF:
                self.end(await self._end_of_stream())
                return
            if not self.in_flight:
                self.end(errors.InternalError(f"{self.node.address} answered unasked"))
                return
            self._on_answer(self, response)
            if self.is_draining and not self.in_flight:
                return

    async def _end_of_stream(self) -> QuorumlogError:
        code, address = await self._call.code(), self.node.address
        if code is grpc.StatusCode.OK:
            return UnavailableError(
                f"{address} ended the stream; ask again", outcome=Outcome.UNKNOWN
            )
        return errors.from_status(code.name, await self._call.details() or "", address)


class FramedSession(AppendSession):
    """Appends over a framed connection, which other calls and sessions use, too."""

    method: Final = APPEND

    def __init__(self, node: NodeChannel, connection: NodeConnection, on_answer: OnAnswer) -> None:
        super().__init__(node, on_answer)
        self.connection = connection
        connection.streams[self] = None
        self._opaques: deque[int] = deque()  # Of the batches in flight.
        self._early: dict[int, log_pb2.AppendResponse] = {}  # Answers whose turn has not come.
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait_for_room(self) -> None:
        if self.connection.is_open:
            try:
                await self.connection.wait_for_room()
            except UnavailableError:
                assert self.is_draining, "a stream ends with its connection"

    async def send(self, batch: Batch) -> None:
        self.send_nowait(batch, batch.deadline.remaining_ms)

    def send_nowait(self, batch: Batch, timeout_ms: int) -> None:
        """Send a batch that is the last in flight; the connection is open and has room."""
        self._opaques.append(
            self.connection.send(APPEND, batch.request, batch.records, timeout_ms, self)
        )

    def takes(self, batch: Batch) -> bool:
        """Whether the batch has room in a frame."""
        return self.node.framed is None or self.node.framed.is_required or fits(batch)

    def stop(self) -> None:
        self.connection.streams.pop(self, None)
        opaques, self._opaques = self._opaques, deque()
        for opaque in opaques:
            if opaque not in self._early:
                self.connection.abandon(APPEND, opaque)
        if not self._over.done():
            self._over.set_result(None)

    async def run(self) -> None:
        await self._over

    def on_answer(self, opaque: int, flags: int, message: bytes, body: bytes) -> None:
        """Take an answer, and hand out those whose turn has come."""
        if flags & MORE or body:
            raise FrameError(f"an answer to append {opaque} that is none of an append")
        if flags & ERROR:
            response = log_pb2.AppendResponse(error=common_pb2.Error.FromString(message))
        else:
            response = log_pb2.AppendResponse.FromString(message)
        if opaque != self._opaques[0]:
            self._early[opaque] = response
            return
        try:
            self._hand_out(response)
        except Exception as bug:  # noqa: BLE001 - it is raised where the session is run.
            if not self._over.done():
                self._over.set_exception(bug)

    def _hand_out(self, response: log_pb2.AppendResponse) -> None:
        opaques, early = self._opaques, self._early
        while True:
            opaques.popleft()
            self._on_answer(self, response)
            if not opaques:
                break
            if not early or opaques[0] not in early:
                return
            response = early.pop(opaques[0])
        if self.is_draining and not self._over.done():
            self._over.set_result(None)

    def on_lost(self, error: QuorumlogError) -> None:
        """End: what has no answer may be in the log."""
        self._opaques.clear()
        self.end(error)


def fits(batch: Batch) -> bool:
    """Whether a batch that was encoded has room in a frame."""
    return has_room(batch.request, batch.records)
