"""What comes under a used number is the batch that has it, or is refused: nothing is dropped."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.broker.core.context import noted
from node.broker.groups.members import Consumer
from node.config.limits import Limits
from node.errors.common import SequenceReusedError
from node.errors.delay import DelayTooLongError
from quorumlog.pb.consumer_pb2 import GroupOffset
from quorumlog.pb.log_pb2 import AppendRequest
from quorumlog.pb.retry_pb2 import RetryLaterRequest, RetryMessage
from quorumlog.pb.transaction_pb2 import ConsumedOffset, ConsumedOffsets, HalfMessages
from store import format as fmt
from store.record.message import encode_message
from tests.node.broker_fakes import Fixture, node_at, node_with, request
from tests.patience import eventually

SENT: dict[str, Any] = {"body": b"a", "properties": {"KEYS": "k", "TAGS": "t"}, "flag": 1}
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "delayed": {"has_delayed": True},
    "half": {"transaction": HalfMessages(producer_group="p")},
    "consumed": {
        "consumed": ConsumedOffsets(
            group="g", offsets=[ConsumedOffset(topic="orders", queue_id=0, expected=-1, offset=0)]
        )
    },
}


def batch(feature: str, count: int = 2, **change: Any) -> AppendRequest:
    how = {"topic": "orders", "queue_id": 0, **SENT, **change}
    if feature == "delayed":
        how["properties"] = {**how["properties"], fmt.PROPERTY_DELAY_MS: "50"}
    records = encode_message(**how) * count
    return AppendRequest(records=records, record_count=count, producer_id=7, **FEATURES[feature])


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("is_under_way", [False, True])
@node_with(topics={"orders": 2, "bills": 2})
async def test_other_messages_under_a_used_number_are_refused_and_the_same_are_known(
    node: Fixture, feature: str, is_under_way: bool
) -> None:
    node.driver.is_holding = is_under_way
    first = node.broker.append_nowait(batch(feature))
    if not is_under_way:
        await first
    node.clock.now_ms += 1_000  # A delayed one is due now, and would not be held any more.
    changes: list[dict[str, Any]] = [
        {"body": b"b"},
        {"flag": 2},
        {"topic": "bills"},
        {"topic": "bills", "properties": SENT["properties"] | {"REAL_TOPIC": "orders"}},
        {"properties": {"KEYS": "l", "TAGS": "t"}},
        {"properties": {"KEYS": "k"}},
        {"count": 1},
        {"count": 3},
    ]
    others = [node.broker.append_nowait(batch(feature, **change)) for change in changes]
    repeats: list[dict[str, Any]] = [
        {},
        {"born_unix_ms": 9},
        {"born_host": ("10.0.0.9", 1)},
        {"queue_id": 1},
    ]
    same = [node.broker.append_nowait(batch(feature, **repeat)) for repeat in repeats]
    if is_under_way:
        node.driver.release()
    receipt, size_bytes = await first, node.log.store.log.max_position
    for other in others:
        with pytest.raises(SequenceReusedError, match="send these under an id"):
            await other
    for repeated in same:
        answer = await repeated
        assert (answer.is_duplicate, answer.position) == (True, receipt.position)
    assert node.log.store.log.max_position == size_bytes
    assert node.broker.produce.duplicates_total == len(repeats)


def call(feature: str, change: dict[str, Any]) -> Any:
    """What the feature asks of messages that are always the same, with a change of it."""
    if feature == "given back":
        how: dict[str, Any] = {"topic": "orders", "offset": 0, "delay_ms": 9, "is_dead": False}
        more: dict[str, Any] = {
            "group": "g",
            "attempt_count_max": 7,
            "stored": 1,
            "producer_id": 7,
        } | change
        how |= {name: more.pop(name) for name in how.keys() & more.keys()}
        stored = GroupOffset(topic="orders", queue_id=0, offset=more.pop("stored"))
        given = [RetryMessage(**how), RetryMessage(topic="orders", offset=1)]
        return RetryLaterRequest(messages=given, offsets=[stored], **more)
    request = batch("plain", properties={fmt.PROPERTY_DELAY_MS: change.get("delay", "50")})
    request.has_delayed = feature == "delayed"
    if feature == "half":
        half: dict[str, Any] = {"producer_group": "p", "check_after_ms": 9_000} | change
        request.transaction.CopyFrom(HalfMessages(**half))
    if feature == "consumed":
        rows = change.get("rows", (("orders", 0, 1), ("orders", 1, 0)))
        offsets = [ConsumedOffset(topic=t, queue_id=q, expected=-1, offset=o) for t, q, o in rows]
        consumed = ConsumedOffsets(group=change.get("group", "g"), offsets=offsets)
        request.consumed.CopyFrom(consumed)
    return request


ASKED: dict[str, list[dict[str, Any]]] = {
    "plain": [],
    "delayed": [{"delay": "60"}],
    "half": [{"producer_group": "q"}, {"check_after_ms": 8_000}],
    "consumed": [
        {"group": "h"},
        {"rows": [("orders", 0, 2), ("orders", 1, 0)]},
        {"rows": [("orders", 0, 1), ("bills", 1, 0)]},
        {"rows": [("orders", 0, 1)]},
    ],
    "given back": [
        {"delay_ms": 8},
        {"is_dead": True},
        {"offset": 2},
        {"stored": 2},
        {"group": "h"},
        {"attempt_count_max": 6},
    ],
}


def begun(node: Fixture, feature: str, change: dict[str, Any]) -> "asyncio.Future[Any]":
    request = call(feature, change)
    if isinstance(request, RetryLaterRequest):
        return asyncio.ensure_future(node.broker.retry.retry_later(request))
    return node.broker.append_nowait(request)


@pytest.mark.parametrize("feature", ASKED)
@pytest.mark.parametrize("moment", ["under way", "decided", "restarted"])
async def test_a_call_that_asks_another_thing_under_a_used_number_is_refused(
    tmp_path: Path, feature: str, moment: str
) -> None:
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(node_at(tmp_path, topics={"orders": 2, "bills": 2}))
        await node.append(0, 4)
        if feature == "given back":  # The group and its topics are there from now on.
            await begun(node, feature, {"producer_id": 0})
        node.driver.is_holding = moment == "under way"
        first = begun(node, feature, {})
        await eventually(lambda: node.driver.pending or first.done(), "it is written")
        if moment == "restarted":
            answer = await first
            await stack.aclose()
            node = await stack.enter_async_context(node_at(tmp_path, topics={}))
        elif moment == "decided":
            answer = await first
        changes = [(feature, change) for change in ASKED[feature]]
        changes += [(name, {}) for name in ASKED if name != feature]
        others, same = [begun(node, *one) for one in changes], begun(node, feature, {})
        await asyncio.sleep(0)
        if moment == "under way":
            node.driver.release()
            answer = await first
        size_bytes = node.log.store.log.max_position
        for one, other in zip(changes, others, strict=True):
            with pytest.raises(SequenceReusedError, match="other offsets or delays"):
                pytest.fail(f"{one}: {await other}")
        repeated = await same
        assert (repeated.is_duplicate, repeated.index) == (True, answer.index)
        assert node.log.store.log.max_position == size_bytes


async def fill(node: Fixture) -> None:
    node.driver.is_holding = True
    for producer_id in (0, 8, 9):
        node.broker.append_nowait(request(0, 1, producer_id=producer_id)).add_done_callback(noted)


async def delete(node: Fixture) -> None:
    for topic in ("orders", "bills"):
        await node.delete_topic(topic)


async def be_popped(node: Fixture) -> None:
    node.broker.group_members.receive("g", Consumer("c"), "orders", "", 60_000)


async def drain(node: Fixture) -> None:
    node.broker.produce.is_draining = True


TIGHT = replace(Limits(), in_flight_count_max=1, parked_append_count_max=2, delay_ms_max=100)


@pytest.mark.parametrize("feature", ASKED)
@pytest.mark.parametrize("change", [delete, be_popped, drain, fill])
@node_with(limits=replace(TIGHT, delayed_count_max=2), topics={"orders": 2, "bills": 2})
async def test_a_stored_batch_is_answered_whatever_the_state_says_of_a_new_one(
    node: Fixture, feature: str, change: Callable[[Fixture], Awaitable[None]]
) -> None:
    """What refuses a new batch for the state of now comes after the question for its number."""
    await node.append(0, 4)
    first = await begun(node, feature, {})
    await change(node)
    again = await begun(node, feature, {})
    assert (again.is_duplicate, again.index) == (True, first.index)


@node_with(limits=TIGHT)
async def test_a_stored_delay_is_not_too_long_after_the_clock_went_back(node: Fixture) -> None:
    due = {fmt.PROPERTY_DELIVER_MS: str(node.clock.now_ms + 90)}
    append = batch("plain", properties=due)
    append.has_delayed = True
    await node.broker.append(append)
    node.clock.now_ms -= 50
    assert (await node.broker.append(append)).is_duplicate
    append.sequence = 1
    with pytest.raises(DelayTooLongError):
        await node.broker.append(append)


@pytest.mark.parametrize("feature", ASKED)
@pytest.mark.parametrize("is_given_up", [False, True])
@node_with(limits=TIGHT, topics={"orders": 2, "bills": 2})
async def test_a_repeat_of_a_parked_batch_gets_what_becomes_of_it(
    node: Fixture, feature: str, is_given_up: bool
) -> None:
    """Not a refusal for what came meanwhile; also if its first caller has gone."""
    await node.append(0, 4)
    if feature == "given back":  # The group and its topics are there from now on.
        await begun(node, feature, {"producer_id": 0})
    node.driver.is_holding = True
    other = node.broker.append_nowait(request(0, 1, producer_id=8))
    first = begun(node, feature, {})
    await eventually(lambda: len(node.broker.produce.parked) == 1, "it waits for room")
    last = node.broker.append_nowait(request(0, 1, producer_id=9))
    await be_popped(node)
    again = begun(node, feature, {})
    await asyncio.sleep(0)
    if is_given_up:
        first.cancel()
    node.driver.release()
    answer = await again
    assert (await other).index < answer.index < (await last).index
    assert is_given_up or (await first).index == answer.index
