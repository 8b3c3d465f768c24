"""A refused batch: its error names all records with the fault, so that the others can go again."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from node.broker.append.faulty_records import LOOKED_AT_MAX, OF_THE_BATCH, faulty_records
from node.config.limits import Limits
from node.errors.common import BadRequestError, NodeError
from node.errors.translation import describe, to_pb
from quorumlog.pb.log_pb2 import AppendRequest, PullRequest
from store.errors import LimitExceededError, Outcome, RecordFormatError, StoreError
from tests.node.broker_fakes import Fixture, node_with
from tests.node.delayed import delayed, request_of
from tests.store.records import batch, numbers, record

TOO_LONG = Limits().delay_ms_max + 1


def damaged(number: int) -> bytes:
    """A record whose body has another checksum than it says."""
    data = bytearray(record(number))
    data[data.index(b"." * 8)] = ord("!")
    return bytes(data)


def some_damaged(count: int, is_bad: Callable[[int], bool]) -> bytes:
    return b"".join(damaged(n) if is_bad(n) else record(n) for n in range(count))


async def refusal(node: Fixture, asked: AppendRequest, code: str) -> tuple[int, ...]:
    """Send a batch that must be refused and leave no trace; return the records that are named."""
    before = node.log.last_index
    with pytest.raises((NodeError, StoreError)) as caught:
        await node.broker.append(asked)
    assert node.log.last_index == before
    assert (describe(caught.value).code, describe(caught.value).outcome) == (
        code,
        Outcome.NOT_APPLIED,
    )
    sent = to_pb(caught.value)
    assert tuple(sent.faulty_records) == describe(caught.value).faulty_records
    return tuple(sent.faulty_records)


@pytest.mark.parametrize("producer_id", [0, 7])
async def test_all_faulty_records_are_named_and_the_rest_is_taken_under_the_same_name(
    node: Fixture, producer_id: int
) -> None:
    data = some_damaged(12, lambda n: n in (0, 5, 11))
    request = AppendRequest(records=data, record_count=12, producer_id=producer_id)
    assert await refusal(node, request, "store.record_format") == (0, 5, 11)
    good = batch(1, 5) + batch(6, 11)
    rest = AppendRequest(records=good, record_count=9, producer_id=producer_id)
    receipt = await node.broker.append(rest)
    assert (receipt.record_count, receipt.is_duplicate) == (9, False)
    response = await node.broker.pull(PullRequest(topic="orders", queue_id=0, max_count=20))
    assert numbers(response.records) == [1, 2, 3, 4, 6, 7, 8, 9, 10]


@node_with(body_size_bytes_max=100)
async def test_records_with_another_fault_are_not_named(node: Fixture) -> None:
    large = record(2, size_bytes=101)
    data = record(0) + damaged(1) + large + damaged(3) + large
    request = AppendRequest(records=data, record_count=5)
    assert await refusal(node, request, "store.record_format") == (1, 3)
    request = AppendRequest(records=record(0) + large + record(3) + large, record_count=4)
    assert await refusal(node, request, "store.limit_exceeded") == (1, 3)


@node_with(file_size_bytes=1 << 20)
async def test_the_records_that_are_looked_at_are_limited(node: Fixture) -> None:
    count = LOOKED_AT_MAX + 20
    request = AppendRequest(records=some_damaged(count, lambda n: n > 2), record_count=count)
    named = await refusal(node, request, "store.record_format")
    assert named == tuple(range(3, LOOKED_AT_MAX))


async def test_records_behind_one_without_an_end_are_not_named(node: Fixture) -> None:
    cut = record(3)[:-1]
    request = AppendRequest(records=record(0) + damaged(1) + record(2) + cut, record_count=4)
    assert await refusal(node, request, "store.record_format") == (1, 3)
    endless = b"\x7f" * 200 + damaged(2)
    request = AppendRequest(records=record(0) + endless, record_count=3)
    assert await refusal(node, request, "store.record_format") == (1,)


async def test_a_fault_of_the_whole_batch_names_no_record(node: Fixture) -> None:
    request = AppendRequest(records=batch(0, 3), record_count=4)
    assert await refusal(node, request, "node.bad_request") == ()
    request = AppendRequest(records=record(0) + record(1, topic="none"), record_count=2)
    assert await refusal(node, request, "node.unknown_topic") == ()
    size_bytes = node.log.store.config.batch_size_bytes_max
    request = AppendRequest(records=batch(0, 2, size_bytes=size_bytes // 2), record_count=2)
    assert await refusal(node, request, "store.limit_exceeded") == ()


async def test_delays_that_are_too_long_are_all_named(node: Fixture) -> None:
    at = str(node.clock.now_ms + TOO_LONG)
    records = [
        delayed(0, DELAY="1"),
        delayed(1, TIMER_DELAY_MS=str(TOO_LONG)),
        delayed(2),
        delayed(3, TIMER_DELIVER_MS=at),
        delayed(4, TIMER_DELAY_MS="no number"),
        delayed(5, TIMER_DELAY_MS=str(10 * TOO_LONG)),
    ]
    assert await refusal(node, request_of(*records), "node.delay_too_long") == (1, 3, 5)
    rest = request_of(*(records[n] for n in (0, 2, 4)))
    assert await refusal(node, rest, "store.record_format") == (2,)
    receipt = await node.broker.append(request_of(records[0], records[2]))
    assert [due > 0 for due in receipt.due_unix_ms] == [True, False]


async def test_a_damaged_record_of_a_delayed_batch_is_named(node: Fixture) -> None:
    records = [damaged(0), delayed(1, DELAY="1"), damaged(2)]
    assert await refusal(node, request_of(*records), "store.record_format") == (0, 2)


@node_with(limits=replace(Limits(), in_flight_count_max=1))
async def test_a_parked_batch_is_refused_with_all_its_faulty_records(node: Fixture) -> None:
    node.driver.is_holding = True
    first = node.broker.append_nowait(AppendRequest(records=record(0), record_count=1))
    data = some_damaged(6, lambda n: n % 2 == 1)
    parked = node.broker.append_nowait(AppendRequest(records=data, record_count=6))
    assert len(node.broker.produce.parked) == 1
    node.driver.release()
    await first
    with pytest.raises(RecordFormatError) as caught:
        await parked
    assert caught.value.faulty_records == (1, 3, 5)


def test_a_check_that_fails_otherwise_names_nothing() -> None:
    def check(data: bytes) -> None:
        if data in (record(0), record(2)):
            raise BadRequestError("record", "another", "this one")

    data = batch(0, 3)
    error = BadRequestError("x", "y", "z")
    assert faulty_records(data, error, check) == (0, 2)
    assert faulty_records(data, LimitExceededError("x", 2, 1), check) == ()
    assert faulty_records(b"", error, check) == ()


@pytest.mark.parametrize("what", OF_THE_BATCH)
def test_a_batch_that_is_too_large_as_a_whole_has_no_faulty_record(what: str) -> None:
    """Records that break a limit of their own are none of its faults: without them it may be small
    enough, and its sender would be told that all others could go again."""

    def check(data: bytes) -> None:
        raise LimitExceededError("properties", len(data), 1)

    data = batch(0, 3)
    assert faulty_records(data, LimitExceededError(what, len(data), 1), check) == ()
    assert faulty_records(data, LimitExceededError("properties", 2, 1), check) == (0, 1, 2)
