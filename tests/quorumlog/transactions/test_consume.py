"""What a consuming transaction refuses before anything is sent, and unique keys."""

import re
from typing import Any

import pytest

import quorumlog
from quorumlog.cluster.calls import method_of
from quorumlog.consume.moves import Known
from quorumlog.errors import (
    ConflictError,
    DeadlineError,
    InvalidRequestError,
    Outcome,
    OutcomeUnknownError,
    QuorumlogError,
    TooLargeError,
    WrongTypeError,
)
from quorumlog.pb import consumer_pb2, log_pb2
from quorumlog.produce.outgoing_messages import OutgoingForm, UniqueKeys, entry_of
from quorumlog.records.message import Message, MessageBatch
from quorumlog.records.queues import Queue
from quorumlog.transactions.consume import ConsumeTransaction
from tests.patience import eventually
from tests.quorumlog.fake_cluster import connect, fake_cluster


class NoShaping:
    """All that is asked of a producer before something is sent."""

    form = None


def transaction() -> ConsumeTransaction:
    nobody: Any = None
    producer: Any = NoShaping()
    return ConsumeTransaction(nobody, nobody, producer, "g", {}, [], 1_000)


def message(offset: int, *, queue_id: int = 0, group: str = "g0") -> Message:
    return Message("orders", queue_id, offset, b"", bytes(88), b"", group)


def batch(first: int, hi: int, *, group: str = "g0") -> MessageBatch:
    """Of which a filter has left nothing."""
    queue = Queue("orders", 0, group)
    return MessageBatch("orders", 0, first, hi, 0, hi, 1, 1, 0, False, [], queue)


@pytest.mark.parametrize("body", [5, None, [1, 2]])
def test_an_output_has_a_body_of_bytes_or_text(body: Any) -> None:
    with pytest.raises(WrongTypeError, match="use bytes or text"):
        transaction().send("orders", body)


def test_messages_of_two_broker_groups_do_not_share_a_transaction() -> None:
    made = transaction()
    made.consumed(message(5))
    with pytest.raises(InvalidRequestError, match="of broker group 'g1'") as caught:
        made.consumed(message(0, group="g1"))
    assert caught.value.code == "client.other_group"
    made.consumed(message(0, queue_id=3))


def test_messages_are_consumed_in_order_and_without_a_gap() -> None:
    made = transaction()
    made.consumed(message(5))
    for wrong in (5, 7, 4):
        with pytest.raises(InvalidRequestError, match=f"offset {wrong} .* after 5"):
            made.consumed(message(wrong))
    made.consumed(batch(6, 9))
    made.consumed(message(9))


async def test_a_transaction_that_consumed_nothing_is_refused() -> None:
    made = transaction()
    made.send("bills", b"x")
    with pytest.raises(InvalidRequestError, match="nothing was consumed"):
        await made.commit()
    with pytest.raises(InvalidRequestError, match="has ended"):
        made.send("bills", b"x")
    async with transaction():
        pass  # Nothing at all is no mistake.
    with pytest.raises(TooLargeError):
        transaction().send("bills", bytes(5_000_000))


async def test_a_consumer_that_commits_by_itself_is_refused() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        client.group_consumer("g", "orders")
        with pytest.raises(InvalidRequestError, match="auto_commit=False"):
            client.transaction("g")
        client.transaction("other")
        with pytest.raises(InvalidRequestError, match="needs a name"):
            client.transactional_producer("", lambda _: "commit")


@pytest.mark.parametrize(
    ("conflict", "stored", "expected"),
    [
        (Outcome.NOT_APPLIED, None, ConflictError),
        (Outcome.UNKNOWN, 6, None),
        (Outcome.UNKNOWN, 9, ConflictError),
        (Outcome.UNKNOWN, None, OutcomeUnknownError),
    ],
)
async def test_a_commit_that_met_a_conflict_after_an_attempt_without_an_answer(
    conflict: Outcome, stored: int | None, expected: type[Exception] | None
) -> None:
    """It may be its own first attempt that it met; who cannot look does not know."""

    class Group:
        def __init__(self) -> None:
            self.calls = self.router = self
            self.cluster_id = "c"

        def get(self, _: str) -> "Group":
            return self

        async def leader(self, request: Any, *_: Any, **__: Any) -> Any:
            if method_of(request) == "CommitConsumed":
                raise ConflictError("somebody was faster", outcome=conflict)
            if stored is None:
                raise DeadlineError("no leader")
            response = consumer_pb2.FetchOffsetsResponse()
            response.offsets.add(topic="orders", queue_id=0, offset=stored)
            return response

    made = transaction()
    group: Any = Group()
    made._groups = group
    made._stored[Queue("orders", 0, "g0")] = Known(5)
    made.consumed(message(5))
    if expected is None:
        await made.commit()
        return
    with pytest.raises(expected) as caught:
        await made.commit()
    assert isinstance(caught.value, QuorumlogError)
    assert caught.value.outcome is conflict


