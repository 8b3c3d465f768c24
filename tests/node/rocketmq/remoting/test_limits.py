"""What one request may cost: sizes are looked at before the work, and ends touch their own rows."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from node.framed.frames import JSON_KIND, FrameFault
from node.rocketmq.remoting.calls.json_bodies import (
    DOCUMENT_SIZE_BYTES_MAX,
    LIST_SIZE_BYTES_MAX,
    ROW_COUNT_MAX,
    document_of,
)
from node.rocketmq.remoting.calls.locks import LOCK_S, LockCalls
from node.rocketmq.remoting.clients import Clients, Consumption, Member
from node.rocketmq.remoting.conversation import Request
from node.rocketmq.remoting.protocol.answers import RefusedError
from node.rocketmq.remoting.protocol.codes import RequestCode
from node.rocketmq.remoting.protocol.command import Command, decode
from node.runtime.accounts import ANY, Account, Accounts, Kind, Limit
from node.runtime.json_text import VALUE_COUNT_MAX
from quorumlog.foreign_json import DEPTH_MAX
from tests.node.rocketmq.remoting import codes
from tests.node.rocketmq.remoting.clients import (
    binary_frame,
    client_at,
    gateway_at,
    json_frame,
    send_fields,
)
from tests.node.rocketmq.remoting.test_admin import document
from tests.patience import PATIENCE_S, eventually

INVALID = 29
ACCOUNT = Accounts().open("10.0.0.1")
ROW = {"topic": "orders", "brokerName": "g0-n1", "queueId": 0}
DOCUMENTS = (
    RequestCode.CHECK_CLIENT_CONFIG,
    RequestCode.QUERY_ASSIGNMENT,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
)
LISTS = {
    RequestCode.HEART_BEAT: "consumerDataSet",
    RequestCode.LOCK_BATCH_MQ: "mqSet",
    RequestCode.UNLOCK_BATCH_MQ: "mqSet",
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: "topicConfigList",
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: "groupConfigList",
}


def body_of(**fields: Any) -> bytes:
    return json.dumps({"clientID": "c", "consumerGroup": "readers", **fields}).encode()


def request_of(**fields: Any) -> Request:
    connection: Any = SimpleNamespace(
        is_node=False, connection=SimpleNamespace(account=ACCOUNT, is_ended=False, port_number=0)
    )
    return Request(Command(codes.LOCK, body=body_of(**fields)), connection)


@pytest.mark.parametrize("code", [*DOCUMENTS, *LISTS])
async def test_large_documents_are_refused_by_the_name_of_the_limit(
    tmp_path: Path, code: RequestCode
) -> None:
    limit = LIST_SIZE_BYTES_MAX if code in LISTS else DOCUMENT_SIZE_BYTES_MAX
    inner = "[" * DEPTH_MAX + "]" * DEPTH_MAX
    bodies = {
        f"bytes of JSON, the limit is {limit}": body_of(x="x" * limit),
        f"nested more than {DEPTH_MAX} deep": b'{"x":' + inner.encode() + b"}",
    }
    if code in LISTS:
        many = body_of(x=[1] * VALUE_COUNT_MAX)
        bodies[f"values of JSON, the limit is {VALUE_COUNT_MAX}"] = many
        bodies[f"rows of {LISTS[code]}, the limit is "] = body_of(
            clientId="c", **{LISTS[code]: [{}] * (ROW_COUNT_MAX + 1)}
        )
    async with client_at(tmp_path) as (gateway, client):
        for name, body in bodies.items():
            answer = await client.ask(code, body=body)
            expected = 0 if code == codes.LOCK else INVALID  # It locks nothing, and says why.
            assert (answer.code, name in str(answer.remark)) == (expected, True), answer.remark
        assert gateway.remoting.groups.clients.count == gateway.remoting.locks.count == 0


async def test_a_frame_over_the_limit_is_refused_and_its_connection_goes_on(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (_, client):
        parked = asyncio.create_task(client.pull(0, 0, wait_ms=60_000))
        for size_bytes in (4_300_000, 16 << 20):
            answer = await client.send(bytes(size_bytes - 300))
            assert (answer.code, "4259840 bytes, the limit" in (answer.remark or "")) == (13, True)
            assert (await client.send(queue=1)).code == 0
        assert (await client.send()).code == 0
        assert (await parked).code == 0


@pytest.mark.parametrize("order", ["java", "go", "binary"])
@pytest.mark.parametrize("size_bytes", [1_100_000, 3_000_000, 5_000_000, 16_000_000])
async def test_a_header_over_the_limit_is_refused_and_its_connection_goes_on(
    tmp_path: Path, size_bytes: int, order: str
) -> None:
    """Clients write the number of a command before its fields, or behind them."""
    async with client_at(tmp_path) as (_, client):
        parked = asyncio.create_task(client.pull(0, 0, wait_ms=60_000))
        text = 'own\x01"opaque":7,' + "v" * (size_bytes - 40) + '"opaque":8,'
        ext, rest = send_fields("orders", 0, "g0-n1") | {"i": text}, {"flag": 0, "opaque": 9}
        if order == "binary":
            data = binary_frame(codes.SEND, 9, 0, ext, b"body")
        elif order == "go":
            data = json_frame({"code": codes.SEND} | rest | {"extFields": ext}, b"body")
        else:
            data = json_frame({"code": codes.SEND, "extFields": ext} | rest, b"body")
        answer = client._answers[9] = asyncio.get_running_loop().create_future()
        client.write(data)
        async with asyncio.timeout(PATIENCE_S):
            assert ((await answer).code, "1048576" in answer.result().remark) == (13, True)
        assert (await client.send()).code == 0
        assert (await parked).code == 0
        client.write(
            json_frame({"code": codes.SEND, "extFields": {"i": "v" * size_bytes}}, b"body")
        )
        await client.has_ended  # Nobody knows what to answer.


def test_texts_that_java_writes_are_read() -> None:
    assert document_of(b'{"a":"\\ud800"}') == {"a": "?"}
    for bad in (b'{"a":NaN}', b'{"a":1e999}', b"[1]", b'{"a":', b"\xff"):
        with pytest.raises(RefusedError):
            document_of(bad)


def test_a_header_of_many_values_ends_its_connection() -> None:
    header = b'{"code":1,"extFields":{},"x":[' + b"1," * VALUE_COUNT_MAX + b"1]}"
    with pytest.raises(FrameFault, match="values of JSON"):
        decode(JSON_KIND, header, b"")


async def test_a_pull_with_many_tags_is_refused_before_they_are_taken_apart(tmp_path: Path) -> None:
    fields = {"topic": "orders", "consumerGroup": "readers", "queueId": "0", "queueOffset": "0"}
    fields |= {"sysFlag": "4", "subVersion": "1", "subscription": "||".join("a" * 20_000)}
    async with gateway_at(tmp_path) as gateway:
        answer = await (await gateway.client()).ask(codes.PULL, fields)
        assert "the limit is 16384" in str(answer.remark)


async def test_answers_over_tables_are_made_in_turns_and_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, turns, most = 1 << 20, 0, 0
    held = {Kind.DOCUMENTS: Limit("documents", ANY, limit, 1, 1)}
    rows = [{"topic": f"t{n}", "subString": "||".join("abcd" * 25)} for n in range(50)]
    consumer = {"groupName": "readers", "subscriptionDataSet": rows}
    heartbeat = {"consumerDataSet": [consumer], "producerDataSet": [{"groupName": "p"}]}
    async with gateway_at(tmp_path, held=held) as gateway:
        client, accounts = await gateway.client(), gateway.calls.accounts
        turn = gateway.node.broker.context.turn
        for number in range(20):
            await gateway.node.create_topic(f"t{number}")
        body = body_of(clientID="a", **heartbeat)
        assert (await client.ask(RequestCode.HEART_BEAT, body=body)).code == 0

        async def counted() -> None:
            nonlocal turns, most
            turns, most = turns + 1, max(most, accounts.held(Kind.DOCUMENTS)[1])

        monkeypatch.setattr(turn, "is_over", lambda: True)
        monkeypatch.setattr(turn, "next", counted)
        other = accounts.open("10.0.0.9")
        for code, ext, row_count in (
            (RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "readers"}, 51),
            (RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p"}, 1),
            (RequestCode.GET_ALL_PRODUCER_INFO, {}, 1),
            (RequestCode.GET_ALL_TOPIC_CONFIG, {}, 21),
            (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}, 1),
            (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "orders", "bname": "g0-n1"}, 2),
            (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "readers", "bname": "g0-n1"}, 20),
        ):
            turns = most = 0
            answer = await client.ask(code, ext)
            assert answer.code == 0, answer.remark
            document(answer.body)
            assert turns >= row_count, code
            assert row_count < 20 or most > len(answer.body), code
            assert accounts.held(Kind.DOCUMENTS) == (0, 0), code
            with closing_charge(other, limit - 50):
                refused = await client.ask(code, ext)
            assert "bytes of documents of all callers" in str(refused.remark), code
            assert accounts.held(Kind.DOCUMENTS) == (0, 0), code


@contextmanager
def closing_charge(account: Account, size_bytes: int) -> Iterator[None]:
    charge = account.charge(Kind.DOCUMENTS, size_bytes)
    yield
    charge.release()


# --- Locks and members ---


def lines_of(work: Callable[[], object]) -> int:
    """Return how many lines some work executes."""
    count = 0

    def trace(_frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


async def test_the_end_of_a_client_touches_its_own_locks_only(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        client, locks = await gateway.client(), gateway.remoting.locks
        counts = []
        for other_count in (4, 400):
            rows = [{**ROW, "queueId": queue_id} for queue_id in range(2, other_count)]
            for group in ("readers", "writers"):
                body = body_of(consumerGroup=group, clientId="other", mqSet=rows)
                assert (await client.ask(codes.LOCK, body=body)).code == 0
            await client.ask(codes.LOCK, body=body_of(clientId="c", mqSet=[ROW]))
            looked = lines_of(lambda: locks.is_locked("readers"))
            counts.append((looked, lines_of(lambda: locks.release("readers", "c"))))
            await eventually(lambda: not gateway.node.broker.context.turn._left, "its end")
            assert locks.count == 2 * (other_count - 2)
        assert counts[0] == counts[1]


async def test_locks_run_out_and_are_forgotten(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        now_s = 0.0
        locks = LockCalls(gateway.remoting._shared, lambda: now_s)
        await locks.lock(request_of(clientId="a", mqSet=[ROW, {**ROW, "queueId": 1}]))
        now_s = LOCK_S / 2
        await locks.lock(request_of(clientId="a", mqSet=[ROW]))
        now_s = LOCK_S + 1
        taken = await locks.lock(request_of(clientId="b", mqSet=[ROW, {**ROW, "queueId": 1}]))
        assert [row["queueId"] for row in json.loads(taken.body)["lockOKMQSet"]] == [1]
        await locks.unlock(request_of(clientId="b", mqSet=[{**ROW, "queueId": 1}]))
        assert (locks.count, locks.is_locked("readers")) == (1, True)
        now_s = 2 * LOCK_S
        assert not locks.is_locked("readers")
        many = 5_000
        for lo in range(0, many, 1_000):
            rows = [{**ROW, "topic": f"t{number}"} for number in range(lo, lo + 1_000)]
            await locks.lock(request_of(clientId="a", mqSet=rows))
        now_s = 4 * LOCK_S
        locks.expire()
        locks.expire()
        await eventually(lambda: locks.count == 0, "one look forgets all")
        assert locks.count == 0 == len(locks._of_group) == len(locks._of_client)


def test_the_end_of_a_connection_touches_its_own_members_only() -> None:
    counts = []
    for other_count in (2, 200):
        clients = Clients(lambda _: None, lambda _group, _client_id: None)
        own, other = Mock(), Mock()
        own.connection = other.connection = SimpleNamespace(is_ended=False, port_number=0)
        members = [(f"o{number}", other) for number in range(other_count)]
        for client_id, connection in [*members, ("mine", own)]:
            member = Member(client_id, connection, ACCOUNT, "JAVA", 1, 0.0, 0)
            clients.put(member, ["makers"], {"readers": Consumption("", "", "", {}, {})})
        assert lines_of(partial(clients.producer, "mine")) < 10
        own.connection = SimpleNamespace(is_ended=True)
        counts.append(lines_of(partial(list, clients.on_closed(own))))
        assert (clients.count, clients.producer("mine")) == (2 * other_count, None)
    assert counts[0] == counts[1]
