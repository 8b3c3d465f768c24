"""The stream that every client keeps open: settings, and commands of the node to the client.

Owns one stream and its end, and the settings in answer to a client's own: these come back with
those fields set that clients need; a field that is missing makes some client unusable (protocol
sections 4 and 18). The client's half-close ends it at once and with OK: one client's process dies
of any other end (protocol section 5.1).
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError

from node.errors.common import BadRequestError
from node.rocketmq.clients import COMMAND_COUNT_MAX, GatewayClient, GatewayClients
from node.rocketmq.protocol.names import comparable, group_name, topic_name
from node.rocketmq.protocol.statuses import OK, CallRefusedError, status_of
from node.runtime.message_bounds import bounded_message
from node.services.calls import cancel_all
from node.users.calling import calling, require
from node.users.rules import Action, ResourceKind
from quorumlog.pb import rocketmq_pb2 as pb
from quorumlog.pb.rocketmq_pb2 import Code, TelemetryCommand

AGAIN_S: Final = 1.0
"""Time after which the first settings are sent once more: a client with several topics may miss
them while it still asks for routes, and would wait for minutes."""
SEND_ATTEMPT_COUNT: Final = 3
RECEIVE_COUNT: Final = 32
"""Messages of one answer."""
LONG_POLLING_S: Final = 20
TOPIC_COUNT_MAX: Final = 256
"""Topics of one client."""
SIZE_BYTES_MAX: Final = 64 * 1024
"""Size of the settings of one client: they are sent back, and may wait for it."""
_PRODUCER_BACKOFF: Final = pb.ExponentialBackoff(
    initial=Duration(nanos=10_000_000), max=Duration(seconds=1), multiplier=2
)
_RETRY_SECONDS: Final = (1, 5, 10, 30, *range(60, 601, 60), 1_200, 1_800, 3_600, 7_200)
_CONSUMER_BACKOFF: Final = pb.CustomizedBackoff(
    next=[Duration(seconds=seconds) for seconds in _RETRY_SECONDS]
)

Answer = Callable[[pb.Settings], pb.Settings]


class Telemetry:
    """Serves the streams of all clients of one gateway."""

    def __init__(
        self, clients: GatewayClients, answer: Answer, on_failure: Callable[[Exception], None]
    ) -> None:
        """`answer` returns the settings in answer to a client's own, or raises; `on_failure` is
        called with that error."""
        self._clients = clients
        self._answer = answer
        self._on_failure = on_failure

    async def serve(
        self, client_id: str, requests: AsyncIterator[bytes]
    ) -> AsyncIterator[TelemetryCommand]:
        """Yield commands to a client, until it closes its side. A newer stream ends this one."""
        client = self._clients.seen(client_id)
        commands: asyncio.Queue[TelemetryCommand] = asyncio.Queue(COMMAND_COUNT_MAX)
        client.commands, client.user = commands, calling()
        reader = asyncio.create_task(self._read(client_id, client, requests, commands))
        getter: asyncio.Task[TelemetryCommand] | None = None
        try:
            while True:
                getter = asyncio.create_task(commands.get())
                await asyncio.wait({getter, reader}, return_when=asyncio.FIRST_COMPLETED)
                if not getter.done():
                    reader.result()
                    return
                yield getter.result()
                self._clients.went_out(client, getter.result())
                commands.task_done()
                getter = None
        finally:
            if client.commands is commands:
                client.commands = None
            await cancel_all([reader] if getter is None else [getter, reader])
            if getter is not None and not getter.cancelled():
                self._clients.went_out(client, getter.result())
            while not commands.empty():
                self._clients.went_out(client, commands.get_nowait())

    async def _read(
        self,
        client_id: str,
        client: GatewayClient,
        requests: AsyncIterator[bytes],
        commands: "asyncio.Queue[TelemetryCommand]",
    ) -> None:
        loop = asyncio.get_running_loop()
        again: asyncio.TimerHandle | None = None
        try:
            async for data in requests:
                self._clients.seen(client_id)
                try:
                    command = bounded_message(TelemetryCommand, data)
                except (BadRequestError, DecodeError):
                    continue  # Of a newer version: nothing in it can be for this node.
                if command.WhichOneof("command") != "settings":
                    continue  # Reports that only an asker needs; nothing here asks.
                reply = self._settings(client, command.settings)
                _put(commands, reply)
                if again is None:
                    again = loop.call_later(AGAIN_S, _put, commands, reply)
                if client.commands is not commands:
                    return
                await commands.join()  # A client that takes no reply is not asked for more.
        finally:
            if again is not None:
                again.cancel()

    def _settings(self, client: GatewayClient, asked: pb.Settings) -> TelemetryCommand:
        try:
            settings = self._answer(asked)
            _check_rights(asked.subscription)
            topics = frozenset(topic.name for topic in asked.publishing.topics)
            self._clients.sends_to(client, topics)
            subscribed = asked.subscription
            if subscribed.group.name:
                filters = {
                    topic_name(one.topic, for_reading=True): comparable(
                        one.expression.expression, is_sql=one.expression.type == pb.FilterType.SQL
                    )
                    for one in subscribed.subscriptions
                }
                self._clients.consumes(client, group_name(subscribed.group), filters)
        except Exception as error:  # noqa: BLE001 - reported to the client.
            self._on_failure(error)
            return TelemetryCommand(status=status_of(error))
        return TelemetryCommand(status=OK, settings=settings)


def answer(
    asked: pb.Settings, *, body_size_bytes_max: int, attempt_count: int, is_fifo: bool
) -> pb.Settings:
    """Return the settings of a client. Raises CallRefusedError for invalid names, and for too much.

    `attempt_count` and `is_fifo` are those of a consumer's group.
    """
    size_bytes = asked.ByteSize()
    if size_bytes > SIZE_BYTES_MAX:
        text = f"settings of {size_bytes} bytes, the limit is {SIZE_BYTES_MAX}"
        raise CallRefusedError(Code.BAD_REQUEST, text)
    count = max(len(asked.publishing.topics), len(asked.subscription.subscriptions))
    if count > TOPIC_COUNT_MAX:
        text = f"{count} topics of one client, the limit is {TOPIC_COUNT_MAX}"
        raise CallRefusedError(Code.BAD_REQUEST, text)
    settings = pb.Settings()
    settings.CopyFrom(asked)
    settings.metric.CopyFrom(pb.Metric(on=False))
    match asked.WhichOneof("pub_sub"):
        case "publishing":
            for topic in asked.publishing.topics:
                topic_name(topic)
            settings.publishing.max_body_size = body_size_bytes_max
            settings.publishing.validate_message_type = True
            policy = pb.RetryPolicy(
                max_attempts=SEND_ATTEMPT_COUNT, exponential_backoff=_PRODUCER_BACKOFF
            )
        case "subscription":
            group_name(asked.subscription.group)
            for entry in asked.subscription.subscriptions:
                topic_name(entry.topic, for_reading=True)
            subscription = settings.subscription
            subscription.fifo = is_fifo
            subscription.receive_batch_size = RECEIVE_COUNT
            subscription.long_polling_timeout.CopyFrom(Duration(seconds=LONG_POLLING_S))
            policy = pb.RetryPolicy(
                max_attempts=attempt_count, customized_backoff=_CONSUMER_BACKOFF
            )
        case _:
            text = "settings without `publishing` or `subscription`"
            raise CallRefusedError(Code.BAD_REQUEST, text)
    settings.backoff_policy.CopyFrom(policy)
    return settings


def _check_rights(subscription: pb.Subscription) -> None:
    """Raise ForbiddenError unless the running call may read as a consumer wants to. The topics of a
    producer are asked for when it sends, which its users see."""
    if subscription.group.name:
        require(Action.SUB, ResourceKind.GROUP, subscription.group.name)
    for entry in subscription.subscriptions:
        require(Action.SUB, ResourceKind.TOPIC, entry.topic.name)


def _put(commands: "asyncio.Queue[TelemetryCommand]", command: TelemetryCommand) -> None:
    """Give a client a command, unless too many wait for it already."""
    if not commands.full():
        commands.put_nowait(command)
