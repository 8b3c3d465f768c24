"""Pop: messages of any queue, invisible to others for a time, acknowledged one by one.

Owns how a delivery is named on the wire. The client builds the name from the fields of an answer:
the start of a queue is the generation of the deliveries, which a queue of an answer has in common,
and after another invisible time the revive queue has its last 31 bits. Queue ids of pop are the
group's own, whichever broker name the request names. A message that was not acknowledged comes
again in place: there is no retry topic for it.
"""

from typing import Any, Final

from node.broker.pop.handles import PopHandle, decode_handle, encode_handle
from node.rocketmq.remoting.calls.json_bodies import document_of, json_answer, text_in
from node.rocketmq.remoting.calls.node_admin import NodeAdmin
from node.rocketmq.remoting.calls.pulls import seen_by_clients
from node.rocketmq.remoting.calls.routes import RouteCalls
from node.rocketmq.remoting.calls.shared import Calls, Shared
from node.rocketmq.remoting.clients import Subscription, is_sql, owner_of
from node.rocketmq.remoting.conversation import Request
from node.rocketmq.remoting.protocol.answers import Answer, InvalidError, RefusedError
from node.rocketmq.remoting.protocol.codes import ResponseCode
from node.rocketmq.remoting.protocol.fields import INT32_MAX, bool_of, int_of, text_of
from node.state.tables.pop import PopTable
from node.users.calling import calling, require
from node.users.rules import Action, ResourceKind
from quorumlog.pb import pop_pb2
from store.format import RETRY_TOPIC_PREFIX

_COUNT_MAX: Final = 32
_WAIT_MS_MAX: Final = 25_000
_INVISIBLE_MS_MAX: Final = 12 * 3_600_000
_ANY_QUEUE: Final = -1
_FIRST: Final = pop_pb2.ReceiveRequest.START_FIRST
_END: Final = pop_pb2.ReceiveRequest.START_END
_MASK: Final = INT32_MAX
_POP, _PULL = "POP", "PULL"
_INFO_PARTS: Final = 8


