"""Single messages that wait for others are one batch, and each has its own answer."""

import asyncio
from pathlib import Path

import pytest

from node.config.limits import Limits
from node.errors.common import UnknownTopicError
from node.rocketmq.remoting.calls.send import JOINED_COUNT_MAX, SingleSends
from quorumlog.pb.log_pb2 import AppendRequest
from store.record.encoder import CommonFields, OwnRecords, RecordEncoder
from store.record.message import decode_message
from tests.node.broker_fakes import node_at
from tests.node.rocketmq.remoting import codes
from tests.node.rocketmq.remoting.clients import entry, gateway_at, send_fields
from tests.patience import eventually


def record(topic: str, body: bytes) -> OwnRecords:
    host = ("127.0.0.1", 1)
    encoder = RecordEncoder(CommonFields(topic, 0, 0, 0, host, host, 0))
    encoder.add(0, body, b"UNIQ_KEY\x01A\x02")
    return encoder.records()


async def test_each_of_many_sends_at_once_is_answered_for_itself(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        client, driver = await gateway.client(), gateway.node.driver
        driver.is_holding = True
        first = client.begin_send(b"first")
        await eventually(lambda: len(driver.pending) == 1, "a send is under way")
        sends = [client.begin_send(b"%d" % number, number % 2) for number in range(40)]
        await eventually(lambda: gateway.call_count == 41, "all are under way")
        driver.release()
        assert (await first).code == 0
        offsets = [1, 0]  # The first send went to queue 0.
        for number, send in enumerate(sends):
            answer = await send
            assert (answer.code, answer.ext["queueOffset"]) == (0, str(offsets[number % 2]))
            offsets[number % 2] += 1
            at = int(answer.ext["msgId"][-16:], 16)
            stored = decode_message((await client.ask(codes.VIEW, {"offset": str(at)})).body)
            assert stored.body == b"%d" % number


async def test_a_batch_does_not_overtake_the_sends_before_it(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        client, driver = await gateway.client(), gateway.node.driver
        driver.is_holding = True
        sends = [client.begin_send(b"single") for _ in range(5)]
        fields = send_fields("orders", 0, "g0-n1") | {"m": "true"}
        sends += [client.begin(codes.BATCH, fields, entry(b"in"))]
        sends += [client.begin_send(b"last")]
        await eventually(lambda: gateway.call_count == 7, "all are under way")
        driver.release()
        offsets = [int((await send).ext["queueOffset"]) for send in sends]
        assert offsets == list(range(7))


async def test_records_that_come_while_a_batch_is_under_way_are_the_next_one(
    tmp_path: Path,
) -> None:
    async with node_at(tmp_path) as node:
        singles, driver = SingleSends(node.broker), node.driver
        count = driver.append_count
        receipts = [singles.append("orders", 0, record("orders", b"x")) for _ in range(4)]
        assert driver.append_count == count + 1, "an idle node appends at once"
        offsets = [(await receipt).queues[0].first_offset for receipt in receipts]
        assert (offsets, driver.append_count) == ([0, 1, 2, 3], count + 2)


async def test_a_record_that_is_refused_refuses_no_other(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node:
        singles = SingleSends(node.broker)
        topics = ("orders", "orders", "gone", "orders")
        receipts = [singles.append(topic, 0, record(topic, b"x")) for topic in topics]
        kept = [await receipts[number] for number in (0, 1, 3)]
        assert [receipt.queues[0].first_offset for receipt in kept] == [0, 1, 2]
        with pytest.raises(UnknownTopicError):
            await receipts[2]
        assert singles._batch_count == 0


async def test_records_of_a_batch_that_is_refused_late_keep_their_place(tmp_path: Path) -> None:
    async with node_at(tmp_path, limits=Limits(in_flight_count_max=1)) as node:
        singles, driver = SingleSends(node.broker), node.driver
        driver.is_holding = True
        topics = ("orders", "orders", "gone", "orders")
        receipts = [singles.append(topic, 0, record(topic, b"x")) for topic in topics]
        singles.flush()  # As a batch of the same connection does.
        behind = AppendRequest(record_count=1)
        receipts.append(node.broker.append_nowait(behind, record("orders", b"behind")))
        assert len(node.broker.produce.parked) == 2
        driver.release()
        kept = [await receipts[number] for number in (0, 1, 3, 4)]
        assert [receipt.queues[0].first_offset for receipt in kept] == [0, 1, 2, 3]
        with pytest.raises(UnknownTopicError):
            await receipts[2]
        assert (len(node.broker.produce.parked), node.broker.produce.parked_bytes.used) == (0, 0)


async def test_an_unknown_outcome_is_that_of_all_that_were_joined(tmp_path: Path) -> None:
    """A batch that stays undecided holds no other one up meanwhile."""
    async with node_at(tmp_path) as node:
        singles, driver = SingleSends(node.broker), node.driver
        driver.is_holding = True
        receipts = [singles.append("orders", 0, record("orders", b"x")) for _ in range(3)]
        await eventually(lambda: len(driver.pending) == 2, "one, and two that are joined")
        count = driver.append_count
        driver.lose()
        driver.decide(1, is_known=False)
        errors = await asyncio.gather(*receipts, return_exceptions=True)
        assert [getattr(e, "code", "") for e in errors] == ["node.outcome_unknown"] * 3
        assert driver.append_count == count, "none is appended again"


async def test_a_joined_batch_has_a_limit(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node:
        singles, driver = SingleSends(node.broker), node.driver
        driver.is_holding = True
        for _ in range(1 + JOINED_COUNT_MAX):
            singles.append("orders", 0, record("orders", b"x"))
        assert len(driver.pending) == 2, "the second batch is full"
