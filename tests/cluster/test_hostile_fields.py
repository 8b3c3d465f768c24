"""No request harms another one: any field values, in every call, beside callers who behave."""

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor

import quorumlog
from deploy.local import LocalCluster
from node.services.methods import SERVICES
from quorumlog.errors import from_rpc
from quorumlog.pb import common_pb2, log_pb2, rocketmq_pb2
from quorumlog.produce.outgoing_messages import entry_of
from quorumlog.records.batch import encode_entries
from tests import seeds
from tests.cluster.conftest import running
from tests.cluster.hostile import Hostile
from tests.cluster.workload import Workload, prove
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.long
REQUEST_COUNT: Final = 500
CALLER_COUNT: Final = 4
STREAM_S: Final = 0.05  # A stream that says nothing is left alone after that.
ROCKETMQ: Final = rocketmq_pb2.DESCRIPTOR.services_by_name["MessagingService"]
_CLIENT: Final = (("x-mq-client-id", "stranger@1"),)
TOPIC: Final = "strange"  # Those who behave have another one.
_APPEND_STREAM: Final = "/quorumlog.v1.LogService/AppendStream"

# Calls whose very purpose is to harm others: what they may do is not a matter of field values.
_ON_PURPOSE: Final = frozenset(
    {"Drain", "AcceptLoss", "ChangeMember", "TransferLeadership", "HaPromote", "Report"}
)


def methods() -> list[MethodDescriptor]:
    """Every call that a node serves to clients."""
    all_methods = [method for service in (*SERVICES, ROCKETMQ) for method in service.methods]
    return [method for method in all_methods if method.name not in _ON_PURPOSE]


def path_of(method: MethodDescriptor) -> str:
    """RocketMQ's service is served under its own name."""
    service = method.containing_service
    name = "apache.rocketmq.v2.MessagingService" if service is ROCKETMQ else service.full_name
    return f"/{name}/{method.name}"


class Stranger:
    """One client that sends nonsense, and looks at what it is told."""

    def __init__(self, channel: grpc.aio.Channel, hostile: Hostile, record: bytes) -> None:
        self._channel, self._hostile, self._record = channel, hostile, record
        self._appends: Any = None
        self.told: Counter[str] = Counter()

    async def send(self, method: MethodDescriptor) -> None:
        """Make one call; anything but an answer or a typed error fails the test."""
        request = self._make(method)
        if request is None:
            return
        path, data = path_of(method), request.SerializeToString()
        # One that asks to be kept waiting is.
        timeout_s = STREAM_S if getattr(request, "wait_ms", 0) > 1_000 * STREAM_S else PATIENCE_S
        try:
            said = await self._call(method, path, data, timeout_s)
        except grpc.aio.AioRpcError as error:
            is_kept = timeout_s == STREAM_S and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            said = "kept" if is_kept else self._code(error, f"{path}: {request}"[:3_000])
        assert said != "node.internal", f"{path}: {request}"[:3_000]
        self.told[said] += 1

    def _make(self, method: MethodDescriptor) -> Any:
        request = self._hostile.request(method.input_type)
        is_append = method.name in ("Append", "AppendStream")
        if is_append and self._hostile.random.random() < 0.9:
            request.records, request.record_count = self._hostile.records(self._record)
        spared = getattr(request, "topic", None) == TOPIC and method.name == "DeleteTopic"
        return None if spared else request

    async def _call(
        self, method: MethodDescriptor, path: str, data: bytes, timeout_s: float
    ) -> str:
        if path == _APPEND_STREAM:
            return await self._append(data)
        if method.client_streaming:
            call = self._channel.stream_stream(path)(metadata=_CLIENT)
            await call.write(data)
            return await self._first_of(call)
        if method.server_streaming:
            return await self._first_of(self._channel.unary_stream(path)(data, metadata=_CLIENT))
        call = self._channel.unary_unary(path)
        answer = await call(data, metadata=_CLIENT, timeout=timeout_s)
        if method.containing_service is ROCKETMQ:
            return self._status(answer)
        return "answered"

    async def _append(self, data: bytes) -> str:
        """On one stream for all: an error of one request must not end it."""
        if self._appends is None:
            parse = log_pb2.AppendResponse.FromString
            self._appends = self._channel.stream_stream(
                _APPEND_STREAM, response_deserializer=parse
            )()
        await self._appends.write(data)
        async with asyncio.timeout(PATIENCE_S):
            answer = await self._appends.read()
        assert answer is not grpc.aio.EOF, "one request has ended the stream"
        return str(answer.error.code) if answer.HasField("error") else "answered"

    @staticmethod
    async def _first_of(call: Any) -> str:
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STREAM_S):
                    await call.read()
            return "answered"
        finally:
            call.cancel()

    @staticmethod
    def _status(data: bytes) -> str:
        """All answers of RocketMQ's service have the status as their first field."""
        answer = rocketmq_pb2.HeartbeatResponse.FromString(data)
        code = rocketmq_pb2.Code.Name(answer.status.code)
        return "node.internal" if code == "INTERNAL_ERROR" else code

    @staticmethod
    def _code(error: grpc.aio.AioRpcError, what: str) -> str:
        trailer = dict(error.trailing_metadata() or ()).get("quorumlog-error-bin")
        if trailer is None:
            codes = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.CANCELLED)
            assert error.code() in codes, f"{error.code()} {error.details()}: {what}"
            return str(error.code().name)
        detail = common_pb2.Error.FromString(trailer)
        assert detail.code, what
        assert detail.message, what
        assert from_rpc(error, "node").code == detail.code
        return detail.code


