"""The pop consumer: messages one by one out of any queue, each acknowledged alone.

Owns the choice of topics and broker groups, and the reports about each message; must not know how
nodes keep messages in flight. Queues are not divided: any number of consumers of a group take from
the same ones. A call that got no answer is made again under the same name, so the messages that it
took are received, and do not wait for the end of their invisible time.
"""

import asyncio
import secrets
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Literal, Self

from quorumlog.arguments import checked
from quorumlog.cluster.broker_groups import BrokerGroup, BrokerGroups
from quorumlog.cluster.calls import Steps
from quorumlog.cluster.close_once import Closing, raise_ended
from quorumlog.cluster.forks import forks
from quorumlog.cluster.retry import Deadline
from quorumlog.cluster.turns import Turns
from quorumlog.consume.membership import AWAY_MS, let_in, new_instance, warn_once
from quorumlog.errors import (
    ClientIdInUseError,
    ClosedError,
    InvalidRequestError,
    QuorumlogError,
    StaleHandleError,
    UnknownTopicError,
)
from quorumlog.pb import consumer_pb2, pop_pb2
from quorumlog.records.batch import decode_records
from quorumlog.records.compression import CompressedMessage
from quorumlog.records.message import Message

INVISIBLE_S: Final = 30.0
WAIT_S: Final = 20.0
RECEIVE_COUNT_MAX: Final = 32
_HEARTBEAT_S: Final = 2.0
_ACK_COUNT_MAX: Final = 1_024
_START: Final = {
    "first": pop_pb2.ReceiveRequest.START_FIRST,
    "end": pop_pb2.ReceiveRequest.START_END,
}

Start = Literal["first", "end"]


class PopMessage(CompressedMessage):
    """A message that is in flight. `delivery_count` is 1 the first time; `handle` names this
    delivery; others of the group see it again from `visible_unix_ms` on, by the leader's clock."""

    __slots__ = ("delivery_count", "handle", "visible_unix_ms")

    def __init__(
        self, message: Message, handle: str, delivery_count: int, visible_unix_ms: int
    ) -> None:
        super().__init__(*message.parts)
        self.handle = handle
        self.delivery_count = delivery_count
        self.visible_unix_ms = visible_unix_ms

    def to_dict(self) -> dict[str, Any]:
        """Return the message under stable names; `body` stays bytes."""
        own = ("handle", "delivery_count", "visible_unix_ms")
        return super().to_dict() | {name: getattr(self, name) for name in own}


@dataclass(frozen=True, slots=True)
class PopOptions:
    """The arguments of a pop consumer, as `client.pop_consumer` describes them."""

    group: str
    topics: str | Sequence[str]
    _: KW_ONLY
    invisible: float = INVISIBLE_S
    fifo: bool = False
    start: Start = "first"
    tags: Sequence[str] = ()
    sql: str = ""
    client_id: str | None = None
    timeout_ms: int | None = None


