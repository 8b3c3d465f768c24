"""The line of calls whose requests wait to be read.

Owns when a request is read: once its caller's account has room for a request of the largest size,
at each of its levels. gRPC takes no more than a window of a request without a read, so the bytes
stay with the client. Addresses take turns, and of each its connections. An address gets room while
it holds no more than is left: so an address that holds nothing does not wait for others that are
slow. Must not know what a request says.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

from node.runtime.accounts import Kind, Level
from node.services.bounds.callers import GrpcCaller

MIB: Final = 1 << 20
REQUEST_SIZE_BYTES_MAX: Final = 4 * MIB + 64 * 1024
"""A batch of the largest size and the fields around it."""
WINDOW_SIZE_BYTES: Final = 64 * 1024
"""What gRPC takes of a request without a read: HTTP/2's window, without its probes."""


class _Turn:
    __slots__ = ("granted", "since_s")

    def __init__(self, since_s: float) -> None:
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.since_s = since_s


class ReadingLine:
    """The line of one server. For one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[GrpcCaller, dict[_Turn, None]]] = {}
        """The waiting calls by address and connection; next ones first."""

    @property
    def is_empty(self) -> bool:
        """Whether no call waits."""
        return not self._waiting

    async def enter(self, caller: GrpcCaller, now_s: float) -> None:
        """Charge a request of the largest size until `leave`. Raises BusyError: for too many calls
        that wait, or from `refuse`."""
        if caller.account.address.what not in self._waiting and _short_of(caller) is None:
            _charge(caller, 1)
            return
        # The charge is beside those of the calls: what it is for lies with gRPC.
        waiting = caller.account.charge(Kind.DOCUMENTS, WINDOW_SIZE_BYTES, 0)
        turn = _Turn(now_s)
        callers = self._waiting.setdefault(caller.account.address.what, {})
        callers.setdefault(caller, {})[turn] = None
        self.go_on()
        try:
            await turn.granted
        except asyncio.CancelledError:
            if turn.granted.cancelled():
                self._remove(caller, turn)
            elif turn.granted.exception() is None:
                self.leave(caller)
            raise
        finally:
            waiting.release()

    def leave(self, caller: GrpcCaller) -> None:
        """Give the charge back. The next ones are granted after the running step of the task, which
        may charge the bytes that came."""
        _charge(caller, -1)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self.go_on)

    def go_on(self) -> None:
        """Grant what has room, in turns."""
        has_granted = True
        while has_granted:
            has_granted = False
            for address, callers in list(self._waiting.items()):
                for caller in callers:
                    short = _short_of(caller)
                    if short is None:
                        self._grant(caller, next(iter(callers[caller])))
                        if caller in callers:  # Others of the address are next.
                            callers[caller] = callers.pop(caller)
                        if address in self._waiting:
                            self._waiting[address] = self._waiting.pop(address)
                        has_granted = True
                        break
                    if short is not caller.account:
                        break  # Nor have others of the address room.

    def refuse(self, before_s: float) -> None:
        """Refuse calls that wait since then, or for longer."""
        for caller, turn in list(self._turns()):
            if turn.since_s <= before_s:
                account, kind = caller.account, Kind.CALLS
                level = _short_of(caller) or account
                held, limit = level.sizes[kind], level.limits[kind][1]
                self._remove(caller, turn)
                if not turn.granted.done():
                    error = account.accounts.refusal(kind, level.what, held, limit, "bytes of ")
                    turn.granted.set_exception(error)

    def _grant(self, caller: GrpcCaller, turn: _Turn) -> None:
        self._remove(caller, turn)
        if not turn.granted.done():  # Else its call has just been cancelled.
            _charge(caller, 1)
            turn.granted.set_result(None)

    def _turns(self) -> Iterator[tuple[GrpcCaller, _Turn]]:
        for callers in self._waiting.values():
            for caller, turns in callers.items():
                for turn in turns:
                    yield caller, turn

    def _remove(self, caller: GrpcCaller, turn: _Turn) -> None:
        address = caller.account.address.what
        callers = self._waiting.get(address, {})
        turns = callers.get(caller, {})
        if turn not in turns:
            return  # It was cancelled, and its turn had come.
        del turns[turn]
        if not turns:
            del callers[caller]
        if not callers:
            del self._waiting[address]


def _size_bytes(caller: GrpcCaller) -> int:
    """Return what a read is charged: with small limits a connection reads some at once, too."""
    return min(REQUEST_SIZE_BYTES_MAX, caller.account.limits[Kind.CALLS][1] // 4)


def _short_of(caller: GrpcCaller) -> Level | None:
    """Return the lowest level without room for a request of the largest size; None: none."""
    size_bytes, kind = _size_bytes(caller), Kind.CALLS
    short = caller.account.excess(kind, size_bytes)
    if short is None:
        _, address, total = caller.account.levels
        if address.sizes[kind] + total.sizes[kind] + size_bytes > total.limits[kind][1]:
            short = address
    return short


def _charge(caller: GrpcCaller, sign: int) -> None:
    account, kind = caller.account, Kind.CALLS
    account.set_size(kind, account.sizes[kind] + sign * _size_bytes(caller))
