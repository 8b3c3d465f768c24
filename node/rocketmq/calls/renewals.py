"""Keeps messages of push consumers invisible for as long as their client is connected.

Owns the holders of messages, and the clock. Push consumers never ask for more time: they rely on
the server to prolong it while they are connected (protocol section 14.6). The holders are known
only to the leader that handed the messages out, and are forgotten when it leads no longer: clients
send their requests to the next leader, and a prolongation by the last one would undo them. Messages
are handed out again then, once their last prolongation is over.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import structlog

from node.errors.common import AppendTimeoutError, BusyError, NodeError
from node.rocketmq.clients import GatewayClients, pays_for
from node.runtime.accounts import Account, Charge, Kind, caller, caller_host
from node.runtime.background import BackgroundTasks
from node.runtime.rows import remove_from
from node.runtime.turn import Turn
from quorumlog.pb import pop_pb2
from raft.errors import RaftError
from store.errors import StoreError

RENEWED_MS: Final = 60_000
"""Invisible time of a message that is renewed."""
EVERY_S: Final = 20.0
"""Interval of rounds: each message has two more before its time is over."""
HELD_S_MAX: Final = 3 * 3_600.0
"""Limit of the time that a message is renewed; a consumer that takes longer is stuck."""
ROW_SIZE_BYTES: Final = 400
"""Memory of a message that is renewed, with its handle, about."""
AT_ONCE: Final = 256
"""New times that are asked for together, and so share an entry of the log: all fit into a round."""
_PASSING: Final = (BusyError, AppendTimeoutError)
"""Errors after which the next round tries again."""

ChangeInvisible = Callable[
    [pop_pb2.ChangeInvisibleRequest], Awaitable[pop_pb2.ChangeInvisibleResponse]
]
_log: Final = structlog.get_logger(component="rocketmq")


class _Held(NamedTuple):
    client_id: str
    group: str
    topic: str
    until_s: float
    charge: Charge | None


class Renewals:
    """The messages that are renewed, and their rounds. One per gateway."""

    def __init__(
        self, clients: GatewayClients, change_invisible: ChangeInvisible, turn: Turn
    ) -> None:
        self._clients, self._turn = clients, turn
        self._change_invisible = change_invisible
        self._held: dict[str, _Held] = {}
        """By the handle that the client has; a new invisible time does not change it."""
        self._of_client: dict[str, dict[str, None]] = {}
        """Handles of each client."""
        self._tasks = BackgroundTasks("messages are not renewed any more")
        self._renewal: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.renewed_total = self.dropped_total = 0

    def __len__(self) -> int:
        return len(self._held)

    def begin(self) -> None:
        """See `LeaderWork.begin`: no client holds a message yet."""

    def end(self) -> None:
        """See `LeaderWork.end`."""
        held, self._held, self._of_client = self._held, {}, {}
        self._turn.later("", _released(held.values()))

    def hold(self, client_id: str, group: str, topic: str, handles: Iterable[str]) -> None:
        """Keep messages invisible while a client is connected. Those for which its account has no
        room are handed out again after `RENEWED_MS`."""
        loop, account = asyncio.get_running_loop(), caller()
        until_s = loop.time() + HELD_S_MAX
        for handle in handles:
            self._drop(handle)  # A repeated attempt gets the same messages.
            try:
                charge = None if account is None else account.charge(Kind.ROWS, ROW_SIZE_BYTES)
            except BusyError:
                self.dropped_total += 1
            else:
                self._held[handle] = _Held(client_id, group, topic, until_s, charge)
                self._of_client.setdefault(client_id, {})[handle] = None
        if self._timer is None and self._held:
            self._timer = loop.call_later(EVERY_S, self._round)

    def let_go(self, group: str, topic: str, handles: Iterable[str]) -> None:
        """Renew messages no longer: the client is done with them, or has set their time itself.
        Those of another group or topic are not its own."""
        for handle in handles:
            held = self._held.get(handle)
            if held is not None and (held.group, held.topic) == (group, topic):
                self._drop(handle)

    def _drop(self, handle: str) -> None:
        held = self._held.pop(handle, None)
        if held is not None:
            if held.charge is not None:
                held.charge.release()
            remove_from(self._of_client, held.client_id, handle)

    def left(self, client_id: str) -> None:
        """Make messages of a client that ends visible soon: those of the caller's address."""
        account = caller()
        rows = [(handle, self._held[handle]) for handle in self._of_client.get(client_id, ())]
        self._turn.later(caller_host(), self._give_up(rows, account))

    def _give_up(self, rows: list[tuple[str, _Held]], account: Account | None) -> Iterator[None]:
        gone = []
        for handle, held in rows:
            if self._held.get(handle) is held and pays_for(held.charge, account):
                self._drop(handle)
                gone.append((handle, held))
            yield
        if gone:
            self._tasks.run(self._change_all(gone, 0))

    def give_back(self, group: str, topic: str, handles: Iterable[str]) -> None:
        """Make messages visible at once that could not be delivered: their caller has gone."""
        rows = [(handle, _Held("", group, topic, 0.0, None)) for handle in handles]
        self.let_go(group, topic, (handle for handle, _ in rows))
        self._tasks.run(self._change_all(rows, 0))

    def stop(self) -> None:
        """Stop renewing."""
        if self._timer is not None:
            self._timer.cancel()
        self.end()
        self._tasks.cancel()

    def _round(self) -> None:
        self._timer = None
        self._turn.later("", self._look())

    def _look(self) -> Iterator[None]:
        """Let go of messages whose client has gone, in steps, and renew the others."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for handle, held in list(self._held.items()):
            is_late = now_s >= held.until_s or not self._clients.is_alive(held.client_id)
            if is_late and self._held.get(handle) is held:
                self._drop(handle)
            yield
        if self._held:
            if self._timer is None:
                self._timer = loop.call_later(EVERY_S, self._round)
            if self._renewal is None or self._renewal.done():
                rows = list(self._held.items())
                self._renewal = self._tasks.run(self._change_all(rows, RENEWED_MS))

    async def _change_all(self, rows: Sequence[tuple[str, _Held]], invisible_ms: int) -> None:
        for lo in range(0, len(rows), AT_ONCE):
            changes = [
                self._change(handle, held, invisible_ms)
                for handle, held in rows[lo : lo + AT_ONCE]
                if not invisible_ms or handle in self._held
            ]
            reasons = [text for text in await asyncio.gather(*changes) if text]
            if reasons:
                _log.info("messages are not renewed", count=len(reasons), reason=reasons[0])

    async def _change(self, handle: str, held: _Held, invisible_ms: int) -> str:
        """Ask for a new time; return the reason if there is none, else an empty text."""
        request = pop_pb2.ChangeInvisibleRequest(
            group=held.group, topic=held.topic, handle=handle, invisible_ms=invisible_ms
        )
        try:
            await self._change_invisible(request)
        except _PASSING as error:
            return str(error)
        except (NodeError, RaftError, StoreError) as error:
            # The message is not this client's any more, or this node cannot say: it is handed out
            # again when its time is over, as any message without an acknowledgement.
            self._drop(handle)
            self.dropped_total += 1
            return str(error)
        self.renewed_total += invisible_ms > 0
        return ""


def _released(rows: Iterable[_Held]) -> Iterator[None]:
    for held in rows:
        if held.charge is not None:
            held.charge.release()
        yield
