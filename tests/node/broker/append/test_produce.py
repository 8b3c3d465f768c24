"""Appends through the broker: receipts, refusals, bounds and what each caller is told."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.broker.append.attached import AttachedCommands
from node.config.limits import Limits
from node.errors import common as errors
from node.errors.common import NodeError
from node.errors.translation import describe
from node.state.command_records import CommandEncoder
from node.state.state import COMMAND_TOPIC
from quorumlog.pb import common_pb2
from quorumlog.pb.common_pb2 import QueueId
from quorumlog.pb.log_pb2 import AppendRequest, PullRequest, QueueOffsetsRequest
from quorumlog.pb.transaction_pb2 import ConsumedOffset, ConsumedOffsets, HalfMessages
from raft import errors as raft_errors
from store.errors import LimitExceededError, Outcome, StoreFullError
from store.record.message import encode_message, message_id
from tests.node.broker_fakes import Fixture, node_at, node_with, request
from tests.node.commands import producer_batch
from tests.store.records import batch, messages, numbers, record


async def refused(
    node: Fixture, asked: AppendRequest, kind: type[Exception] = NodeError
) -> Exception:
    """Send a batch that must be refused and leave no trace."""
    before = node.log.last_index
    with pytest.raises(kind) as caught:
        await node.broker.append(asked)
    assert node.log.last_index == before
    assert describe(caught.value).outcome is Outcome.NOT_APPLIED
    return caught.value


async def stored(node: Fixture, queue_id: int = 0) -> list[int]:
    """The numbers of the messages that a reader sees."""
    response = await node.broker.pull(
        PullRequest(topic="orders", queue_id=queue_id, max_count=10_000, max_size_bytes=1 << 21)
    )
    return numbers(response.records)


# --- Receipts ---


@pytest.mark.parametrize("producer_id", [0, 7])
async def test_a_receipt_says_where_the_messages_are(node: Fixture, producer_id: int) -> None:
    await node.append(0, 2)
    both = record(2, queue_id=1) + batch(3, 5)
    receipt = await node.broker.append(
        AppendRequest(records=both, record_count=3, producer_id=producer_id)
    )
    assert receipt.index == node.log.last_index
    assert (receipt.term, receipt.record_count, receipt.is_duplicate) == (1, 3, False)
    assert receipt.durability == common_pb2.DURABILITY_QUORUM_MEMORY
    assert list(receipt.synced_by) == [1, 2]
    assert receipt.commit_us == 7
    ranges = {(q.topic, q.queue_id): (q.first_offset, q.count) for q in receipt.queues}
    assert ranges == {("orders", 1): (0, 1), ("orders", 0): (2, 2)}
    position = receipt.position
    for message in messages(both):
        stored_record = node.log.store.reads.message_at(position)
        assert stored_record.body == message.body
        assert stored_record.store_unix_ms == receipt.store_unix_ms
        host = "127.0.0.1", 0
        assert stored_record.message_id == message_id(host, position)
        position += message.size_bytes


async def test_receipts_of_one_turn_come_together_and_in_order(node: Fixture) -> None:
    futures = [node.broker.append_nowait(request(n, n + 1)) for n in range(20)]
    indexes = [(await future).index for future in futures]
    assert indexes == list(range(indexes[0], indexes[0] + 20))
    assert await stored(node) == list(range(20))
    produce = node.broker.produce
    assert produce.records_total == 20
    assert (produce.in_flight_count, produce.in_flight_size_bytes) == (0, 0)


async def test_records_beside_the_request_are_those_of_the_batch(node: Fixture) -> None:
    records = batch(0, 2)
    append = AppendRequest(record_count=2, producer_id=7)
    receipt = await node.broker.append_nowait(append, records)
    assert (receipt.record_count, receipt.is_duplicate) == (2, False)
    again = await node.broker.append_nowait(append, records)
    assert (again.position, again.is_duplicate) == (receipt.position, True)
    features = [
        AppendRequest(record_count=1, has_delayed=True),
        AppendRequest(record_count=1, transaction=HalfMessages(producer_group="pairs")),
        AppendRequest(
            record_count=1,
            consumed=ConsumedOffsets(
                group="pairs", offsets=[ConsumedOffset(topic="orders", expected=-1, offset=1)]
            ),
        ),
    ]
    for number, append in enumerate(features, 2):
        await node.broker.append_nowait(append, record(number))
    assert await stored(node) == [0, 1, 2, 4], "the half message is not for readers"
    with pytest.raises(errors.BadRequestError):
        await node.broker.append_nowait(AppendRequest(records=records, record_count=2), b"")


# --- Refusals ---


async def test_a_batch_is_refused_before_anything_is_written(node: Fixture) -> None:
    command = CommandEncoder(("127.0.0.1", 0)).encode(producer_batch(9, 0))
    cases = [
        (request(0, 1, cluster_id="other"), "node.wrong_cluster"),
        (request(0, 1, topic="nobody"), "node.unknown_topic"),
        (request(0, 1, queue_id=4), "node.unknown_queue"),
        (request(0, 1, topic=COMMAND_TOPIC), "node.reserved_topic"),
        (AppendRequest(records=command, record_count=1), "node.reserved_topic"),
        (AppendRequest(records=command, record_count=1, producer_id=4), "node.reserved_topic"),
        (request(0, 1, topic="TBW102"), "node.reserved_topic"),
        (request(0, 2, record_count=3), "node.bad_request"),
        (request(0, 2, record_count=3, producer_id=4), "node.bad_request"),
        (AppendRequest(), "node.bad_request"),
        (AppendRequest(records=b"garbage" * 20, record_count=1), "store.record_format"),
        (AppendRequest(records=record(0)[:-1], record_count=1), "store.record_format"),
        (request(0, 1, size_bytes=20_000), "store.limit_exceeded"),
        (
            AppendRequest(records=encode_message("orders", 0, b"x", sys_flag=4), record_count=1),
            "node.bad_request",
        ),
        (request(0, 1, producer_id=4, sequence=1), "node.out_of_sequence"),
    ]
    for asked, code in cases:
        error = await refused(node, asked, Exception)
        assert describe(error).code == code, f"{asked!r}: {error}"
    assert (await node.append(0, 1, cluster_id="cluster")).record_count == 1
    assert node.broker.produce.failed_total == len(cases)


async def test_a_full_disk_is_told_as_it_is(node: Fixture) -> None:
    node.driver.failure = StoreFullError("log", 100, 1)
    assert describe(await refused(node, request(0, 1), StoreFullError)).code == "store.full"
    await node.append(0, 1, producer_id=5, sequence=0)
    node.driver.failure = StoreFullError("log", 100, 1)
    await refused(node, request(1, 2, producer_id=5, sequence=1), StoreFullError)
    error = await refused(node, request(2, 3, producer_id=5, sequence=2))
    assert isinstance(error, errors.OutOfSequenceError), "the one before was not written"
    assert error.expected == 1


async def test_permissions_and_deleted_topics_are_heeded(node: Fixture) -> None:
    await node.append(0, 1)
    await node.create_topic("orders", permission=4)
    assert type(await refused(node, request(1, 2))) is errors.TopicNotWritableError
    await node.delete_topic("orders")
    assert type(await refused(node, request(1, 2))) is errors.UnknownTopicError
    await node.create_topic("orders", queue_count=1)
    again = await node.append(1, 2)
    assert again.queues[0].first_offset == 1, "offsets go on: they name one message"
    offsets = await node.broker.queries.queue_offsets(
        QueueOffsetsRequest(queues=[QueueId(topic="orders", queue_id=0)])
    )
    assert offsets.queues[0].max_offset == 2


async def test_a_state_that_was_replaced_is_asked_again(node: Fixture) -> None:
    """Another history may have as many changes of topics, and other topics."""
    await node.append(0, 1)
    node.machine.go_back(node.machine.image()._replace(topics={}))
    assert type(await refused(node, request(1, 2))) is errors.UnknownTopicError


async def test_the_largest_batch_is_taken_and_commands_have_their_own_limit(node: Fixture) -> None:
    """Only records that were stored before may be larger than those of clients; commands are in
    the entry only."""
    produce = node.broker.produce
    limit = produce.batch_size_bytes_max
    own_limit = produce.own_size_bytes_max
    assert limit < own_limit
    overhead = len(record(0)) - 40
    fits = request(0, 1, size_bytes=limit - overhead, producer_id=1)
    assert len(fits.records) == limit
    too_large = request(0, 1, size_bytes=limit - overhead + 1)
    for append, attached, limit_bytes in (
        (fits, AttachedCommands(bytes(own_limit - limit + 1), 1), own_limit),
        (too_large, AttachedCommands(), limit),
    ):
        with pytest.raises(LimitExceededError) as caught:
            await produce.append(append, attached)
        assert (caught.value.what, caught.value.limit_bytes) == ("batch", limit_bytes)
    assert (await node.broker.append(fits)).record_count == 1
    moved = await produce.append(too_large, AttachedCommands(moves_stored=True))
    assert moved.record_count == 1


# --- Who may answer ---


async def test_only_a_leader_that_knows_its_past_takes_appends(node: Fixture) -> None:
    node.driver.lose(2)
    error = await refused(node, request(0, 1))
    assert isinstance(error, errors.NotLeaderError)
    assert (error.leader_id, error.leader_address) == (2, "host2:8082")
    node.driver.lose(0)
    error = await refused(node, request(0, 1))
    assert isinstance(error, errors.NotLeaderError)
    assert (error.leader_id, error.leader_address) == (0, "")
    assert error.retry_after_ms > 0
    node.driver.lead(is_ready=False)
    error = await refused(node, request(0, 1))
    assert isinstance(error, errors.NotReadyError)
    assert error.leader_address == "host1:8081"
    node.driver.get_ready()
    assert (await node.append(0, 1)).term == node.driver.term


async def test_errors_of_the_driver_get_an_address(node: Fixture) -> None:
    node.driver.failure = raft_errors.TransferringError(2)
    error = await refused(node, request(0, 1), errors.TransferringError)
    assert describe(error).leader_address == "host2:8082"
    await node.broker.put_member(2, "elsewhere:1", "elsewhere:2")
    node.driver.failure = raft_errors.NotLeaderError(2)
    error = await refused(node, request(0, 1), errors.NotLeaderError)
    assert describe(error).leader_address == "elsewhere:1", "replicated ones count more"


async def test_a_draining_node_takes_no_appends_and_a_stopped_one_nothing(node: Fixture) -> None:
    node.broker.produce.is_draining = True
    error = await refused(node, request(0, 1))
    assert isinstance(error, errors.DrainingError)
    assert error.leader_id == 1
    node.broker.produce.is_draining = False
    await node.append(0, 1)
    node.broker.stop()
    assert type(await refused(node, request(1, 2))) is errors.ShuttingDownError
    with pytest.raises(errors.ShuttingDownError):
        await stored(node)


# --- Time-outs and lost leadership ---


async def test_a_batch_goes_its_way_when_its_caller_gave_up_or_went(node: Fixture) -> None:
    node.driver.is_holding = True
    with pytest.raises(errors.AppendTimeoutError) as caught:
        await node.append(0, 1, timeout_ms=5)
    assert describe(caught.value).outcome is Outcome.UNKNOWN
    call = asyncio.create_task(node.append(1, 2))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert node.broker.produce.in_flight_count == 2, "both still are under way"
    node.driver.release()
    await asyncio.sleep(0)
    assert await stored(node) == [0, 1]
    produce = node.broker.produce
    assert (produce.in_flight_count, produce.timeouts_total) == (0, 1)


async def test_a_decided_batch_leaves_no_timer(
    node: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would count the batch among those whose time was over."""
    loop, timers = asyncio.get_running_loop(), list[asyncio.TimerHandle]()
    call_later = loop.call_later

    def noted(*args: Any) -> asyncio.TimerHandle:
        timers.append(call_later(*args))
        return timers[-1]

    monkeypatch.setattr(loop, "call_later", noted)
    node.driver.is_holding = True
    decided = node.broker.append_nowait(request(0, 1))
    assert [timer.cancelled() for timer in timers] == [False]
    node.driver.release()
    assert (await decided).record_count == 1
    assert [timer.cancelled() for timer in timers] == [True]


