"""Pulls: records of one queue, from this node's own copy of the log, waiting for the first one.

Owns the subscription by which records are filtered, and what tells a consumer to move its offset.
Any replica answers from what it has applied. Only the leader may move a consumer or refuse it: a
replica may lag, and its log may begin later.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from node.errors.common import NodeError
from node.rocketmq.remoting.calls.groups import GroupCalls
from node.rocketmq.remoting.calls.node_admin import NodeAdmin
from node.rocketmq.remoting.calls.offsets import OffsetCalls
from node.rocketmq.remoting.calls.shared import Calls, Shared
from node.rocketmq.remoting.clients import Subscription, is_sql
from node.rocketmq.remoting.conversation import Request
from node.rocketmq.remoting.known_offsets import Key
from node.rocketmq.remoting.protocol import marks
from node.rocketmq.remoting.protocol.answers import Answer, RefusedError
from node.rocketmq.remoting.protocol.codes import ResponseCode
from node.rocketmq.remoting.protocol.fields import INT32_MAX, QUEUE_ID_MAX, int_of, text_of
from node.rocketmq.remoting.protocol.marks import FORWARDED
from quorumlog.pb import log_pb2
from quorumlog.pb.common_pb2 import CONSISTENCY_LEADER, CONSISTENCY_LOCAL
from quorumlog.pb.log_pb2 import PullRequest, PullResponse
from store import format as fmt
from store.format import Host
from store.record.message import encode_host

_SUSPEND: Final = 2
_HAS_SUBSCRIPTION: Final = 4
_MESSAGE_COUNT_MAX: Final = 1_024
_CODES: Final = {
    log_pb2.PULL_STATUS_FOUND: (ResponseCode.SUCCESS, "FOUND"),
    log_pb2.PULL_STATUS_NO_NEW_MESSAGE: (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE"),
    log_pb2.PULL_STATUS_NO_MATCHED_MESSAGE: (
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        "NO_MATCHED_MESSAGE",
    ),
    log_pb2.PULL_STATUS_OFFSET_TOO_SMALL: (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL"),
    log_pb2.PULL_STATUS_OFFSET_TOO_BIG: (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY"),
}
_HEARTBEAT_S: Final = 0.1
"""Time that a pull waits for the heartbeat with its subscription; then the node asks the client."""
_NEWER_S: Final = 1.0
"""Time that it waits for either: one that is refused is made again after 3 s."""
_LOOK_S: Final = 0.02
_STORE_HOST_AT: Final = fmt.STORE_TIMESTAMP_AT + 8


class PullHeader(NamedTuple):
    """The fields of a pull that say what is read."""

    group: str
    topic: str
    shown_queue_id: int
    """As the broker name shows it."""
    offset: int
    sys_flag: int
    version: int
    """Of the subscription, as the client knows it."""

    @classmethod
    def of(cls, ext: Mapping[str, str]) -> "PullHeader":
        """Read the header of a command. Raises RefusedError."""
        return cls(
            text_of(ext, "consumerGroup"),  # Without it the broker would ask for no permission.
            text_of(ext, "topic"),
            int_of(ext, "queueId", hi=QUEUE_ID_MAX),
            int_of(ext, "queueOffset"),
            int_of(ext, "sysFlag", 0),
            int_of(ext, "subVersion", 0),
        )


class Pulls(Calls):
    """Answers pulls of both codes. One per gateway."""

    def __init__(
        self, shared: Shared, offsets: OffsetCalls, groups: GroupCalls, node: NodeAdmin
    ) -> None:
        super().__init__(shared)
        self._offsets, self._groups, self._node = offsets, groups, node

    async def pull(self, request: Request) -> Answer:
        """Return records, or what to do next."""
        header = PullHeader.of(request.command.ext)
        group, client_id = header.group, request.connection.client_id
        self._context.check_name("consumerGroup", group)
        if self._shared.reports.is_refused(group, client_id):
            text = (
                f"client {client_id!r} gets no messages of group {group!r}; see its warnings in "
                f"'qlog group describe {group}', or use another group"
            )
            raise RefusedError(ResponseCode.NO_PERMISSION, text)
        number = self._shared.number_of(request)
        if FORWARDED in request.command.ext:
            # Another replica asks whether an offset is there.
            return await self._read(request, header, number, is_leader=True)
        key = group, header.topic, self._names.queue(number, header.shown_queue_id)
        moved = await self._offsets.moved(request, key, header.offset)
        if moved is not None:
            return self._told(key, moved)
        try:
            answer = await self._read(request, header, number, is_leader=False)
        except NodeError:
            answer = None  # The leader says whether it is so for the group.
        if answer is not None and answer.code != ResponseCode.PULL_OFFSET_MOVED:
            return answer
        if not header.sys_flag & _HAS_SUBSCRIPTION:  # The leader may have no such member.
            subscription = self._subscription(request, header)
            mark = {marks.SQL if subscription.is_sql else marks.TAGS: subscription.expression}
            command = replace(request.command, ext=request.command.ext | mark)
            request = request._replace(command=command)
        read = partial(self._read, header=header, number=number, is_leader=True)
        return await self._shared.ask_leader(request, read)

    def _told(self, key: Key, moved: Answer) -> Answer:
        """Return the answer that sends a consumer to the offset of its group in an answer."""
        if moved.code != ResponseCode.SUCCESS:
            return moved
        lo, hi = self._context.store.queue_range(*key[1:])
        fields = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": moved.ext["offset"],
            "minOffset": str(lo),
            "maxOffset": str(hi),
        }
        return Answer(ResponseCode.PULL_OFFSET_MOVED, fields, remark="OFFSET_RESET")

    async def _read(
        self, request: Request, header: PullHeader, number: int, *, is_leader: bool
    ) -> Answer:
        ext, (group, topic, shown, offset, flags, _) = request.command.ext, header
        subscription = await self._newest_subscription(request, header)
        pull_request = PullRequest(
            topic=topic,
            queue_id=self._names.queue(number, shown),
            offset=offset,
            max_count=min(int_of(ext, "maxMsgNums", 32), _MESSAGE_COUNT_MAX),
            max_size_bytes=min(int_of(ext, "maxMsgBytes", 0), INT32_MAX),
            wait_ms=min(int_of(ext, "suspendTimeoutMillis", 0), INT32_MAX)
            if flags & _SUSPEND and not is_leader
            else 0,
            consistency=CONSISTENCY_LEADER if is_leader else CONSISTENCY_LOCAL,
            group=group,
            tags=subscription.tags,
            sql=subscription.expression if subscription.is_sql else "",
        )
        pulled = await self._broker.pulls.pull(pull_request)
        response = pulled.response
        code, remark = _CODES[response.status]
        ext_of_answer = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(_next(response, offset)),
            "minOffset": str(response.min_offset),
            "maxOffset": str(response.max_offset),
            "topicSysFlag": "0",
            "groupSysFlag": "0",
        }
        body = pulled.records
        if body:
            self._node.add_got(topic, group, response.record_count)
            body = seen_by_clients(body, shown, self._shared.own_host(number))
        return Answer(code, ext_of_answer, body, remark)

    async def _newest_subscription(self, request: Request, header: PullHeader) -> Subscription:
        """Return what the client reads of a topic. Clients that share out their queues pull with a
        newer version, and tell it by a heartbeat that may come later, or not soon: then the node
        asks the client. Raises RefusedError."""
        started_s, is_asked = time.monotonic(), False
        while True:
            try:
                return self._subscription(request, header)
            except RefusedError as error:
                passed_s = time.monotonic() - started_s
                # The client may read what its last heartbeat does not say.
                is_behind = error.code == ResponseCode.SUBSCRIPTION_NOT_LATEST or (
                    error.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
                    and self._shared.clients.consumer(header.group, request.connection.client_id)
                )
                if not is_behind or passed_s >= _NEWER_S:
                    raise
            if passed_s < _HEARTBEAT_S or is_asked:
                await asyncio.sleep(_LOOK_S)
                continue
            is_asked = True
            await self._groups.renew(header.group, request.connection.client_id)

    def _subscription(self, request: Request, header: PullHeader) -> Subscription:
        ext, group, topic = request.command.ext, header.group, header.topic
        if header.sys_flag & _HAS_SUBSCRIPTION:
            kind = is_sql(ext.get("expressionType", ""))
            return Subscription(topic, ext.get("subscription", "*"), kind)
        for mark in (marks.TAGS, marks.SQL):
            if mark in ext:
                return Subscription(topic, ext[mark], mark == marks.SQL)
        group_members = self._shared.clients.consumers.get(group)
        if group_members is None:
            text = f"no consumer of group {group[:200]!r} is registered at this node"
            raise RefusedError(ResponseCode.SUBSCRIPTION_NOT_EXIST, text)
        host = request.account.address.what
        subscription = group_members.subscription(request.connection.client_id, host, topic)
        if subscription is None:
            text = (
                f"this client does not subscribe to {topic[:200]!r} in group {group[:200]!r}, or "
                f"sent no heartbeat over this connection; send one, then pull again"
            )
            raise RefusedError(ResponseCode.SUBSCRIPTION_NOT_EXIST, text)
        if header.version > subscription[1]:
            text = f"the subscription of {topic[:200]!r} is newer than the one registered"
            raise RefusedError(ResponseCode.SUBSCRIPTION_NOT_LATEST, text)
        return subscription[0]


def _next(response: PullResponse, offset: int) -> int:
    if response.status == log_pb2.PULL_STATUS_OFFSET_TOO_SMALL:
        return response.min_offset
    if response.status == log_pb2.PULL_STATUS_OFFSET_TOO_BIG:
        return response.max_offset
    return max(response.next_offset, offset)


def seen_by_clients(records: bytes, queue_id: int | None, host: Host) -> bytes:
    """Return records with the queue id that a broker name shows, None: the group's own, and with
    this node as store host.

    Clients build message ids of host and position, and turn to that host with them. Neither field
    is covered by the CRC of the body.
    """
    out, at = bytearray(records), 0
    encoded = encode_host(host)
    while at < len(out):
        (size_bytes,) = fmt.INT32.unpack_from(out, at)
        if queue_id is not None:
            fmt.INT32.pack_into(out, at + fmt.QUEUE_ID_AT, queue_id)
        (sys_flag,) = fmt.INT32.unpack_from(out, at + fmt.SYS_FLAG_AT)
        is_v6 = sys_flag & fmt.SYS_FLAG_STORE_HOST_V6 != 0
        if is_v6 == (len(encoded) == fmt.HOST_V6_SIZE_BYTES):
            host_at = at + _STORE_HOST_AT
            if sys_flag & fmt.SYS_FLAG_BORN_HOST_V6:
                host_at += fmt.HOST_V6_EXTRA_BYTES
            out[host_at : host_at + len(encoded)] = encoded
        at += size_bytes
    return bytes(out)
