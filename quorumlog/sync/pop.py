"""Pop for programs without asyncio, made by the client of `quorumlog.sync`.

Owns the blocking names; must not know what any call does.
"""

from collections.abc import Sequence
from typing import Self

from quorumlog import client as async_client
from quorumlog.consume import pop as async_pop
from quorumlog.consume.pop import INVISIBLE_S, PopMessage, Start
from quorumlog.sync.loop_thread import blocking, loop_thread


class PopConsumer:
    """Receives single messages for a group; see quorumlog.PopConsumer."""

    def __init__(self, inner: async_pop.PopConsumer) -> None:
        self._inner = inner

    receive = blocking(async_pop.PopConsumer.receive)
    ack = blocking(async_pop.PopConsumer.ack)
    change_invisible = blocking(async_pop.PopConsumer.change_invisible)
    nack = blocking(async_pop.PopConsumer.nack)
    reject = blocking(async_pop.PopConsumer.reject)
    close = blocking(async_pop.PopConsumer.close)

    @property
    def is_closed(self) -> bool:
        """Whether the consumer was closed."""
        return self._inner.is_closed

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PopMessage:
        """Receive for ever, message by message; each has to be acknowledged all the same."""
        return loop_thread.call(self._inner.__anext__())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PopClient:
    """Makes pop consumers; `quorumlog.sync.Client` is the one subclass."""

    _inner: async_client.Client

    def pop_consumer(
        self,
        group: str,
        topics: str | Sequence[str],
        *,
        invisible: float = INVISIBLE_S,
        fifo: bool = False,
        start: Start = "first",
        tags: Sequence[str] = (),
        sql: str = "",
        timeout_ms: int | None = None,
    ) -> PopConsumer:
        """Make a pop consumer; the options are those of quorumlog.Client.pop_consumer."""
        return PopConsumer(
            loop_thread.call_plain(
                lambda: self._inner.pop_consumer(
                    group,
                    topics,
                    invisible=invisible,
                    fifo=fifo,
                    start=start,
                    tags=tags,
                    sql=sql,
                    timeout_ms=timeout_ms,
                )
            )
        )
