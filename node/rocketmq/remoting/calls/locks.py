"""Locks of queues: which consumer of a group may read a queue in order.

Owns the table. It is the leader's and not replicated: consumers renew their locks every 20 s, and
the first to ask a new leader has the lock.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from node.rocketmq.remoting.calls.json_bodies import document_of, json_body, rows_of, text_in
from node.rocketmq.remoting.calls.shared import Shared
from node.rocketmq.remoting.conversation import Request
from node.rocketmq.remoting.protocol.answers import Answer, RefusedError
from node.rocketmq.remoting.protocol.codes import ResponseCode

LOCK_S: Final = 60.0
"""Time after which a lock that was not renewed is free."""
QUEUE_COUNT_MAX: Final = 16_384
"""Queues of one request."""
LOCK_COUNT_MAX: Final = 262_144


class _Key(NamedTuple):
    group: str
    topic: str
    queue: int


class _Lock(NamedTuple):
    client_id: str
    until_s: float


class LockCalls:
    """Answers the requests that lock queues. One per gateway."""

    def __init__(self, shared: Shared, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._shared = shared
        self._monotonic_s = monotonic_s
        self._locks: dict[_Key, _Lock] = {}

    @property
    def count(self) -> int:
        """Locks, those that ran out and were not replaced included."""
        return len(self._locks)

    async def lock(self, request: Request) -> Answer:
        """Lock the queues of a list that are free, or the caller's already; return these."""
        return await self._shared.forwarder.answer(
            request, 0, lambda: self._lock(request), is_repeatable=True
        )

    async def unlock(self, request: Request) -> Answer:
        """Release the caller's locks of a list of queues."""
        return await self._shared.forwarder.answer(
            request, 0, lambda: self._unlock(request), is_repeatable=True
        )

    async def _lock(self, request: Request) -> Answer:
        document = document_of(request.command.body)
        client_id, now_s = text_in(document, "clientId"), self._monotonic_s()
        if len(self._locks) >= LOCK_COUNT_MAX:
            self._forget(now_s)
        locked = []
        for key, row in self._rows(document):
            held = self._locks.get(key)
            is_free = held is None or held.until_s < now_s or held.client_id == client_id
            if is_free and (held is not None or len(self._locks) < LOCK_COUNT_MAX):
                self._locks[key] = _Lock(client_id, now_s + LOCK_S)
                locked.append(row)
        return Answer(body=json_body({"lockOKMQSet": locked}))

    async def _unlock(self, request: Request) -> Answer:
        document = document_of(request.command.body)
        client_id = text_in(document, "clientId")
        for key, _ in self._rows(document):
            held = self._locks.get(key)
            if held is not None and held.client_id == client_id:
                del self._locks[key]
        return Answer()

    def _rows(self, document: dict[str, Any]) -> Iterator[tuple[_Key, dict[str, Any]]]:
        """Yield each queue of a request, in both forms. Raises RefusedError."""
        group, names = text_in(document, "consumerGroup"), self._shared.names
        rows = rows_of(document, "mqSet")
        if len(rows) > QUEUE_COUNT_MAX:
            text = f"{len(rows)} queues, the limit is {QUEUE_COUNT_MAX}"
            raise RefusedError(ResponseCode.INVALID_PARAMETER, text)
        for row in rows:
            number, queue_id = names.number_of(text_in(row, "brokerName")), row.get("queueId")
            if number is None or type(queue_id) is not int or queue_id < 0:
                text = f"{str(row)[:200]} is no queue of this group; ask for the route again"
                raise RefusedError(ResponseCode.INVALID_PARAMETER, text)
            key = _Key(group, text_in(row, "topic"), names.queue(number, queue_id))
            yield key, {field: row[field] for field in ("topic", "brokerName", "queueId")}

    def is_locked(self, group: str) -> bool:
        """Whether a group holds any lock: its consumers read in order."""
        now_s = self._monotonic_s()
        held = (lock for key, lock in self._locks.items() if key.group == group)
        return any(lock.until_s >= now_s for lock in held)

    def release(self, group: str, client_id: str) -> None:
        """Release the locks of a consumer that left its group."""
        held = [
            key
            for key, lock in self._locks.items()
            if key.group == group and lock.client_id == client_id
        ]
        for key in held:
            del self._locks[key]

    def _forget(self, now_s: float) -> None:
        self._locks = {key: lock for key, lock in self._locks.items() if lock.until_s >= now_s}