# --- Bounds ---

TIGHT = replace(Limits(), in_flight_count_max=2, parked_append_count_max=3)


@node_with(limits=TIGHT)
async def test_above_the_bound_appends_wait_in_order(node: Fixture) -> None:
    node.driver.is_holding = True
    futures = [node.broker.append_nowait(request(n, n + 1)) for n in range(5)]
    produce = node.broker.produce
    assert (produce.in_flight_count, len(produce.parked)) == (2, 3)
    assert produce.parked_bytes.used == 3 * len(record(0))
    error = await refused(node, request(9, 10))
    assert isinstance(error, errors.BusyError)
    assert (error.what, error.held, error.limit) == ("waiting appends", 3, 3)
    node.driver.release()
    await asyncio.gather(*futures)
    assert await stored(node) == [0, 1, 2, 3, 4]
    produce = node.broker.produce
    assert (len(produce.parked), produce.parked_bytes.used) == (0, 0)


@node_with(limits=replace(Limits(), in_flight_size_bytes_max=10))
async def test_a_batch_larger_than_the_bound_goes_when_nothing_else_is_under_way(
    node: Fixture,
) -> None:
    node.driver.is_holding = True
    futures = [node.broker.append_nowait(request(n, n + 1)) for n in range(3)]
    assert len(node.broker.produce.parked) == 2
    node.driver.release()
    await asyncio.gather(*futures)
    assert await stored(node) == [0, 1, 2]


