"""Numbers of callers at the borders of their ranges, in every protocol: served, or refused by name.

The services take theirs from the proto files, the classic requests from the table `CLASSIC`."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from inspect import isasyncgen
from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message_factory import GetMessageClass

from node.config.limits import Limits
from node.errors.common import BadRequestError
from node.errors.translation import describe
from node.nameserver.calls import _share
from node.nameserver.directory.directory import Directory
from node.nameserver.directory.routes import groups, other_groups
from node.rocketmq.remoting.protocol.codes import RequestCode as Code
from node.services.methods import SERVICES, _methods
from quorumlog.pb import rocketmq_pb2
from quorumlog.pb.consumer_pb2 import CommitOffsetsRequest, GroupOffset
from quorumlog.pb.log_pb2 import AppendRequest
from quorumlog.pb.lookup_pb2 import TraceMessageRequest
from quorumlog.pb.retry_pb2 import ListDeadLettersRequest, RetryLaterRequest, RetryMessage
from quorumlog.pb.transaction_pb2 import CommitConsumedRequest, ConsumedOffset, ConsumedOffsets
from store.record.message import encode_message, message_id
from tests.node.broker_fakes import node_at
from tests.node.nameserver.brokers import NOW_MS, ha_report, send
from tests.node.rocketmq.remoting.clients import gateway_at
from tests.node.rocketmq.test_service import gateway_at as grpc_gateway_at
from tests.store.records import batch

END: Final = 10
INTERNAL: Final = "node.internal"
INT32, INT64 = 1 << 31, 1 << 63
RANGES: Final = {
    Field.CPPTYPE_INT32: (-INT32, INT32 - 1),
    Field.CPPTYPE_UINT32: (0, 2 * INT32 - 1),
    Field.CPPTYPE_INT64: (-INT64, INT64 - 1),
    Field.CPPTYPE_UINT64: (0, 2 * INT64 - 1),
}
BORDERS: Final = (-INT64, -INT32, -1, 0, 1, 4, END, END + 1, INT32 - 1, INT32, INT64 - 1, INT64)
"""Ends of types and of queues, one beyond, and queue 4 of 4."""
VALUES: Final[dict[str, Any]] = {"topic": "orders", "group": "readers", "records": batch(0, 1)}
VALUES.update(cluster_id=None, sql=None, tags=None, long_polling_timeout=None, consumed=None)
VALUES.update(invisible_ms=1_000, max_count=1, record_count=1, transaction=None, incarnation=None)
VALUES.update(is_consume_enabled=True, topics="orders", outcome=1, permission=6, queue_count=4)
VALUES.update(message_type=None, forbidden_topics=None)
CLASSIC: Final = {
    Code.SEND_MESSAGE_V2: "d e f g h j l",
    Code.PULL_MESSAGE: "queueId queueOffset maxMsgNums sysFlag commitOffset subVersion maxMsgBytes",
    Code.QUERY_MESSAGE: "maxNum beginTimestamp endTimestamp",
    Code.QUERY_CONSUMER_OFFSET: "queueId",
    Code.UPDATE_CONSUMER_OFFSET: "queueId commitOffset",
    Code.UPDATE_AND_CREATE_TOPIC: "readQueueNums writeQueueNums perm topicSysFlag",
    Code.SEARCH_OFFSET_BY_TIMESTAMP: "queueId timestamp",
    Code.GET_MAX_OFFSET: "queueId",
    Code.GET_MIN_OFFSET: "queueId",
    Code.GET_EARLIEST_MSG_STORETIME: "queueId",
    Code.VIEW_MESSAGE_BY_ID: "offset",
    Code.CONSUMER_SEND_MSG_BACK: "offset delayLevel maxReconsumeTimes",
    Code.END_TRANSACTION: "tranStateTableOffset commitLogOffset commitOrRollback",
    Code.INVOKE_BROKER_TO_RESET_OFFSET: "queueId offset timestamp",
    Code.POP_MESSAGE: "queueId maxMsgNums invisibleTime initMode bornTime",
    Code.ACK_MESSAGE: "queueId offset",
    Code.CHANGE_MESSAGE_INVISIBLETIME: "queueId offset invisibleTime",
}
"""The numbers of each request, by their names in it."""
EXT: Final = {"topic": "orders", "group": "readers", "consumerGroup": "readers", "a": "p"}
EXT.update(b="orders", c="TBW102", i="UNIQ_KEY\x01A\x02", subscription="*", boundaryType="UPPER")
EXT.update(key="k", extraInfo="0 1 1000 0 0 g0-n1 0 0", originMsgId="", sysFlag="4", bname="g0-n1")


def filled(made: Any) -> Any:
    """Set all fields: a number is refused for itself, and for nothing missing before it."""
    for field in made.DESCRIPTOR.fields:
        value = VALUES.get(
            field.name, {Field.TYPE_BYTES: b"x", Field.TYPE_STRING: "x"}.get(field.type, 0)
        )
        if value is None or (field.message_type and field.message_type.GetOptions().map_entry):
            continue
        there = getattr(made, field.name)
        if field.message_type:
            filled(there.add() if field.is_repeated else there)
        elif field.is_repeated:
            there.append(value)
        else:
            setattr(made, field.name, value)
    return made


def each_border(made: Any) -> Iterator[str]:
    """Set one number after the other to each of its borders; yield what is set."""
    for field in made.DESCRIPTOR.fields:
        there = getattr(made, field.name)
        if field.is_repeated and not there:
            continue
        if field.message_type and field.name in VALUES and VALUES[field.name] is None:
            continue
        if field.message_type:
            yield from each_border(there[0] if field.is_repeated else there)
        elif field.cpp_type in RANGES:
            lo, hi = RANGES[field.cpp_type]
            was = there[0] if field.is_repeated else there
            for value in (lo, hi, *(each for each in BORDERS if lo < each < hi), was):
                if field.is_repeated:
                    there[0] = value
                else:
                    setattr(made, field.name, value)
                yield f"{field.full_name} = {value}"


async def test_the_services(tmp_path: Path) -> None:
    async with node_at(tmp_path, filled=END, limits=replace(Limits(), read_wait_ms_max=1)) as node:
        of = node.broker
        owners = (of, of.queries, of.incarnations, of.groups, of.topics, of.retry, of.dead_letters)
        more = (of.group_settings, of.config_files, of.pop, of.delay, of.consumed, of.lookup)
        for service in SERVICES:
            for name, method in _methods(service, *owners, *more, of.transactions).items():
                kind = service.methods_by_name[name]
                made = filled(GetMessageClass(kind.input_type)())
                for what in () if kind.client_streaming else each_border(made):
                    answer: Any = method(made)
                    call = asyncio.ensure_future(anext(answer) if isasyncgen(answer) else answer)
                    if isasyncgen(answer):  # It may wait for what never comes.
                        await asyncio.wait([call], timeout=0)
                        call.cancel()
                    ends = await asyncio.gather(call, return_exceptions=True)
                    errors = [describe(end).code for end in ends if isinstance(end, Exception)]
                    assert INTERNAL not in errors, (name, what)


async def test_the_grpc_protocol_of_rocketmq(tmp_path: Path) -> None:
    async with grpc_gateway_at(tmp_path) as gateway:
        service = rocketmq_pb2.DESCRIPTOR.services_by_name["MessagingService"]
        for name in gateway.rocketmq._methods:
            made = filled(GetMessageClass(service.methods_by_name[name].input_type)())
            for _ in each_border(made):
                await gateway.call(name, made)
        made = filled(rocketmq_pb2.ReceiveMessageRequest())
        for _ in each_border(made):
            fields = {field.name: value for field, value in made.ListFields()}
            await gateway.receive(**fields)
        failed = gateway.rocketmq.counters.failed
        assert not [name for name, code in failed if code == INTERNAL]


async def test_classic_requests(tmp_path: Path) -> None:
    async with gateway_at(tmp_path, filled=END) as gateway:
        client = await gateway.client()
        for code, names in CLASSIC.items():
            ext = dict.fromkeys(names.split(), "0") | EXT | {"n": "g0-n1"}
            for name in names.split():
                for value in BORDERS:
                    response = await client.ask(int(code), ext | {name: str(value)})
                    assert "defect" not in str(response.remark), (code, name, value)


def test_reports_to_the_name_server() -> None:
    """Routes are made of what the directory took, for every client."""
    report: dict[str, Any] = ha_report(1).command()
    for name in ("broker_id", "start_ms", "now_ms", "epoch", "in_sync", "bindings", "log_end"):
        for value in BORDERS:
            made = {"in_sync": [value], "bindings": [[1, value, "n"]], "log_end": [value, value]}
            directory = Directory()
            send(directory, report | {name: made.get(name, value)})
            routed = other_groups(directory, "c", "", NOW_MS, lambda group: group.topics)
            assert len(routed) == len([_share(each) for each in groups(directory, NOW_MS)])


@pytest.mark.parametrize("number", [-INT32, -1, INT32 - 1])
async def test_numbers_in_records(tmp_path: Path, number: int) -> None:
    """A producer writes what it likes; readers of every protocol meet it."""
    async with grpc_gateway_at(tmp_path) as gateway:
        broker, born = gateway.node.broker, number << 32
        numbers: dict[str, Any] = {"flag": number, "reconsume_times": number, "born_unix_ms": born}
        record = encode_message("orders", 0, b"x", {"UNIQ_KEY": "U"}, **numbers)
        receipt = await broker.append(AppendRequest(records=record, record_count=1))
        named = message_id(gateway.node.log.store.config.store_host, receipt.position)
        await broker.lookup.trace_message(TraceMessageRequest(message_id=named))
        elements = [each for each in await gateway.receive() if each.HasField("message")]
        assert [each.message.body for each in elements] == [b"x"]
        given = [RetryMessage(topic="orders", offset=0, is_dead=True)]
        await broker.retry.retry_later(RetryLaterRequest(group="g", messages=given))
        await broker.dead_letters.list_dead_letters(ListDeadLettersRequest(group="g"))


@pytest.mark.parametrize("offset", [-1, END + 1, 999, INT64 - 1])
async def test_no_group_gets_behind_the_end_of_a_queue(tmp_path: Path, offset: int) -> None:
    row: dict[str, Any] = {"topic": "orders", "queue_id": 0, "offset": offset}
    async with gateway_at(tmp_path, filled=END) as gateway:
        broker, client = gateway.node.broker, await gateway.client()
        consumed = ConsumedOffsets(group="g", offsets=[ConsumedOffset(expected=-1, **row)])
        given = [RetryMessage(topic="orders", offset=0)]
        commit = CommitOffsetsRequest(group="g", offsets=[GroupOffset(**row)])
        retry = RetryLaterRequest(group="g", messages=given, offsets=[GroupOffset(**row)])
        for call in (
            broker.groups.commit_offsets(commit),
            broker.consumed.commit_consumed(CommitConsumedRequest(consumed=consumed)),
            broker.retry.retry_later(retry),
        ):
            with pytest.raises(BadRequestError, match="offset"):
                await call
        fields = EXT | {"queueId": "0", "offset": str(offset), "commitOffset": str(offset)}
        response = await client.ask(int(Code.UPDATE_CONSUMER_OFFSET), fields)
        assert response.code != 0
        if offset > 0:
            response = await client.ask(
                Code.INVOKE_BROKER_TO_RESET_OFFSET, fields | {"timestamp": "0"}
            )
            assert response.code != 0
        assert not gateway.node.machine.state.groups
