"""Transactions over a real log: half messages, their end, check-back, and what is refused."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from node.config.limits import Limits
from node.errors.common import (
    BadRequestError,
    LimitReachedError,
    NotLeaderError,
    ReservedTopicError,
    TopicNotWritableError,
    UnknownQueueError,
    UnknownTopicError,
)
from node.errors.transactions import TransactionEndedError, UnknownTransactionError
from node.state.tables.transactions import TransactionsTable
from quorumlog.pb.log_pb2 import AppendRequest
from quorumlog.pb.transaction_pb2 import (
    TRANSACTION_OUTCOME_GIVEN_UP,
    CheckTransactionsRequest,
    ConsumedOffsets,
    DescribeTransactionRequest,
    DescribeTransactionResponse,
    EndTransactionResponse,
    HalfMessages,
    ListTransactionsRequest,
    TransactionCheck,
)
from store import format as fmt
from store.errors import LimitExceededError, PositionRangeError, RecordFormatError
from store.record.message import encode_message
from tests.node.broker_fakes import Fixture, expire_some, hidden, node_at, node_with
from tests.node.transaction_calls import (
    COMMITTED,
    GROUP,
    ROLLED_BACK,
    begun,
    ended,
    halves,
    part,
    producer,
    question,
    round_of,
    stored,
)
from tests.store.records import BORN, messages, numbers


async def described(node: Fixture, transaction_id: int) -> DescribeTransactionResponse:
    question = DescribeTransactionRequest(transaction_id=transaction_id)
    return await node.broker.transactions.describe_transaction(question)


def questions(node: Fixture, group: str) -> AsyncIterator[TransactionCheck]:
    request = CheckTransactionsRequest(producer_group=group)
    return node.broker.transactions.check_transactions(request)


async def test_half_messages_where_the_log_begins_are_still_there(node: Fixture) -> None:
    receipt = await node.broker.append(halves(1, 3))
    (transaction,) = node.machine.state.table(TransactionsTable).open.values()
    log, ends = node.broker.context.store.log, node.broker.transactions.ends
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(log), "min_position", receipt.position)
        assert len(ends.half_messages(transaction)) == transaction.size_bytes
        patch.setattr(type(log), "min_position", receipt.position + 1)
        with pytest.raises(PositionRangeError):
            ends.half_messages(transaction)


async def test_half_messages_are_seen_when_they_are_committed(node: Fixture) -> None:
    await node.append(0, 1)
    receipt = await node.broker.append(halves(1, 3, queue_id=2))
    assert (receipt.record_count, receipt.queues[0].topic) == (2, fmt.HALF_TOPIC)
    assert not await stored(node, queue_id=2)
    answer = await ended(node, receipt.position)
    assert answer == EndTransactionResponse(outcome=COMMITTED)
    records = await stored(node, queue_id=2)
    assert [message.body[:8] for message in records] == [b"00000001", b"00000002"]
    held = hidden(node, fmt.HALF_TOPIC)
    for seen, half in zip(records, held, strict=True):
        assert seen.sys_flag & fmt.SYS_FLAG_TRANSACTION_MASK == fmt.TRANSACTION_COMMIT
        assert seen.prepared_transaction_position == half.position
        assert BORN <= seen.born_unix_ms == half.born_unix_ms < BORN + 9
        assert seen.keys == half.keys
        assert seen.properties["PGROUP"] == GROUP
        assert not {"REAL_TOPIC", "REAL_QID"} & seen.properties.keys()
        assert seen.properties["TRAN_MSG"] == "true", "clients find the transaction by it"
        assert half.properties["TRAN_MSG"] == "true"
        assert (half.properties["REAL_TOPIC"], half.properties["REAL_QID"]) == ("orders", "2")
        assert half.sys_flag & fmt.SYS_FLAG_TRANSACTION_MASK == fmt.TRANSACTION_NONE
    marks = hidden(node, fmt.HALF_DONE_TOPIC)
    assert [(m.body, m.properties["TAGS"]) for m in marks] == [(b"0,1", "d")]
    assert not part(node).open


async def test_hosts_may_have_long_addresses(tmp_path: Path) -> None:
    host = ("::1", 8081)
    async with node_at(tmp_path / "n", store_host=host) as node:
        record = encode_message("orders", 1, b"x", {"K": "v"}, born_host=host, store_host=host)
        append = AppendRequest(records=record * 2, record_count=2)
        append.transaction.producer_group = GROUP
        await ended(node, (await node.broker.append(append)).position)
        records = await stored(node, queue_id=1)
        assert [(m.body, m.born_host, m.store_host) for m in records] == [(b"x", host, host)] * 2
        assert records[0].prepared_transaction_position < records[1].prepared_transaction_position


async def test_two_who_end_agree(node: Fixture) -> None:
    transaction_id = await begun(node, 0, 1)
    calls = [ended(node, transaction_id) for _ in range(3)]
    calls.append(ended(node, transaction_id, ROLLED_BACK))
    *same, other = await asyncio.gather(*calls, return_exceptions=True)
    assert [getattr(answer, "was_ended", None) for answer in same] == [False, True, True]
    assert isinstance(other, TransactionEndedError)
    assert (await ended(node, transaction_id)).was_ended
    with pytest.raises(TransactionEndedError, match="was committed before"):
        await ended(node, transaction_id, ROLLED_BACK)
    assert len(await stored(node)) == 1


async def test_a_caller_that_goes_does_not_leave_it_half_ended(node: Fixture) -> None:
    transaction_id = await begun(node, 0, 1)
    call = await node.written(ended(node, transaction_id))
    call.cancel()
    later = asyncio.ensure_future(ended(node, transaction_id))
    await asyncio.sleep(0)
    node.driver.release()
    assert (await later).was_ended
    assert len(await stored(node)) == 1


@node_with(limits=Limits(open_transaction_count_max=2), topics={"orders": 4})
async def test_an_uncommittable_transaction_is_refused_at_its_begin(node: Fixture) -> None:
    await node.create_topic("archive", queue_count=1, permission=4)
    refused: list[tuple[type[Exception], AppendRequest]] = [
        (UnknownTopicError, halves(0, 1, topic="nowhere")),
        (ReservedTopicError, halves(0, 1, topic=fmt.HALF_TOPIC)),
        (ReservedTopicError, halves(0, 1, topic="rmq_sys_quorumlog")),
        (TopicNotWritableError, halves(0, 1, topic="archive")),
        (UnknownQueueError, halves(0, 1, queue_id=9)),
        (BadRequestError, halves(0, 1, group="")),
        (BadRequestError, halves(0, 1, group="a b")),
        (BadRequestError, halves(0, 1, after_ms=86_400_001)),
        (BadRequestError, halves(0, 1, record_count=2)),
        (BadRequestError, AppendRequest(transaction=HalfMessages(producer_group=GROUP))),
        (
            RecordFormatError,
            AppendRequest(records=b"x" * 99, transaction=HalfMessages(producer_group="g")),
        ),
    ]
    with_delay, with_offsets = halves(0, 1), halves(0, 1)
    with_delay.has_delayed = True
    with_offsets.consumed.CopyFrom(ConsumedOffsets(group="g"))
    refused += [(BadRequestError, with_delay), (BadRequestError, with_offsets)]
    for kind, asked in refused:
        with pytest.raises(kind):
            await node.broker.append(asked)
    assert node.machine.state.refused_count == 0
    await begun(node, 0, 1)
    node.driver.is_holding = True
    second = node.broker.append_nowait(halves(1, 2))
    with pytest.raises(LimitReachedError, match="open transactions"):
        await node.broker.append(halves(2, 3))
    node.driver.release()
    await ended(node, (await second).position)
    await begun(node, 3, 4)


async def test_a_transaction_that_could_not_end_in_one_entry_is_not_begun(node: Fixture) -> None:
    limit = node.broker.produce.batch_size_bytes_max
    least = len(halves(0, 1).records)
    room = encode_message("orders", 0, b"x" * (limit - least - 800), {"KEYS": "k"})
    half: dict[str, Any] = {
        "record_count": 1,
        "transaction": HalfMessages(producer_group=GROUP),
    }
    transaction_id = (await node.broker.append(AppendRequest(records=room, **half))).position
    node.clock.now_ms += 2 * 86_400_000
    await round_of(node)  # Too old: the largest of the entries that end one.
    assert part(node).ended == {transaction_id: TRANSACTION_OUTCOME_GIVEN_UP}
    large = encode_message("orders", 0, b"x" * (limit - least), {"KEYS": "k"})
    with pytest.raises(LimitExceededError, match="transaction"):
        await node.broker.append(AppendRequest(records=large, **half))


async def test_a_wrong_end_of_a_transaction_is_refused(node: Fixture) -> None:
    transaction_id = await begun(node, 0, 1)
    with pytest.raises(UnknownTransactionError, match="7"):
        await ended(node, 7)
    with pytest.raises(UnknownTransactionError):
        await ended(node, transaction_id, group="others")
    with pytest.raises(BadRequestError, match="outcome"):
        await ended(node, transaction_id, TRANSACTION_OUTCOME_GIVEN_UP)
    with pytest.raises(UnknownTransactionError):
        await described(node, 7)
    with pytest.raises(BadRequestError, match="producer_group"):
        await anext(questions(node, ""))
    await ended(node, transaction_id, group="")  # An operator.
    node.driver.lose()
    for call in (
        ended(node, transaction_id),
        node.broker.append(halves(1, 2)),
        node.broker.transactions.list_transactions(ListTransactionsRequest()),
        described(node, 7),
        anext(questions(node, "g")),
    ):
        with pytest.raises(NotLeaderError):
            await call


async def test_a_deleted_topic_leaves_a_transaction_open(node: Fixture) -> None:
    transaction_id = await begun(node, 0, 1)
    await node.delete_topic("orders")
    with pytest.raises(UnknownTopicError):
        await ended(node, transaction_id)
    await node.create_topic("orders", queue_count=1)
    await ended(node, transaction_id)
    assert len(await stored(node)) == 1


async def test_a_producer_is_asked_until_it_answers(node: Fixture) -> None:
    transaction_id = await begun(node, 4, 6)
    async with producer(node) as stream:
        check = asyncio.ensure_future(question(stream))
        await round_of(node, 5_999)
        assert part(node).open[transaction_id].check_count == 0, "not yet"
        await round_of(node, 1)
        first = await check
        assert (first.transaction_id, first.check_count) == (transaction_id, 1)
        assert numbers(first.records) == [4, 5]
        assert {m.topic for m in messages(first.records)} == {"orders"}
        await round_of(node, 30_000)
        assert (await question(stream)).check_count == 2
        await ended(node, transaction_id)
        await round_of(node, 30_000)
    assert node.broker.transactions.checks.checks_total == 2


async def test_questions_go_round_the_producers_of_a_group(node: Fixture) -> None:
    for number in range(4):
        await begun(node, number, number + 1)
    async with producer(node) as one, producer(node) as two, producer(node, "other"):
        waiting = [asyncio.ensure_future(question(stream)) for stream in (one, two)]
        await round_of(node, 6_000)
        firsts = {(await asked).transaction_id for asked in waiting}
        seconds = {(await question(stream)).transaction_id for stream in (one, two)}
        assert len(firsts | seconds) == 4


async def test_orphans_are_kept_shown_and_asked_about_when_a_producer_comes(node: Fixture) -> None:
    transaction_id = await begun(node, 0, 1)
    await begun(node, 1, 2, group="others")
    await round_of(node, 3_600_000)
    listed = await node.broker.transactions.list_transactions(
        ListTransactionsRequest(producer_group=GROUP)
    )
    assert listed.open_count == 1
    (info,) = listed.transactions
    assert (info.is_orphaned, info.check_count, info.record_count) == (True, 0, 1)
    async with producer(node) as stream:
        check = asyncio.ensure_future(question(stream))
        await asyncio.sleep(0)
        listed = await node.broker.transactions.list_transactions(ListTransactionsRequest())
        assert [info.is_orphaned for info in listed.transactions] == [False, True]
        assert listed.open_count == 2
        assert (await check).transaction_id == transaction_id


@node_with(limits=Limits(transaction_check_count_max=2))
async def test_after_the_last_question_a_transaction_is_given_up(node: Fixture) -> None:
    transaction_id = await begun(node, 3, 4)
    async with producer(node) as stream:
        check = asyncio.ensure_future(question(stream))
        await round_of(node, 6_000)
        await check
        await round_of(node, 30_000)
        await question(stream)
        await round_of(node, 30_000)
    assert part(node).ended == {transaction_id: TRANSACTION_OUTCOME_GIVEN_UP}
    kept = await stored(node, fmt.HALF_GIVEN_UP_TOPIC)
    assert [m.body[:8] for m in kept] == [b"00000003"]
    assert kept[0].properties["REAL_TOPIC"] == "orders"
    with pytest.raises(TransactionEndedError, match="given up"):
        await ended(node, transaction_id)
    assert not await stored(node)
    assert (await described(node, transaction_id)).outcome == TRANSACTION_OUTCOME_GIVEN_UP


@pytest.mark.parametrize(("retention_ms", "age_ms"), [(100_000, 50_000), (0, 86_400_000)])
async def test_an_old_transaction_is_given_up_before_its_messages_expire(
    tmp_path: Path, retention_ms: int, age_ms: int
) -> None:
    async with node_at(tmp_path / "n", retention_ms=retention_ms) as node:
        transaction_id = await begun(node, 0, 1)
        await round_of(node, age_ms - 1)
        assert transaction_id in part(node).open
        await round_of(node, 1)
        assert part(node).ended == {transaction_id: TRANSACTION_OUTCOME_GIVEN_UP}
        assert len(await stored(node, fmt.HALF_GIVEN_UP_TOPIC)) == 1


@node_with(retention_size_bytes=40_000)
async def test_a_transaction_far_back_in_a_small_log_is_given_up(node: Fixture) -> None:
    await begun(node, 0, 1)
    while node.log.store.log.max_position < 24_000:
        await round_of(node)
        assert part(node).open or node.log.store.log.max_position > 20_000
        await node.append(0, 10)
    await round_of(node)
    assert not part(node).open


async def test_half_messages_that_were_deleted_end_by_name(node: Fixture) -> None:
    transaction_id = await begun(node, 0, 1)
    await expire_some(node)
    with pytest.raises(TransactionEndedError, match="expired"):
        await described(node, transaction_id)
    for _ in range(2):
        with pytest.raises(TransactionEndedError, match="expired"):
            await ended(node, transaction_id)
    assert not part(node).open
    await begun(node, 1, 2)


async def test_a_new_leader_goes_on_with_what_is_open(tmp_path: Path) -> None:
    async with node_at(tmp_path / "n") as node:
        transaction_id = await begun(node, 0, 1)
        async with producer(node) as stream:
            gone = asyncio.ensure_future(question(stream))
            await asyncio.sleep(0)
            node.driver.lose()
            with pytest.raises(NotLeaderError):
                await gone
        node.driver.lead()
        async with producer(node) as stream:
            check = asyncio.ensure_future(question(stream))
            await round_of(node, 6_000)
            assert (await check).transaction_id == transaction_id
    async with node_at(tmp_path / "n", topics={}) as node:
        assert list(part(node).open) == [transaction_id]
        assert part(node).open[transaction_id].check_count == 1
        await ended(node, transaction_id)
        assert len(await stored(node)) == 1