@checked
class PopConsumer(Closing):
    """Receives single messages for a group. Made by `client.pop_consumer()`.

    Every message has to be acknowledged; else it comes again when its invisible time is over, and
    after the group's last attempt it is a dead letter. Until it is closed the consumer is a member
    of the group; members that divide its queues (`group_consumer`) are refused beside it. Its close
    ends waiting calls, and gives back what no caller has.
    """

    def __init__(
        self, groups: BrokerGroups, options: PopOptions, client_id: str, timeout_ms: int
    ) -> None:
        super().__init__()
        self._timeout_ms: Final = options.timeout_ms or timeout_ms
        topics = [options.topics] if isinstance(options.topics, str) else options.topics
        if not topics or len(set(topics)) != len(topics):
            raise InvalidRequestError(
                f"topics are {list(topics)}; name each once, and one at least"
            )
        self.group = options.group
        self.topics = tuple(topics)
        self._groups = groups
        self._options = options
        self.client_id = client_id
        self._instance: Final = new_instance()
        self._keeping: asyncio.Task[None] | None = None
        self._unanswered: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        """Names of calls that brought no message, by topic and broker group: the next calls use
        them, and get the messages that may have been taken under them."""
        self._let_in = set[str]()
        """Broker groups whose leader let it in, and did not refuse it since."""
        self._target_rotation = 0
        self._turns, self._next_turn_s = Turns(), 0.0
        self._warned: set[str] = set()
        self._ready: list[PopMessage] = []
        """Messages that any call has taken and none has handed out yet."""
        self._polls: set[asyncio.Task[None]] = set()

    # --- Receiving ---

    async def receive(
        self, max_count: int = RECEIVE_COUNT_MAX, *, wait: float = WAIT_S
    ) -> list[PopMessage]:
        """Take up to `max_count` messages; wait up to `wait` seconds for the first one.

        Cancelling it loses nothing: taken messages come with the next call, or to other consumers.
        Raises UnknownTopicError, ClientIdInUseError, GroupKindError, InvalidRequestError,
        DeadlineError.
        """
        if not 1 <= max_count <= RECEIVE_COUNT_MAX:
            text = f"max_count is {max_count}; use 1 to {RECEIVE_COUNT_MAX}"
            raise InvalidRequestError(text)
        await self._fill(max_count, wait)
        messages, self._ready = self._ready[:max_count], self._ready[max_count:]
        return messages

    async def _fill(self, max_count: int, wait: float) -> None:
        """Wait until a message is ready, for `wait` seconds at most."""
        self._check_open()
        if self._ready:
            return
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait
        targets = self._targets()
        if len(targets) > 1:
            await self._look(targets, max_count)
        is_over = False
        while not self._ready and not is_over:  # Another call may have taken the messages.
            wait_s = min(max(0.0, deadline_s - loop.time()), WAIT_S)
            await self._poll_all(targets, max_count, round(wait_s * 1000))
            is_over = loop.time() >= deadline_s

    def _targets(self) -> list[tuple[str, BrokerGroup]]:
        """Return the topics and groups to ask, beginning with another one each time."""
        there = [group for group in self._groups.all if not group.is_away] or self._groups.all
        targets = [(topic, group) for topic in self.topics for group in there]
        self._target_rotation = (self._target_rotation + 1) % len(targets)
        return targets[self._target_rotation :] + targets[: self._target_rotation]

    async def _look(self, targets: Sequence[tuple[str, BrokerGroup]], max_count: int) -> None:
        """Ask the targets in turn for the messages that are available now."""
        failed: list[QuorumlogError] = []
        for target in targets:
            try:
                await self._poll_all([target], max_count, 0)
            except UnknownTopicError as error:  # Another broker group may have it.
                failed.append(error)
            if self._ready:
                return
        if len(failed) == len(targets):
            raise failed[0]

    async def _poll_all(
        self, targets: Sequence[tuple[str, BrokerGroup]], max_count: int, wait_ms: int
    ) -> None:
        """Wait at all targets at once until one has messages, then cancel the other calls.

        Raises the error if there is no message; UnknownTopicError if no target has the topic.
        """
        self._check_open()
        if self._keeping is not None:
            raise_ended(self._keeping)
        polls = {
            asyncio.create_task(self._poll(topic, group, max_count, wait_ms))
            for topic, group in targets
        }
        self._polls |= polls
        waiting = set(polls)
        failed: list[BaseException] = []
        try:
            while waiting and not self._ready:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                self._check_open()  # Then `close` has cancelled the polls.
                failed += [error for poll in done if (error := poll.exception()) is not None]
                serious = [one for one in failed if not isinstance(one, UnknownTopicError)]
                if serious and not self._ready:
                    raise serious[0]
        finally:
            self._polls -= polls
            for poll in waiting:
                poll.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        if len(failed) == len(polls) and not self._ready:
            raise failed[0]

    async def _poll(self, topic: str, group: BrokerGroup, max_count: int, wait_ms: int) -> None:
        """Take messages of one topic in one broker group, and add them to the ready ones.

        Each call has a name of its own: two of one name would be given the same messages.
        """
        options, unanswered = self._options, self._unanswered[topic, group.name]
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep_alive())
        attempt_id = unanswered.pop() if unanswered else secrets.token_hex(8)
        request = pop_pb2.ReceiveRequest(
            group=self.group,
            topic=topic,
            queue_id=-1,
            max_count=max_count,
            invisible_ms=round(options.invisible * 1000),
            wait_ms=wait_ms,
            tags=options.tags,
            sql=options.sql,
            is_fifo=options.fifo,
            attempt_id=attempt_id,
            start=_START[options.start],
            cluster_id=self._groups.cluster_id,
            client_id=self.client_id,
            instance=self._instance,
        )
        deadline = Deadline(self._timeout_ms + wait_ms)
        response = pop_pb2.ReceiveResponse()

        async def ask() -> Any:
            request.is_new = group.name not in self._let_in
            return await group.calls.leader(request, deadline, wait_ms=wait_ms)

        try:
            response = await let_in(ask, deadline)
            self._let_in.add(group.name)
        except ClientIdInUseError:
            self._let_in.discard(group.name)
            raise
        finally:
            if not response.deliveries:
                unanswered.append(attempt_id)
        warn_once(self._warned, response.warnings)
        messages = decode_records(response.records, topic=topic, broker_group=group.name)
        self._ready += [
            PopMessage(message, row.handle, row.delivery_count, response.visible_unix_ms)
            for message, row in zip(messages, response.deliveries, strict=True)
        ]

    async def _keep_alive(self) -> None:
        """Stay a member while the program works on messages, however long."""
        while True:
            await asyncio.sleep(_HEARTBEAT_S)
            # One that was refused, and does not ask again, holds no client id.
            groups = self._asked if self._polls else self._let_in.intersection(self._asked)
            await asyncio.gather(*map(self._beat, groups))

    async def _beat(self, name: str) -> None:
        request = consumer_pb2.HeartbeatRequest(
            group=self.group,
            client_id=self.client_id,
            topics=self.topics,
            cluster_id=self._groups.cluster_id,
            tags=self._options.tags,
            sql=self._options.sql,
            is_new=name not in self._let_in,
            is_popping=True,
            instance=self._instance,
        )
        if await self._tell(name, request):
            self._let_in.add(name)

    @property
    def _asked(self) -> list[str]:
        """The broker groups that this consumer is a member at."""
        return sorted({name for _, name in self._unanswered})

    async def _tell(self, name: str, request: Any) -> bool:
        """Tell a broker group; return whether its leader took it."""
        try:
            group = self._groups.get(name)
            if group.is_away:  # Its session ends there.
                return False
            await group.calls.leader(request, Deadline(AWAY_MS))
            return True
        except ClientIdInUseError:
            self._let_in.discard(name)
        except QuorumlogError:
            pass  # The next receive raises what matters; a session ends without heartbeats.
        return False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PopMessage:
        """Receive for ever, message by message; each has to be acknowledged all the same."""
        if time.monotonic() >= self._next_turn_s:
            self._next_turn_s = await self._turns.give()
        while not self._ready:
            await self._fill(RECEIVE_COUNT_MAX, WAIT_S)
        return self._ready.pop(0)

    # --- Acknowledgement ---

    async def ack(self, messages: PopMessage | Sequence[PopMessage]) -> None:
        """Mark messages as done: the group never gets them again.

        May be repeated. Raises StaleHandleError, whose `handles` name the messages that were handed
        out again before they were acknowledged. The others are done.
        """
        given = [messages] if isinstance(messages, PopMessage) else list(messages)
        by_source: dict[tuple[str, str], list[str]] = {}
        for message in given:
            by_source.setdefault((message.topic, message.broker_group), []).append(message.handle)
        stale: list[str] = []
        steps = Steps()
        for (topic, name), handles in by_source.items():
            for lo in range(0, len(handles), _ACK_COUNT_MAX):
                request = pop_pb2.AckRequest(
                    group=self.group,
                    topic=topic,
                    handles=handles[lo : lo + _ACK_COUNT_MAX],
                    cluster_id=self._groups.cluster_id,
                )
                stale += (await steps.take(self._call(name, request))).stale_handles
        if stale:
            raise StaleHandleError(
                f"{len(stale)} of {len(given)} messages were handed out again, or the group was "
                f"moved, before they were acknowledged; work faster, or ask for a longer "
                f"invisible time",
                handles=tuple(stale),
            )

    async def change_invisible(self, message: PopMessage, seconds: float) -> None:
        """Make a message visible to others `seconds` from now, instead of at the agreed time.

        Raises StaleHandleError when it was handed out again meanwhile, or is done.
        """
        request = pop_pb2.ChangeInvisibleRequest(
            group=self.group,
            topic=message.topic,
            handle=message.handle,
            invisible_ms=round(seconds * 1000),
            cluster_id=self._groups.cluster_id,
        )
        response = await self._call(message.broker_group, request)
        message.handle = response.handle
        message.visible_unix_ms = response.visible_unix_ms

    async def nack(self, message: PopMessage) -> None:
        """Give a message back: it can be received again at once."""
        await self.change_invisible(message, 0)

    async def reject(self, message: PopMessage) -> None:
        """Make a message a dead letter of the group without another attempt.

        A repetition after a lost answer raises StaleHandleError if the first attempt was applied.
        """
        request = pop_pb2.GiveUpRequest(
            group=self.group,
            topic=message.topic,
            handle=message.handle,
            cluster_id=self._groups.cluster_id,
        )
        await self._call(message.broker_group, request)

    async def _call(self, broker_group: str, request: Any) -> Any:
        if self.close_once.is_over:
            raise self._closed()
        calls = self._groups.get(broker_group).calls
        return await calls.leader(request, Deadline(self._timeout_ms))

    # --- Life cycle ---

    def _check_open(self) -> None:
        forks.check()
        if self.is_closed:
            raise self._closed()

    def _closed(self) -> ClosedError:
        return ClosedError("the consumer is closed; make another one")

    async def _close(self) -> None:
        work = {*self._polls, *([] if self._keeping is None else [self._keeping])}
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        ready, self._ready = self._ready, []
        try:
            for message in ready:
                await self.nack(message)
        except QuorumlogError:
            pass  # The messages come again when their invisible time is over.
        leave = consumer_pb2.LeaveGroupRequest(
            group=self.group, client_id=self.client_id, instance=self._instance
        )
        await asyncio.gather(*(self._tell(name, leave) for name in self._asked))
