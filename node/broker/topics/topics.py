"""Topics: created, changed, deleted, listed and described.

Owns what a request must look like; what a command does, and whether it is refused, is decided where
it is applied (`node.state.state`). Topics are created by people and never by a message: a misspelt
name is an error, and not a second topic.
"""

from bisect import bisect_right
from typing import Final

from node.broker.append.own_appends import OwnAppends
from node.broker.append.sizes import Sizes
from node.broker.core.context import Context
from node.errors.common import (
    BadRequestError,
    ReservedTopicError,
    TopicExistsError,
    UnknownTopicError,
)
from node.state.state import PERMISSION_ALL, SYSTEM_TOPICS
from node.state.tables.topic_rates import TopicRatesTable
from node.state.tables.topic_types import MIXED, TOPIC_TYPES, TopicSettings
from node.users.calling import calling, may
from node.users.rules import Action, ResourceKind
from quorumlog.pb.admin_pb2 import (
    CreateTopicRequest,
    DeleteTopicRequest,
    DeleteTopicResponse,
    DescribeTopicRequest,
    DescribeTopicResponse,
    ListTopicsRequest,
    ListTopicsResponse,
    QueueInfo,
    SetTopicRatesRequest,
    TopicInfo,
)
from quorumlog.pb.state_pb2 import Command
from store.record.message import check_topic
from store.record.topic_names import is_reserved


class Topics:
    """The calls about topics. One per broker."""

    def __init__(self, context: Context, own_appends: OwnAppends, sizes: Sizes) -> None:
        """`sizes` counts messages by topic, by those of the leader."""
        self._sizes = sizes
        self._context: Final = context
        self._own_appends = own_appends

    async def create_topic(self, request: CreateTopicRequest) -> TopicInfo:
        """Create a topic; if there is one, raise its queue count or change its permission.

        A name that was deleted before goes on with its queue offsets (see `State`), and has only
        messages that are sent from now on. Raises
        TopicExistsError (only with `must_be_new`), ReservedTopicError, LimitReachedError,
        BadRequestError, TopicNameError and the errors of `OwnAppends.submit`.
        """
        context, name = self._context, request.topic
        check_topic(name.encode())
        if is_reserved(name):
            raise ReservedTopicError(name)
        if request.permission & ~PERMISSION_ALL:
            expected = "a sum of 2 (write) and 4 (read)"
            raise BadRequestError("permission", expected, str(request.permission))
        if request.message_type and request.message_type not in TOPIC_TYPES:
            expected = f"one of {', '.join(TOPIC_TYPES)}"
            raise BadRequestError("message_type", expected, repr(request.message_type[:64]))
        context.check_leads()
        old = context.state.topics.get(name)
        if old is not None and request.must_be_new:
            raise TopicExistsError(name, old.queue_count)
        queue_count = request.queue_count
        if not queue_count:
            queue_count = old.queue_count if old else context.limits.queue_count_default
        permission = request.permission
        if not permission:
            permission = old.permission if old else PERMISSION_ALL
        put = Command.PutTopic(
            topic=name,
            queue_count=queue_count,
            permission=permission,
            must_be_new=request.must_be_new,
            message_type=request.message_type,
        )
        await self._own_appends.submit(context.create_command(put), is_administration=True)
        message_type = request.message_type or (old.message_type if old else MIXED)
        return self._info(name, TopicSettings(queue_count, permission, message_type))

    async def delete_topic(self, request: DeleteTopicRequest) -> DeleteTopicResponse:
        """Delete a topic. Its records stay in the log until retention deletes them."""
        if is_reserved(request.topic):
            raise ReservedTopicError(request.topic)
        self._context.check_leads()
        if request.topic not in self._context.state.topics:
            raise UnknownTopicError(request.topic)
        delete = Command.DeleteTopic(topic=request.topic)
        await self._own_appends.submit(Command(delete_topic=delete))
        self._sizes.forget(request.topic)
        return DeleteTopicResponse()

    async def set_topic_rates(self, request: SetTopicRatesRequest) -> TopicInfo:
        """Change the rates that are set in the request. Raises UnknownTopicError, BadRequestError
        and the errors of `OwnAppends.submit`."""
        context, name = self._context, request.topic
        context.check_leads()
        old = context.state.table(TopicRatesTable).of(name)
        put = Command.SetTopicRates(topic=name, **old._asdict())
        if request.HasField("bytes_per_second"):
            put.bytes_per_second = request.bytes_per_second
        if request.HasField("messages_per_second"):
            put.messages_per_second = request.messages_per_second
        await self._own_appends.submit(Command(set_topic_rates=put), is_administration=True)
        return self._info(name, context.topic(name))

    async def list_topics(self, request: ListTopicsRequest) -> ListTopicsResponse:
        """Return topics by name: all that the caller may list, or a page of those with a text in
        their names."""
        self._context.check_leads()
        topics = dict(self._context.state.topics)
        if request.with_system:
            topics.update(SYSTEM_TOPICS)
        if calling() is not None:
            async for name in self._context.turn.over(list(topics)):
                if not may(Action.LIST, ResourceKind.TOPIC, name):
                    del topics[name]
        text = request.containing.lower()
        names = sorted(name for name in topics if text in name.lower())
        lo = bisect_right(names, request.after)
        page = names[lo : lo + request.max_count] if request.max_count else names[lo:]
        rows = [self._info(name, topics[name]) async for name in self._context.turn.over(page)]
        return ListTopicsResponse(topics=rows, matched_count=len(names), topic_count=len(topics))

    async def describe_topic(self, request: DescribeTopicRequest) -> DescribeTopicResponse:
        """Return a topic and where each of its queues begins and ends."""
        context, name = self._context, request.topic
        context.check_leads()
        topic = context.topic(name)
        response = DescribeTopicResponse(info=self._info(name, topic))
        async for queue_id in context.turn.over(range(topic.queue_count)):
            lo, hi = context.store.queue_range(name, queue_id)
            last_unix_ms = context.stored_ms(name, queue_id, hi - 1) or 0
            response.queues.append(
                QueueInfo(
                    queue_id=queue_id, min_offset=lo, max_offset=hi, last_store_unix_ms=last_unix_ms
                )
            )
        return response

    def _info(self, name: str, topic: TopicSettings) -> TopicInfo:
        rate = self._context.state.table(TopicRatesTable).of(name)
        return TopicInfo(topic=name, **topic._asdict(), **rate._asdict())