@pytest.mark.parametrize("name", ["in_flight_size_bytes_max", "parked_append_size_bytes_max"])
async def test_bytes_are_bounded_too(tmp_path: Path, name: str) -> None:
    size_bytes = len(record(0))
    usual = {"in_flight_size_bytes_max": size_bytes, "parked_append_size_bytes_max": size_bytes}
    limits = replace(Limits(), **{**usual, name: 2 * size_bytes})

    async with node_at(tmp_path, limits=limits) as node:
        node.driver.is_holding = True
        futures = [node.broker.append_nowait(request(n, n + 1)) for n in range(3)]
        produce = node.broker.produce
        assert produce.in_flight_count + len(produce.parked) == 3
        error = await refused(node, request(9, 10))
        assert isinstance(error, errors.BusyError)
        assert error.what == "bytes of waiting appends"
        node.driver.release()
        await asyncio.gather(*futures)
        assert node.broker.produce.busy_total == 1


@node_with(limits=TIGHT)
async def test_appends_that_gave_up_leave_nothing_parked(node: Fixture) -> None:
    node.driver.is_holding = True
    first = [node.broker.append_nowait(request(n, n + 1)) for n in range(2)]
    last = node.broker.append_nowait(request(2, 3))
    for n in range(10):
        given_up = [node.append(n, n + 1, timeout_ms=1) for _ in range(2)]
        outcomes = await asyncio.gather(*given_up, return_exceptions=True)
        assert all(isinstance(error, errors.BusyError) for error in outcomes)
    produce = node.broker.produce
    assert len(produce.parked) == 1
    assert produce.parked_bytes.used == len(record(2))
    node.broker.append_nowait(request(3, 4)).cancel()
    node.driver.release()
    await asyncio.gather(*first, last)
    assert await stored(node) == [0, 1, 2]
    assert (len(produce.parked), produce.parked_bytes.used) == (0, 0)