def test_unique_keys_are_unique_and_of_the_published_form() -> None:
    keys = UniqueKeys()
    made = [keys() for _ in range(1_000)]
    assert len(set(made)) == 1_000
    assert all(re.fullmatch("[0-9A-F]{32}", key) for key in made)
    assert UniqueKeys()()[:20] != made[0][:20], "another process has another beginning"
    form = OutgoingForm(unique_keys=keys)
    given = entry_of("orders", b"", "k", None, 0, {"UNIQ_KEY": "mine"}, 0, form)[4]
    assert given == b"KEYS\x01k\x02UNIQ_KEY\x01mine\x02"
    own = entry_of("orders", b"", None, None, 0, None, 0, form)[4]
    assert re.fullmatch(b"UNIQ_KEY\x01[0-9A-F]{32}\x02", own)


async def test_the_time_of_one_transaction_is_not_that_of_another() -> None:
    """Whoever began first does not say how long the others may take."""

    async with fake_cluster() as cluster, connect(cluster, timeout_ms=120_000) as client:
        for i in range(2):
            await client.producer().send("orders", b"%d" % i, queue_id=0)
        first, second = await client.pull("orders", 0, 0)
        cluster.append_delay_s = 1.0
        for consumed, timeout_ms in ((first, 200), (second, None)):
            made = client.transaction("g", timeout_ms=timeout_ms)
            made.consumed(consumed)
            made.send("orders", b"made", queue_id=1)
            if timeout_ms:
                with pytest.raises(OutcomeUnknownError):
                    await made.commit()
                cluster.offsets["g", "orders", 0] = 1  # It was stored after all.
            else:
                await made.commit()
        assert [receipt.queue_id for receipt in made.receipts] == [1]


async def test_transactions_of_many_times_do_not_make_a_producer_each() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        for timeout_ms in range(1_000, 1_100):
            client.transaction("g", timeout_ms=timeout_ms)
        assert len(client._made) <= 20


@pytest.mark.parametrize("moved_to", [0, 4])
@pytest.mark.parametrize("is_followed", [False, True])
async def test_messages_from_before_a_move_are_of_no_transaction(
    is_followed: bool, moved_to: int
) -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        cluster.topics["orders"] = 1
        await client.producer().send_batch("orders", [b"%d" % i for i in range(10)], queue_id=0)
        async with client.group_consumer("g", "orders", auto_commit=False) as consumer:
            old = await consumer.next_batch()
            assert old is not None
            cluster.offsets["g", "orders", 0] = moved_to
            cluster.moved["orders", 0] = 7
            if is_followed:
                await eventually(lambda: [*consumer.offsets().values()] == [moved_to], "it goes")
            for _ in range(2):
                with pytest.raises(ConflictError):
                    async with client.transaction("g") as refused:
                        refused.consumed(old)
            again = await consumer.next_batch()
            assert again is not None
            assert again.offset == moved_to
            async with client.transaction("g") as taken:
                taken.consumed(again)
            assert cluster.offsets["g", "orders", 0] == again.next_offset


async def _batch_again(client: quorumlog.Client) -> Any:
    async with client.pull_consumer("orders", queues=[0]) as consumer:
        return await consumer.next_batch()


async def _message_again(client: quorumlog.Client) -> Any:
    async with client.pull_consumer("orders", queues=[0]) as consumer:
        return await anext(consumer)


async def _found_by_key(client: quorumlog.Client) -> Any:
    return (await client.query_by_key("orders", "k0"))[0]


async def _found_by_id(client: quorumlog.Client) -> Any:
    return await client.get_message((await client.pull("orders", 0, 0))[0].message_id)


_READERS = [_batch_again, _message_again, _found_by_key, _found_by_id]


@pytest.mark.parametrize("read", [*_READERS, lambda c: c.pull("orders", 0, 0)])
async def test_messages_of_any_reader_know_the_moves_that_came_before(read: Any) -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        await client.producer().send("orders", b"a", queue_id=0, key="k0")
        old = await read(client)
        cluster.offsets["g", "orders", 0], cluster.moved["orders", 0] = 0, 7
        for _ in range(2):
            with pytest.raises(ConflictError, match="after these messages were read"):
                async with client.transaction("g") as refused:
                    refused.consumed(old)
        async with client.transaction("g") as taken:
            taken.consumed(await read(client))
        assert cluster.offsets["g", "orders", 0] > 0
        with pytest.raises(ConflictError, match="or they do not say when"):
            async with client.transaction("g") as refused:
                refused.consumed(message(1, group=""))


def test_every_answer_with_records_to_consume_tells_the_newest_move() -> None:
    answers = [m.output_type for m in log_pb2.DESCRIPTOR.services_by_name["LogService"].methods]
    with_records = [one for one in answers if "records" in one.fields_by_name]
    assert with_records
    assert all("newest_move" in one.fields_by_name for one in with_records)
