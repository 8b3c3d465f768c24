"""Who made the durable things of the replicated state, and how many one address may make.

Owns the shares of clients without administration: topics, groups, offsets, names of producers, keys
of the configuration and delayed messages. They are checked here at the leader, before a command
enters the log, and never where it is applied: replicas know no callers. Soft state: after a change
of leader the shares start empty. The node's own work and administration are not limited by a share.
"""

import heapq
import json
import math
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

from node.config.limits import Limits
from node.errors.delay import DelayedFullError
from node.runtime.accounts import Account, Address, Kind, caller
from node.runtime.shares import Shares
from node.state.appends import Committed
from node.state.held import held_counts
from node.state.state import State
from node.state.tables.incarnations import IncarnationsTable
from node.state.tables.key_values import KeyValuesTable
from quorumlog.pb.state_pb2 import Command
from store import format as fmt
from store.reads import Reads
from store.record.topic_names import dead_letter_topic, is_of_group, retry_topic

_PARTS_BITS: Final = 3
"""A delayed message counts until its time, and for an eighth of the delay more at most."""


class Makers:
    """The shares of all addresses. One per broker."""

    def __init__(
        self, store: Reads, state: Callable[[], State], limits: Limits, clock_ms: Callable[[], int]
    ) -> None:
        self._store, self._state = store, state
        self._delayed_count_max = limits.delayed_count_max
        self._under_way_count = 0
        """Delayed messages that are written and not decided."""
        self._names: Final = Shares(Kind.NAMES, self._held_names, clock_ms)
        part = max(1, limits.group_offset_count_max // 2)
        self._offsets: Final = Shares(Kind.OFFSETS, self._held_offsets, clock_ms, part)
        self._producers: Final = Shares(Kind.PRODUCERS, self._held_producers, clock_ms)
        self._keys: Final = Shares(Kind.KEYS, self._held_keys, clock_ms)
        self._delayed: dict[tuple[int, str], tuple[Address, int]] = {}
        """Messages by the time until which they count and the address that made them."""
        self._delayed_heap: list[tuple[int, str]] = []

    def end(self) -> None:
        """Forget who made what: this node leads no longer."""
        for shares in (self._names, self._offsets, self._producers, self._keys):
            shares.clear()
        self._release_delayed(math.inf)

    # --- Checks, before something is made ---

    def check(self, command: Command) -> None:
        """Check what a command of the running call would make. Raises BusyError."""
        if caller() is None:
            return
        match command.WhichOneof("command"):
            case "commit_offsets":
                commit = command.commit_offsets
                self.check_offsets(commit.group, [(o.topic, o.queue_id) for o in commit.offsets])
            case "pop_take":
                take = command.pop_take
                self.check_offsets(take.group, [(take.topic, q.queue_id) for q in take.queues])
            case "put_group":
                self._check_group(command.put_group.group)
            case "put_topic":
                self.check_topic(command.put_topic.topic)
            case "recreate_topic":
                self.check_topic(command.recreate_topic.topic)
            case "put_key_value":
                put = command.put_key_value
                name = json.dumps((put.namespace, put.key))
                if put.HasField("value") and not self._held_keys(name):
                    self._keys.check(name)
            case _:
                pass

    def check_topic(self, name: str) -> None:
        """Check the making of a topic. One of a group counts as the group. Raises BusyError."""
        if is_of_group(name):
            self._check_group(_group_of(name))
        elif name not in self._state().topics:
            self._names.check(name)

    def check_offsets(self, group: str, queues: list[tuple[str, int]]) -> None:
        """Check the first commits of offsets, which make the group as well. Raises BusyError."""
        self._check_group(group)
        stored = self._state().groups.get(group, {})
        count = sum(queue_id not in stored.get(topic, ()) for topic, queue_id in queues)
        if count:
            self._offsets.check(group, count)

    def check_producer(self, name: str) -> None:
        """Check the first claim of a name. Raises BusyError."""
        if not self._held_producers(name):
            self._producers.check(name)

    def _check_group(self, name: str) -> None:
        if name not in self._state().groups:
            self._names.check(retry_topic(name))

    # --- Delayed messages: they go when their time is over ---

    def hold_delayed(
        self, account: Account | None, due_unix_ms: Collection[int], now_unix_ms: int
    ) -> Callable[[Committed | None], None]:
        """Hold the delayed messages of a batch for its caller; return what to call when the batch
        is decided, with None if it is not known to be stored.

        The caller holds them until they are due, cancelled or not. Raises DelayedFullError,
        BusyError.
        """
        message_count, limit = len(due_unix_ms), self._delayed_count_max
        if not message_count:
            return lambda _committed: None
        held_count = sum(held_counts(self._store, self._state())) + self._under_way_count
        if held_count + message_count > limit:
            raise DelayedFullError(held_count, limit)
        self._release_delayed(now_unix_ms)
        held = Counter[tuple[int, str]]()
        if account is not None:  # The node's own work holds no share.
            address = account.address
            address.take(Kind.DELAYED, message_count)
            held.update((_rounded(due_ms, now_unix_ms), address.what) for due_ms in due_unix_ms)
        for key, count in held.items():
            if key not in self._delayed:
                heapq.heappush(self._delayed_heap, key)
            self._delayed[key] = address, count + self._delayed.get(key, (address, 0))[1]
        self._under_way_count += message_count

        def on_decided(committed: Committed | None) -> None:
            self._under_way_count -= message_count
            for key, count in held.items() if committed is None else ():
                if key in self._delayed:  # Else the time is over, or this node led no longer.
                    maker = self._delayed[key][1]
                    self._delayed[key] = address, maker - min(count, maker)
                    address.hold(Kind.DELAYED, -min(count, maker))

        return on_decided

    def _release_delayed(self, now_unix_ms: float) -> None:
        while self._delayed_heap and self._delayed_heap[0][0] <= now_unix_ms:
            address, count = self._delayed.pop(heapq.heappop(self._delayed_heap))
            address.hold(Kind.DELAYED, -count)

    # --- What is still there ---

    def _held_names(self, name: str) -> int:
        state = self._state()
        if not is_of_group(name):
            return name in state.topics
        group = _group_of(name)
        return group in state.groups or not state.topics.keys().isdisjoint(
            (name, dead_letter_topic(group))
        )

    def _held_offsets(self, group: str) -> int:
        return sum(map(len, self._state().groups.get(group, {}).values()))

    def _held_producers(self, name: str) -> int:
        return name in self._state().table(IncarnationsTable).numbers

    def _held_keys(self, name: str) -> int:
        return self._state().table(KeyValuesTable).has(*json.loads(name))


def _group_of(topic: str) -> str:
    return topic.removeprefix(fmt.RETRY_TOPIC_PREFIX).removeprefix(fmt.DEAD_LETTER_TOPIC_PREFIX)


def _rounded(due_unix_ms: int, now_unix_ms: int) -> int:
    """Return a time soon after a due time that many due times share."""
    step_ms = 1 << max(0, (due_unix_ms - now_unix_ms).bit_length() - _PARTS_BITS - 1)
    return -(-due_unix_ms // step_ms) * step_ms