@node_with(limits=TIGHT)
async def test_a_parked_append_learns_that_another_node_leads(node: Fixture) -> None:
    node.driver.is_holding = True
    futures = [node.broker.append_nowait(request(n, n + 1)) for n in range(4)]
    node.driver.lose()
    produce = node.broker.produce
    assert (len(produce.parked), produce.parked_bytes.used) == (0, 0)
    node.driver.decide(0)
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(error) for error in outcomes] == (
        [errors.NotAppliedError] * 2 + [errors.NotLeaderError] * 2
    )


async def test_a_log_full_of_undecided_entries_makes_callers_wait(node: Fixture) -> None:
    node.driver.failure = raft_errors.BusyError("entries", 1, 1)
    error = await refused(node, request(0, 1))
    assert isinstance(error, errors.BusyError), "nothing under way: nobody to wait for"
    node.driver.is_holding = True
    first = node.broker.append_nowait(request(1, 2))
    node.driver.failure = raft_errors.BusyError("entries", 1, 1)
    second = node.broker.append_nowait(request(2, 3))
    assert len(node.broker.produce.parked) == 1
    node.driver.release()
    await asyncio.gather(first, second)
    assert await stored(node) == [1, 2]


async def test_a_small_batch_does_not_overtake_a_large_one_that_waits_for_room(
    tmp_path: Path,
) -> None:
    limits = replace(Limits(), in_flight_size_bytes_max=2 * len(record(0)))

    async with node_at(tmp_path, limits=limits) as node:
        node.driver.is_holding = True
        requests = [request(0, 1), request(1, 3), request(3, 4)]
        futures = [node.broker.append_nowait(one) for one in requests]
        produce = node.broker.produce
        assert (produce.in_flight_count, len(produce.parked)) == (1, 2)
        node.driver.release()
        await asyncio.gather(*futures)
        assert await stored(node) == [0, 1, 2, 3]