class PopCalls(Calls):
    """Answers the requests of pop consumers. One per gateway."""

    def __init__(self, shared: Shared, routes: RouteCalls, node: NodeAdmin) -> None:
        super().__init__(shared)
        self._routes, self._node = routes, node

    # --- Assignments ---

    async def assignment(self, request: Request) -> Answer:
        """Return what a consumer reads: every broker name by pop, and the retry topic by one
        member alone, by pull."""
        document = document_of(request.command.body)
        group, client_id = text_in(document, "consumerGroup"), text_in(document, "clientId")
        require(Action.SUB, ResourceKind.GROUP, group)
        require(Action.SUB, ResourceKind.TOPIC, text_in(document, "topic"))
        caller = owner_of(request.account, calling())
        self._shared.clients.popping(group, client_id, caller)
        await self._shared.reports.flush()
        return await self._shared.ask_leader(request, self._assigned)

    async def _assigned(self, request: Request) -> Answer:
        document = document_of(request.command.body)
        topic, group = text_in(document, "topic"), text_in(document, "consumerGroup")
        client_id = text_in(document, "clientId")
        members = self._broker.group_members.popping(group, self._context.clock_ms())
        is_first = members[:1] == [client_id]
        rows = []
        for share, place in self._routes.places(topic):
            names = self._shared.places.names_of(share.group)
            if not topic.startswith(RETRY_TOPIC_PREFIX):
                rows.append(_assigned(topic, place.name, _ANY_QUEUE, _POP))
            elif is_first and names.queue_count(place.number, share.queue_count):
                rows.append(_assigned(topic, place.name, 0, _PULL))
        return json_answer(messageQueueAssignments=rows)

    async def set_mode(self, request: Request) -> Answer:
        """Accept pop for a group and topic; consumers that ask for an assignment get no other."""
        document = document_of(request.command.body)
        if text_in(document, "mode") != _POP:
            text = "consumers that ask for an assignment read by pop; set their clientRebalance"
            raise RefusedError(ResponseCode.NO_PERMISSION, text)
        return Answer()

    # --- Messages ---

    async def pop(self, request: Request) -> Answer:
        """Take messages; with a poll time wait for the first one."""
        ext, number = request.command.ext, self._shared.number_of(request)
        topic, group = text_of(ext, "topic"), text_of(ext, "consumerGroup")
        kind = is_sql(ext.get("expType", ""))
        wanted = Subscription(topic, ext.get("exp", "*"), kind)
        receive_request = pop_pb2.ReceiveRequest(
            group=group,
            topic=topic,
            queue_id=int_of(ext, "queueId", lo=_ANY_QUEUE, hi=INT32_MAX),
            max_count=int_of(ext, "maxMsgNums", lo=1, hi=_COUNT_MAX),
            invisible_ms=int_of(ext, "invisibleTime", lo=1, hi=_INVISIBLE_MS_MAX),
            wait_ms=min(int_of(ext, "pollTime", 0), _WAIT_MS_MAX),
            tags=wanted.tags,
            sql=wanted.expression if kind else "",
            is_fifo=bool_of(ext, "order"),
            attempt_id=ext.get("attemptId", ""),
            start=_END if int_of(ext, "initMode", 0) == 1 else _FIRST,
        )
        received = await self._broker.pop.receive(receive_request)
        times = {
            "popTime": str(received.now_unix_ms),
            "invisibleTime": str(max(0, received.visible_unix_ms - received.now_unix_ms)),
            "reviveQid": "0",
            "restNum": "0",
        }
        if not received.deliveries:
            return Answer(ResponseCode.POLLING_TIMEOUT, times, remark="no message")
        self._node.add_got(topic, group, len(received.deliveries))
        generations: dict[int, int] = {}
        offsets: dict[int, list[int]] = {}
        counts = []
        for delivery in received.deliveries:
            handle = decode_handle(group, topic, delivery.handle)
            generations[handle.queue_id] = handle.generation
            offsets.setdefault(handle.queue_id, []).append(handle.offset)
            counts.append(f"0 qo{handle.queue_id}%{handle.offset} {delivery.delivery_count - 1}")
        named = {
            "startOffsetInfo": ";".join(f"0 {queue} {one}" for queue, one in generations.items()),
            "msgOffsetInfo": ";".join(
                f"0 {queue} {','.join(map(str, some))}" for queue, some in offsets.items()
            ),
        }
        if receive_request.is_fifo:
            named["orderCountInfo"] = ";".join(counts)
        body = seen_by_clients(received.records, None, self._shared.own_host(number))
        return Answer(ext=times | named, body=body)

    # --- Afterwards ---

    async def ack(self, request: Request) -> Answer:
        """Acknowledge one message."""
        group, topic, handle = self._handle(request)
        if handle is not None:
            text = encode_handle(group, topic, handle)
            await self._broker.pop.ack(pop_pb2.AckRequest(group=group, topic=topic, handles=[text]))
        return Answer()  # One that was handed out again is not the caller's any more.

    async def change_invisible(self, request: Request) -> Answer:
        """Hide a message for longer or shorter, from now on."""
        group, topic, handle = self._handle(request)
        if handle is None:
            text = "the message is not in flight any more: it was acknowledged or handed out again"
            raise RefusedError(ResponseCode.NO_MESSAGE, text)
        invisible_ms = int_of(request.command.ext, "invisibleTime", hi=_INVISIBLE_MS_MAX)
        changed = await self._broker.pop.change_invisible(
            pop_pb2.ChangeInvisibleRequest(
                group=group,
                topic=topic,
                handle=encode_handle(group, topic, handle),
                invisible_ms=invisible_ms,
            )
        )
        after = decode_handle(group, topic, changed.handle)
        return Answer(
            ext={
                "popTime": str(changed.visible_unix_ms - invisible_ms),
                "invisibleTime": str(invisible_ms),
                "reviveQid": str(after.generation & _MASK),
            }
        )

    def _handle(self, request: Request) -> tuple[str, str, PopHandle | None]:
        """Return group, topic and delivery that a request names; None: it is not in flight."""
        context, ext = self._context, request.command.ext
        context.check_leads()
        group, topic = text_of(ext, "consumerGroup"), text_of(ext, "topic")
        queue_id, offset = int_of(ext, "queueId", hi=INT32_MAX), int_of(ext, "offset")
        context.readable(topic, queue_id)
        parts = text_of(ext, "extraInfo").split(" ")
        if len(parts) not in (_INFO_PARTS - 1, _INFO_PARTS):
            raise InvalidError(f"extraInfo has {len(parts)} parts, not {_INFO_PARTS}")
        named = {"start": parts[0], "revive": parts[3]}
        start, revive = int_of(named, "start"), int_of(named, "revive", hi=INT32_MAX)
        window = context.state.table(PopTable).windows.get((group, topic, queue_id))
        item = window.items.get(offset) if window is not None else None
        if item is None or not item.delivery_count:
            return group, topic, None
        is_first = item.generation == start
        is_changed = start == offset and item.generation & _MASK == revive
        if not is_first and not is_changed:
            return group, topic, None
        return group, topic, PopHandle(queue_id, offset, item.generation)


def _assigned(topic: str, name: str, queue_id: int, mode: str) -> dict[str, Any]:
    queue = {"topic": topic, "brokerName": name, "queueId": queue_id}
    return {"messageQueue": queue, "mode": mode, "attachments": None}
