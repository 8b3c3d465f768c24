"""Idempotent producers: whatever is sent again, reordered or cut off, each batch is there once."""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.config.limits import Limits
from node.errors import common as errors
from node.errors.translation import describe
from quorumlog.pb.log_pb2 import AppendRequest, AppendResponse
from store.errors import Outcome
from store.record.message import Message, encode_message
from tests.node.broker.append.test_produce import stored
from tests.node.broker_fakes import Fixture, expire_some, hidden, node_at, node_with, request
from tests.node.links import run
from tests.seeds import examples

SMALL_WINDOW = replace(Limits(), producer_window_count=4, producer_count_max=2)


def place(receipt: AppendResponse) -> tuple[object, ...]:
    """What a receipt and its repetition have in common."""
    queues = [(q.topic, q.queue_id, q.first_offset, q.count) for q in receipt.queues]
    return (
        receipt.index,
        receipt.term,
        receipt.position,
        receipt.store_unix_ms,
        receipt.store_host,
        receipt.record_count,
        sorted(queues),
    )


@pytest.mark.parametrize("host", [("127.0.0.1", 8081), ("::1", 8081)])
async def test_a_repeated_batch_gets_the_first_receipt_again(
    tmp_path: Path, host: tuple[str, int]
) -> None:
    async with node_at(tmp_path, store_host=host) as node:
        rows = [encode_message("orders", q, b"x%d" % q, store_host=host) for q in (0, 1, 0)]
        append = AppendRequest(records=b"".join(rows), record_count=3, producer_id=7)
        first = await node.broker.append(append)
        again = await node.broker.append(append)
        assert (first.is_duplicate, again.is_duplicate) == (False, True)
        assert place(again) == place(first)
        assert node.log.store.reads.queue_range("orders", 0) == (0, 2)
        assert node.broker.produce.duplicates_total == 1


async def test_a_batch_sent_again_while_it_is_under_way_waits_for_the_first(node: Fixture) -> None:
    node.driver.is_holding = True
    append = request(0, 2, producer_id=7)
    futures = [node.broker.append_nowait(append) for _ in range(3)]
    with pytest.raises(errors.AppendTimeoutError):
        await node.append(0, 2, producer_id=7, timeout_ms=5)
    node.driver.release()
    first, *others = await asyncio.gather(*futures)
    assert [r.is_duplicate for r in (first, *others)] == [False, True, True]
    assert all(place(other) == place(first) for other in others)
    assert await stored(node) == [0, 1]


async def test_all_callers_of_a_batch_learn_that_it_failed(node: Fixture) -> None:
    node.driver.is_holding = True
    futures = [node.broker.append_nowait(request(0, 1, producer_id=7)) for _ in range(2)]
    node.driver.lose()
    node.driver.decide(0)
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(error) for error in outcomes] == [errors.NotAppliedError] * 2


@node_with(limits=SMALL_WINDOW)
async def test_callers_of_one_batch_are_bounded_and_who_gave_up_leaves_a_place(
    node: Fixture,
) -> None:
    node.driver.is_holding = True
    futures = [node.broker.append_nowait(request(0, 1, producer_id=7))]
    for _ in range(SMALL_WINDOW.producer_window_count + 1):
        with pytest.raises(errors.AppendTimeoutError):
            await node.append(0, 1, producer_id=7, timeout_ms=1)
    futures += [node.broker.append_nowait(request(0, 1, producer_id=7)) for _ in range(4)]
    with pytest.raises(errors.BatchUndecidedError) as refused:
        await node.append(0, 1, producer_id=7)
    assert describe(refused.value).outcome is Outcome.UNKNOWN, "the batch may be stored"
    node.driver.release()
    assert len({str(place(receipt)) for receipt in await asyncio.gather(*futures)}) == 1


async def test_sequences_come_in_order_and_the_error_says_which_is_next(node: Fixture) -> None:
    node.driver.is_holding = True
    first = node.broker.append_nowait(request(0, 1, producer_id=7, sequence=0))
    with pytest.raises(errors.OutOfSequenceError) as caught:
        await node.append(2, 3, producer_id=7, sequence=2)
    assert (caught.value.expected, caught.value.sequence) == (1, 2), "what is under way counts"
    assert describe(caught.value).retryable
    node.driver.release()
    await first
    with pytest.raises(errors.OutOfSequenceError):
        await node.append(2, 3, producer_id=7, sequence=2)
    await node.append(1, 2, producer_id=7, sequence=1)
    assert await stored(node) == [0, 1]


@node_with(limits=SMALL_WINDOW)
async def test_a_duplicate_that_is_too_old_counts_as_sent(node: Fixture) -> None:
    for sequence in range(6):
        await node.append(sequence, sequence + 1, producer_id=7, sequence=sequence)
    assert (await node.append(2, 3, producer_id=7, sequence=2)).is_duplicate
    with pytest.raises(errors.DuplicateExpiredError) as caught:
        await node.append(1, 2, producer_id=7, sequence=1)
    assert caught.value.first_kept == 2
    assert describe(caught.value).outcome is Outcome.APPLIED


async def test_a_duplicate_whose_entry_was_deleted_counts_as_sent(node: Fixture) -> None:
    await node.append(0, 1, producer_id=7, sequence=0)
    await expire_some(node)
    with pytest.raises(errors.DuplicateExpiredError) as caught:
        await node.append(0, 1, producer_id=7, sequence=0)
    assert describe(caught.value).outcome is Outcome.APPLIED


@node_with(limits=SMALL_WINDOW)
async def test_a_producer_that_was_forgotten_must_begin_again(node: Fixture) -> None:
    for producer_id in (1, 2, 3):
        await node.append(0, 1, producer_id=producer_id)
    with pytest.raises(errors.UnknownProducerError) as caught:
        await node.append(1, 2, producer_id=1, sequence=1)
    assert not describe(caught.value).retryable
    await node.append(1, 2, producer_id=2, sequence=1)


