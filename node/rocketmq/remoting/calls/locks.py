"""Locks of queues: which consumer of a group may read a queue in order.

Owns the table. It is the leader's and not replicated: consumers renew their locks every 20 s, and
the first to ask a new leader has the lock.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from node.errors.common import BusyError
from node.rocketmq.protocol.names import TOPIC_LENGTH_MAX
from node.rocketmq.remoting.calls.json_bodies import (
    OverLimitError,
    list_of,
    rows_of,
    text_in,
)
from node.rocketmq.remoting.calls.shared import Calls, Shared
from node.rocketmq.remoting.clients import CLIENT_ID_LENGTH_MAX, Owner, owner_of
from node.rocketmq.remoting.conversation import Request
from node.rocketmq.remoting.protocol.answers import Answer, InvalidError
from node.runtime.accounts import Account, Kind, row_size_bytes
from node.runtime.json_text import dump_json
from node.runtime.rows import remove_from
from node.users import rules
from node.users.calling import calling, require

LOCK_S: Final = 60.0
"""Time after which a lock that was not renewed is free."""


class _Key(NamedTuple):
    group: str
    topic: str
    queue: int


class _Lock(NamedTuple):
    client_id: str
    owner: Owner
    until_s: float
    account: Account
    """Pays for the lock: that of the connection which asked for it last."""
    size_bytes: int
    of_client: dict[_Key, None]
    """All locks of its client. They are free when the table has this row no more."""


class LockCalls(Calls):
    """Answers the requests that lock queues. One per gateway."""

    def __init__(self, shared: Shared, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(shared)
        self._monotonic_s = monotonic_s
        self._locks: OrderedDict[_Key, _Lock] = OrderedDict()
        """The lock that runs out first is the first."""
        self._of_group: dict[str, dict[_Key, None]] = {}
        """Locks of each group in the same order."""
        self._of_client: dict[tuple[str, str], dict[_Key, None]] = {}
        """Locks of each group and client id that did not leave."""
        self._of_account: dict[Account, dict[_Key, None]] = {}
        """Locks that each account pays for, unless its connection ended."""
        self._is_forgetting = False

    @property
    def count(self) -> int:
        """Locks, free ones that are not yet forgotten included."""
        return len(self._locks)

    async def lock(self, request: Request) -> Answer:
        """Lock the queues of a list that are free, or the caller's already; return these. A list
        over a limit gets the locks within it, or none, and the remark says why: consumers take a
        refusal for an error of the broker, and ask again for what they did not get."""
        if request.connection.connection.is_ended:
            return Answer()  # It left meanwhile.
        self.expire()
        account, locked, remark = request.account, list[dict[str, Any]](), None
        try:
            document = list_of(request.command.body)
            rows = rows_of(document, "mqSet")
        except OverLimitError as error:
            return Answer(body=dump_json({"lockOKMQSet": []}), remark=error.remark)
        group, client_id = self._holder(document)
        size_bytes, owner = row_size_bytes(group, client_id), owner_of(account, calling())
        try:
            for key, row in list(self._rows(group, rows)):
                held = self._locks.get(key)
                if held is None or self._is_callers(key, held, client_id, owner):
                    self._drop(key)
                    self._put(key, client_id, account, size_bytes + len(key.topic))
                    locked.append(row)
        except BusyError as error:
            remark = str(error)
        return Answer(body=dump_json({"lockOKMQSet": locked}), remark=remark)

    async def unlock(self, request: Request) -> Answer:
        """Release the caller's locks of a list of queues."""
        document, owner = list_of(request.command.body), owner_of(request.account, calling())
        group, client_id = self._holder(document)
        for key, _ in self._rows(group, rows_of(document, "mqSet")):
            held = self._locks.get(key)
            if held is not None and self._is_callers(key, held, client_id, owner):
                self._drop(key)
        return Answer()

    def _is_callers(self, key: _Key, held: _Lock, client_id: str, owner: Owner) -> bool:
        return held[:2] == (client_id, owner) or self._is_free(key, held)

    def _is_free(self, key: _Key, held: _Lock) -> bool:
        """Whether a lock ran out, or its client left its group or ended the connection. A client
        that is a member over another one by now keeps its locks until they run out: it may read."""
        if held.until_s < self._monotonic_s():
            return True
        if self._of_client.get((key.group, held.client_id)) is not held.of_client:
            return True
        member = self._shared.clients.consumer(key.group, held.client_id)
        return held.account not in self._of_account and member is None

    def _holder(self, document: dict[str, Any]) -> tuple[str, str]:
        group = text_in(document, "consumerGroup")
        self._context.check_name("group", group)
        require(rules.Action.SUB, rules.ResourceKind.GROUP, group)
        return group, text_in(document, "clientId", CLIENT_ID_LENGTH_MAX)

    def _rows(
        self, group: str, rows: list[dict[str, Any]]
    ) -> Iterator[tuple[_Key, dict[str, Any]]]:
        """Yield each queue of a request, in both forms. Raises RefusedError."""
        names, count_max = self._names, self._context.limits.queue_count_max
        for row in rows:
            number, queue_id = names.number_of(text_in(row, "brokerName")), row.get("queueId")
            topic = text_in(row, "topic", TOPIC_LENGTH_MAX)
            if (
                number is None
                or not topic
                or type(queue_id) is not int
                or not 0 <= queue_id < count_max
            ):
                text = f"{str(row)[:200]} is no queue of this group; ask for the route again"
                raise InvalidError(text)
            require(rules.Action.SUB, rules.ResourceKind.TOPIC, topic)
            key = _Key(group, topic, names.queue(number, queue_id))
            yield key, {field: row[field] for field in ("topic", "brokerName", "queueId")}

    def _put(self, key: _Key, client_id: str, account: Account, size_bytes: int) -> None:
        account.take(Kind.LOCKS, size_bytes)
        of_client = self._of_client.setdefault((key.group, client_id), {})
        until_s = self._monotonic_s() + LOCK_S
        owner = owner_of(account, calling())
        self._locks[key] = _Lock(client_id, owner, until_s, account, size_bytes, of_client)
        self._of_group.setdefault(key.group, {})[key] = None
        self._of_account.setdefault(account, {})[key] = of_client[key] = None

    def _drop(self, key: _Key) -> None:
        lock = self._locks.pop(key, None)
        if lock is None:
            return
        remove_from(self._of_group, key.group, key)
        holder = key.group, lock.client_id
        if self._of_client.get(holder) is lock.of_client:
            remove_from(self._of_client, holder, key)
        if lock.account in self._of_account:
            remove_from(self._of_account, lock.account, key)
        lock.account.give_back(Kind.LOCKS, lock.size_bytes)

    def is_locked(self, group: str) -> bool:
        """Whether a group holds any lock: its consumers read in order."""
        newest = next(reversed(self._of_group.get(group, {})), None)
        return newest is not None and not self._is_free(newest, self._locks[newest])

    # --- The end of locks: what is free is forgotten in slices ---

    def release(self, group: str, client_id: str) -> None:
        """Release the locks of a consumer that left its group."""
        row = self._of_client.pop((group, client_id), None)
        if row is not None:
            host = self._locks[next(iter(row))].account.address.what
            self._context.turn.later(host, self._forget_free(row))

    def on_closed(self, account: Account) -> Iterator[None]:
        """Release what a closed connection locked; the steps forget it."""
        return self._forget_free(self._of_account.pop(account, {}))

    def _forget_free(self, keys: Iterable[_Key]) -> Iterator[None]:
        for key in list(keys):
            held = self._locks.get(key)
            if held is not None and self._is_free(key, held):
                self._drop(key)
            yield

    def expire(self) -> None:
        """Forget the locks that ran out, in slices, until none is left."""
        if not self._is_forgetting and self._oldest_free() is not None:
            self._is_forgetting = True
            self._context.turn.later("", self._forget_oldest())

    def _oldest_free(self) -> _Key | None:
        key, lock = next(iter(self._locks.items()), (None, None))
        return key if lock is not None and lock.until_s < self._monotonic_s() else None

    def _forget_oldest(self) -> Iterator[None]:
        while (key := self._oldest_free()) is not None:
            self._drop(key)
            yield
        self._is_forgetting = False
