"""All clients of one scenario: started, watched, stopped.

Owns the set of clients and the time limit of their end. A client that ends before this module
tells it to is a defect of the suite or of the SDK, and fails the scenario.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, Final, Self

import quorumlog
from chaos.clients import (
    IDEMPOTENT_QUEUES,
    LOG_QUEUES,
    PAUSE_S,
    PLAIN_QUEUE,
    QUEUE_COUNT,
    Clients,
    LoadWriter,
    Poller,
    RegisterReader,
    RegisterWriter,
    TailClient,
    follow_in_group,
)
from chaos.errors import NotSoError
from chaos.recorder import Recorder
from checkers.history import Value
from quorumlog.cluster.transport import Transport
from quorumlog.errors import QuorumlogError

STOP_TIMEOUT_S: Final = 60.0
CLIENT_TIMEOUT_MS: Final = 4_000
"""Time-out of reads; producers have time-outs of their own."""
CONNECT_TIMEOUT_MS: Final = 30_000
GROUP: Final = "followers"


class Load:
    """The clients. In an `async with` they run."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        recorder: Recorder,
        *,
        transport: Transport = "auto",
        pause_s: float = PAUSE_S,
    ) -> None:
        self._bootstrap, self._topic, self._recorder = bootstrap, topic, recorder
        self._pause_s = pause_s
        self.transport: Final = transport
        """Of all clients here; a scenario's own clients take it, too."""
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._members: list[asyncio.Task[None]] = []
        self.clients: Clients

    async def __aenter__(self) -> Self:
        connection = quorumlog.connect(
            self._bootstrap,
            timeout_ms=CLIENT_TIMEOUT_MS,
            connect_timeout_ms=CONNECT_TIMEOUT_MS,
            transport=self.transport,
        )
        client = await self._stack.enter_async_context(connection)
        await client.admin.create_topic(self._topic, queue_count=QUEUE_COUNT)
        self.clients = clients = Clients(client, self._topic, self._recorder, pause_s=self._pause_s)
        prefix = self._topic
        for queue in IDEMPOTENT_QUEUES:
            self._start(LoadWriter(clients, queue, f"{prefix}-i{queue}", is_idempotent=True).run())
        self._start(LoadWriter(clients, PLAIN_QUEUE, f"{prefix}-p", is_idempotent=False).run())
        for number in range(2):
            self._start(RegisterWriter(clients, f"{prefix}-r{number}").run())
        self._start(RegisterReader(clients).run())
        for _ in range(2):
            self._start(TailClient(clients).run())
        for queue in LOG_QUEUES:
            self._start(Poller(clients, queue).run())
        for _ in range(2):
            member = follow_in_group(clients, f"{GROUP}-{prefix}")
            self._members.append(asyncio.create_task(member))
        return self

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def __aexit__(self, *_: object) -> None:
        for task in (*self._tasks, *self._members):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._members, return_exceptions=True)
        try:
            await self._stack.aclose()
        except QuorumlogError as error:
            # Pending calls of producers were given up with them, and are recorded as unknown.
            self._recorder.note("client", f"closing: {error}")

    def check(self) -> None:
        """Raise the error that ended a client which should still run."""
        for task in (*self._tasks, *self._members):
            if task.done() and not self.clients.is_stopping:
                task.result()
                raise NotSoError(f"a client ended on its own: {task}")

    async def acked(self, count: int, timeout_s: float) -> None:
        """Wait until `count` more appends are acked."""
        target = self.clients.acked_count + count
        try:
            async with asyncio.timeout(timeout_s):
                await self.clients.until(lambda: self.clients.acked_count >= target)
        except TimeoutError:
            self.check()
            missing = target - self.clients.acked_count
            raise NotSoError(
                f"{missing} of {count} appends were not acked in {timeout_s} s"
            ) from None

    async def stop(self) -> None:
        """Wait until pending calls are decided; afterwards the history is complete."""
        self.check()
        self.clients.is_stopping = True
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await asyncio.gather(*self._tasks)

    async def groups_caught_up(self, timeout_s: float, *, lost: frozenset[Value]) -> set[str]:
        """Wait until the group has seen every remaining acked message; return the unseen ones.

        Its members had read some of the lost messages, whose offsets others have now.
        """
        wanted = set().union(*self.clients.acked_values.values()) - lost
        try:
            async with asyncio.timeout(timeout_s):
                # The SDK gives no notice of it.
                while not wanted <= self.clients.group_seen:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pass
        return wanted - self.clients.group_seen