@node_with(limits=SMALL_WINDOW)
async def test_no_more_batches_are_under_way_than_the_window_remembers(node: Fixture) -> None:
    node.driver.is_holding = True
    futures = [
        node.broker.append_nowait(request(n, n + 1, producer_id=7, sequence=n)) for n in range(4)
    ]
    with pytest.raises(errors.BusyError, match="in flight of producer 0000000000000007"):
        await node.append(4, 5, producer_id=7, sequence=4)
    node.driver.release()
    await asyncio.gather(*futures)
    await node.append(4, 5, producer_id=7, sequence=4)


@node_with(limits=replace(Limits(), in_flight_count_max=1))
async def test_batches_that_wait_for_room_keep_their_order(node: Fixture) -> None:
    node.driver.is_holding = True
    requests = [request(n, n + 1, producer_id=7, sequence=n) for n in range(5)]
    futures = [node.broker.append_nowait(one) for one in requests]
    repeated = node.broker.append_nowait(requests[0])
    ahead = node.broker.append_nowait(request(5, 6, producer_id=7, sequence=9))
    node.driver.release()
    await asyncio.gather(*futures)
    assert (await repeated).is_duplicate
    with pytest.raises(errors.OutOfSequenceError, match="expected is 5"):
        await ahead
    assert await stored(node) == [0, 1, 2, 3, 4]


class Producer:
    """A client that sends a few batches ahead and sends again until each has a receipt."""

    def __init__(self, producer_id: int, batch_count: int) -> None:
        self.producer_id, self.batch_count = producer_id, batch_count
        self.acked: dict[int, AppendResponse] = {}

    def asked(self, sequence: int) -> AppendRequest:
        body = b"%08d" % (self.producer_id * 1000 + sequence)
        records = encode_message("orders", 0, body)
        return AppendRequest(
            records=records, record_count=1, producer_id=self.producer_id, sequence=sequence
        )

    def missing(self) -> list[int]:
        return [s for s in range(self.batch_count) if s not in self.acked]

    def note(self, sequence: int, found: AppendResponse | BaseException) -> None:
        """Take an answer; only a receipt is one, and all receipts of a batch are equal."""
        if isinstance(found, AppendResponse):
            before = self.acked.setdefault(sequence, found)
            assert place(found) == place(before)
        else:
            assert isinstance(found, errors.NodeError), found
            assert describe(found).retryable, found


@settings(max_examples=examples(25))
@given(st.integers(0, 2**32))
def test_each_acked_batch_is_in_the_log_exactly_once(seed: int) -> None:
    """Random repetitions, reorderings, time-outs and leader changes, against the log at the end."""
    random = Random(seed)

    async def work() -> None:
        with TemporaryDirectory() as root:
            async with node_at(Path(root)) as node:
                producers = [Producer(p, 12) for p in (1, 2)]
                rounds = 0
                while any(producer.missing() for producer in producers):
                    rounds += 1
                    assert rounds < 300, "it does not come to an end"
                    await play(node, producers, random, is_calm=rounds > 60)
                counts = Counter(await stored(node))
                expected = {p.producer_id * 1000 + s for p in producers for s in range(12)}
                assert set(counts) == expected
                assert set(counts.values()) == {1}, "nothing is there twice"
                check_receipts(hidden(node, "orders"), producers)

    run(work())


async def play(node: Fixture, producers: list[Producer], random: Random, *, is_calm: bool) -> None:
    """Send some batches, good and bad, while the leader changes, and take the answers."""
    driver = node.driver
    driver.is_holding = not is_calm and random.random() < 0.7
    sent: list[tuple[Producer, int, asyncio.Future[AppendResponse]]] = []
    send_some(node, producers, random, sent, is_calm=is_calm)
    await asyncio.sleep(0)
    if not is_calm and random.random() < 0.5:
        driver.commit(random.randint(1, 3))
        driver.lose()
        if random.random() < 0.8:
            keep_count = random.randint(0, len(driver.pending))
            driver.decide(keep_count, is_known=random.choice([True, False, None]))
        driver.lead()
        send_some(node, producers, random, sent, is_calm=is_calm)
    driver.release()
    for producer, sequence, future in sent:
        (outcome,) = await asyncio.gather(future, return_exceptions=True)
        producer.note(sequence, outcome)


def send_some(
    node: Fixture,
    producers: list[Producer],
    random: Random,
    sent: list[tuple[Producer, int, asyncio.Future[AppendResponse]]],
    *,
    is_calm: bool,
) -> None:
    """Send the next batches of each producer, and some that were sent before."""
    for producer in random.sample(producers, len(producers)):
        sequences = producer.missing()[: random.randint(1, 5)]
        if not is_calm:
            acked = list(producer.acked)
            sequences += random.sample(acked, min(len(acked), random.randint(0, 2)))
            sequences += random.sample(sequences, min(len(sequences), random.randint(0, 2)))
            if random.random() < 0.3:
                random.shuffle(sequences)
        for sequence in sequences:
            append = producer.asked(sequence)
            sent.append((producer, sequence, node.broker.append_nowait(append)))


def check_receipts(stored_messages: list[Message], producers: list[Producer]) -> None:
    """Each receipt names the message that its batch held."""
    by_offset = {message.queue_offset: message for message in stored_messages}
    for producer in producers:
        for sequence, receipt in producer.acked.items():
            message = by_offset[receipt.queues[0].first_offset]
            assert message.body == b"%08d" % (producer.producer_id * 1000 + sequence)
            assert message.position == receipt.position
