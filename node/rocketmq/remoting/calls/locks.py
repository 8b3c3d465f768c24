"""Locks of queues: which consumer of a group may read a queue in order.

Owns the table. It is the leader's and not replicated: consumers renew their locks every 20 s, and
the first to ask a new leader has the lock.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from node.rocketmq.protocol.names import TOPIC_LENGTH_MAX
from node.rocketmq.remoting.calls.json_bodies import json_body, list_of, rows_of, text_in
from node.rocketmq.remoting.calls.shared import Shared
from node.rocketmq.remoting.clients import CLIENT_ID_LENGTH_MAX
from node.rocketmq.remoting.conversation import Request
from node.rocketmq.remoting.protocol.answers import Answer, RefusedError
from node.rocketmq.remoting.protocol.codes import ResponseCode

LOCK_S: Final = 60.0
"""Time after which a lock that was not renewed is free."""
LOCK_COUNT_MAX: Final = 131_072
"""Locks of all groups: twice the queues that a cluster may have, 350 bytes each."""
EXPIRED_COUNT_MAX: Final = 4_096
"""Locks that one look forgets: as many as one request makes."""


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
        self._locks: OrderedDict[_Key, _Lock] = OrderedDict()
        """The lock that runs out first is the first."""
        self._of_group: dict[str, dict[_Key, None]] = {}
        """Locks of each group in the same order."""
        self._of_client: dict[tuple[str, str], set[_Key]] = {}
        """Locks of each group and client id."""

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
        self.expire()
        document = list_of(request.command.body)
        group, client_id = self._holder(document)
        now_s = self._monotonic_s()
        locked = []
        for key, row in self._rows(group, document):
            held = self._locks.get(key)
            if held is None and len(self._locks) >= LOCK_COUNT_MAX:
                continue
            if held is None or held.until_s < now_s or held.client_id == client_id:
                self._drop(key)
                self._put(key, _Lock(client_id, now_s + LOCK_S))
                locked.append(row)
        return Answer(body=json_body({"lockOKMQSet": locked}))

    async def _unlock(self, request: Request) -> Answer:
        document = list_of(request.command.body)
        group, client_id = self._holder(document)
        for key, _ in self._rows(group, document):
            held = self._locks.get(key)
            if held is not None and held.client_id == client_id:
                self._drop(key)
        return Answer()

    def _holder(self, document: dict[str, Any]) -> tuple[str, str]:
        """Return group and client id of a request. Raises RefusedError, BadRequestError."""
        group, client_id = text_in(document, "consumerGroup"), text_in(document, "clientId")
        self._shared.context.check_name("group", group)
        if len(client_id) > CLIENT_ID_LENGTH_MAX:
            text = f"clientId must have at most {CLIENT_ID_LENGTH_MAX} characters"
            raise RefusedError(ResponseCode.INVALID_PARAMETER, text)
        return group, client_id

    def _rows(self, group: str, document: dict[str, Any]) -> Iterator[tuple[_Key, dict[str, Any]]]:
        """Yield each queue of a request, in both forms. Raises RefusedError."""
        names, count_max = self._shared.names, self._shared.context.limits.queue_count_max
        for row in rows_of(document, "mqSet"):
            number, queue_id = names.number_of(text_in(row, "brokerName")), row.get("queueId")
            topic = text_in(row, "topic")
            if (
                number is None
                or type(queue_id) is not int
                or not 0 <= queue_id < count_max
                or len(topic) > TOPIC_LENGTH_MAX
            ):
                text = f"{str(row)[:200]} is no queue of this group; ask for the route again"
                raise RefusedError(ResponseCode.INVALID_PARAMETER, text)
            key = _Key(group, topic, names.queue(number, queue_id))
            yield key, {field: row[field] for field in ("topic", "brokerName", "queueId")}

    def _put(self, key: _Key, lock: _Lock) -> None:
        self._locks[key] = lock
        self._of_group.setdefault(key.group, {})[key] = None
        self._of_client.setdefault((key.group, lock.client_id), set()).add(key)

    def _drop(self, key: _Key) -> None:
        lock = self._locks.pop(key, None)
        if lock is None:
            return
        of_group, holder = self._of_group[key.group], (key.group, lock.client_id)
        del of_group[key]
        if not of_group:
            del self._of_group[key.group]
        of_client = self._of_client[holder]
        of_client.remove(key)
        if not of_client:
            del self._of_client[holder]

    def is_locked(self, group: str) -> bool:
        """Whether a group holds any lock: its consumers read in order."""
        newest = next(reversed(self._of_group.get(group, {})), None)
        return newest is not None and self._locks[newest].until_s >= self._monotonic_s()

    def release(self, group: str, client_id: str) -> None:
        """Release the locks of a consumer that left its group."""
        for key in list(self._of_client.get((group, client_id), ())):
            self._drop(key)

    def expire(self) -> None:
        """Forget the locks that ran out, at most EXPIRED_COUNT_MAX at once."""
        now_s = self._monotonic_s()
        for _ in range(EXPIRED_COUNT_MAX):
            key = next(iter(self._locks), None)
            if key is None or self._locks[key].until_s >= now_s:
                break
            self._drop(key)