async def known_values(client: quorumlog.Client, cluster: LocalCluster) -> dict[str, list[Any]]:
    """Values that make sense, by the names of fields: what there is in the cluster."""
    await client.admin.create_topic(TOPIC, queue_count=3)
    async with client.producer() as producer:
        sent = await producer.send(TOPIC, b"x", key="k", tag="t", queue_id=0)
        held = await producer.send(TOPIC, b"later", delay=3_600)
    await client.admin.set_group_settings("g", retry_count_max=2)
    return {
        "topic": [TOPIC],
        "topics": [TOPIC],
        "queue_id": [0, 1, 2],
        "group": ["g"],
        "name": [TOPIC, "g"],
        "resource_namespace": [""],
        "cluster_id": ["", cluster.cluster_id],
        "message_id": [sent.message_id, held.message_id],
        "offset": [0, 1],
        "expected": [-1, 0],
        "producer_id": [0, 7],
        "sequence": [0, 1, 2],
        "key": ["k"],
        "tags": ["t"],
        "sql": ["", "a > 1"],
        "wait_ms": [0, 5],
        "timeout_ms": [0, 500],
        "max_count": [0, 1, 32],
        "max_size_bytes": [0, 1_000],
        "invisible_ms": [100, 10_000],
        "client_id": ["c1"],
        "queue_count": [1, 3],
        "permission": [0, 6],
        "consistency": [0, 1, 2, 3],
        "has_delayed": [False],
        "seconds": [0, 1],
        "nanos": [0],
    }


async def test_no_field_values_harm_others(tmp_path: Path) -> None:
    """Nothing of a stranger's requests ends a node, a stream, or a call of somebody else."""
    number = seeds.drawn("tests/cluster/test_hostile_fields.py")

    async with (
        running(tmp_path / "c") as (cluster, client),
        Workload(client, producers=1) as load,
    ):
        await load.acked(50)
        hostile = Hostile(number, await known_values(client, cluster))
        entry = entry_of(TOPIC, b"body", "k", "t", 0, {"DELAY": "1"}, 0)
        record = b"".join(encode_entries([entry], lambda *_: (TOPIC, 0), born_unix_ms=1).pieces)
        leader = await asyncio.to_thread(cluster.leader_id)
        pids = {state.node_id: state.pid for state in cluster.status()}
        async with grpc.aio.insecure_channel(cluster.address(leader)) as channel:
            strangers = [Stranger(channel, hostile, record) for _ in range(CALLER_COUNT)]

            async def be_strange(stranger: Stranger) -> None:
                for _ in range(REQUEST_COUNT // CALLER_COUNT):
                    await stranger.send(hostile.random.choice(methods()))

            await asyncio.gather(*map(be_strange, strangers))
        assert {state.node_id: state.pid for state in cluster.status()} == pids
        outcomes = sum((stranger.told for stranger in strangers), Counter())
        assert outcomes["answered"] > REQUEST_COUNT // 20, outcomes
        assert len(outcomes) > 15, outcomes
        await load.acked(50)
        history = await load.stop()
        assert not history.refused, "a stranger's request has failed somebody else's message"
        assert not history.unknown
        await prove(cluster, client, history)
