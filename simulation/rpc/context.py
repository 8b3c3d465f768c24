"""A served call as its method sees it: the interface of `grpc.aio.ServicerContext`.

Owns the rules about what may be done when: nothing after the end, one abort. Takes the place of
`cygrpc._ServicerContext`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NoReturn

import grpc
from grpc._cython import cygrpc

from simulation.rpc import frames, statuses
from simulation.rpc.call_state import ServedCall
from simulation.rpc.options import is_above


class ServicerContext(grpc.aio.ServicerContext[Any, Any]):  # type: ignore[misc]
    """The context of one call."""

    def __init__(self, call: ServedCall, deserialize: Any, serialize: Any) -> None:
        self._call: Final = call
        self._deserialize, self._serialize = deserialize, serialize

    # --- Messages ---

    async def read(self) -> Any:
        """Return the next request, or EOF."""
        call = self._call
        call.raise_for_termination()
        message = await call.stream.read()
        call.raise_for_termination()
        if message is None:
            return cygrpc.EOF
        return message if self._deserialize is None else self._deserialize(message)

    async def write(self, message: Any) -> None:
        """Send a response. Raises ExecuteBatchError if the client is gone."""
        call = self._call
        call.raise_for_termination()
        data = message if self._serialize is None else self._serialize(message)
        size_bytes_max = call.stream.connection.options.send_size_bytes_max()
        if is_above(len(data), size_bytes_max):
            text = statuses.too_large("SERVER", "Sent", len(data), size_bytes_max)
            call.end(statuses.RESOURCE_EXHAUSTED, text)
            raise cygrpc.ExecuteBatchError('Failed "execute_batch": the message is too large')
        await call.stream.write(data, before=call.headers())

    async def send_initial_metadata(self, initial_metadata: Any) -> None:
        """Send metadata before the first response."""
        call = self._call
        call.raise_for_termination()
        if call.has_sent_headers:
            raise cygrpc.UsageError("Send initial metadata failed: already sent")
        call.stream.connection.send(call.headers(tuple(initial_metadata)))

    # --- The end ---

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: Any = (),
    ) -> NoReturn:
        """End the call with an error."""
        call = self._call
        if call.abort_error is not None:
            raise cygrpc.UsageError("Abort already called!")
        call.abort_error = cygrpc.AbortError("Locally aborted.")
        if trailing_metadata or not call.trailing_metadata:
            call.trailing_metadata = _valid(trailing_metadata)
        call.details = details or call.details
        call.code = code
        is_gone = call.stream.is_over
        call.end(code.value[0], call.details)
        if is_gone:
            raise cygrpc.ExecuteBatchError('Failed "execute_batch": the client is gone')
        raise call.abort_error

    async def abort_with_status(self, status: Any) -> NoReturn:
        """End the call with an error."""
        await self.abort(status.code, status.details, status.trailing_metadata)

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        self._call.trailing_metadata = _valid(trailing_metadata)

    def trailing_metadata(self) -> Any:
        return self._call.trailing_metadata

    def set_code(self, code: grpc.StatusCode) -> None:
        self._call.code = code

    def code(self) -> Any:
        return self._call.code

    def set_details(self, details: str) -> None:
        self._call.details = details

    def details(self) -> str:
        return self._call.details

    # --- The call ---

    def invocation_metadata(self) -> Any:
        return self._call.metadata

    def peer(self) -> str:
        return self._call.stream.connection.peer

    def time_remaining(self) -> Any:
        return self._call.time_remaining()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._call.callbacks.append(partial(callback, self))

    def done(self) -> bool:
        return self._call.is_status_sent

    def cancelled(self) -> bool:
        return self._call.code is grpc.StatusCode.CANCELLED

    def set_compression(self, compression: Any) -> None:
        raise NotImplementedError("compression is not simulated")

    def disable_next_message_compression(self) -> None:
        """Nothing is compressed."""

    def peer_identities(self) -> Any:
        return None  # As without TLS.

    def peer_identity_key(self) -> Any:
        return None

    def auth_context(self) -> Any:
        return {}


def _valid(metadata: Sequence[tuple[str, str | bytes]] | None) -> frames.Metadata:
    found = tuple((name, value) for name, value in metadata or ())
    for name, value in found:
        if not isinstance(value, bytes if name.endswith("-bin") else str):
            raise TypeError(f"the metadata {name} is a {type(value).__name__}")
    return found
