"""The types that a program sees: of the client, of its parts, and of the blocking client.

mypy reads this module with the others: `assert_type` fails there, and so does an ignored error that
is none. Here the same calls run.
"""

import asyncio
import inspect
from collections.abc import Iterator, Sequence
from typing import assert_type

import pytest

import quorumlog
from quorumlog import errors, sync
from quorumlog.admin.types import TopicInfo
from quorumlog.records.message import MessageBatch
from quorumlog.transactions.types import HalfOptions
from tests.quorumlog import surface
from tests.quorumlog.fake_cluster import fake_cluster


def use_blocking(bootstrap: str) -> None:
    with assert_type(sync.connect(bootstrap), sync.Client) as client:
        assert_type(client.admin.list_topics(), list[TopicInfo])
        producer = assert_type(client.producer(linger_ms=1), sync.Producer)
        assert_type(producer.send("orders", b"x", queue_id=0), quorumlog.Receipt)
        delivery = assert_type(producer.enqueue("orders", b"x", queue_id=0), sync.Delivery)
        assert_type(delivery.receipt(), quorumlog.Receipt)
        assert_type(producer.send_nowait("orders", b"x", key="k"), sync.Delivery)
        batch = producer.send_batch("orders", [b"x"], tag="t")
        assert_type(batch, Sequence[quorumlog.Receipt])
        assert_type(client.pull("orders", 0, 0), MessageBatch)
        with assert_type(client.pull_consumer("orders"), sync.PullConsumer) as consumer:
            assert_type(next(consumer), quorumlog.Message)
        assert_type(client.group_consumer("g", "orders"), sync.GroupConsumer).close()
        assert_type(client.pop_consumer("p", "orders"), sync.PopConsumer).close()
        with assert_type(client.transaction("t"), sync.ConsumeTransaction) as transaction:
            transaction.send("orders", b"x", key="k")
            transaction.consumed(client.pull("orders", 0, 0, max_count=1))
        made = assert_type(
            client.transactional_producer("work", lambda _: "commit"), sync.TransactionalProducer
        )
        assert_type(made.begin("orders", b"x", tag="t"), sync.Transaction)
        for wrong in (
            lambda: producer.send("orders", b"x", kye="k"),  # type: ignore[call-arg]
            lambda: producer.enqueue("orders"),  # type: ignore[call-arg]
            lambda: client.pull("orders", 0),  # type: ignore[call-arg]
            lambda: client.producer(linger=1),  # type: ignore[call-arg]
            lambda: made.begin("orders", b"x", kye="k"),  # type: ignore[call-arg]
            lambda: client.consume("orders", untill="end"),  # type: ignore[call-arg]
            lambda: client.transactional_producer("w", str, linger=1),  # type: ignore[call-arg]
        ):
            with pytest.raises(TypeError, match=r"kye|body|offset|linger|untill"):
                wrong()
        with pytest.raises(errors.WrongTypeError, match="queue_id is '0', a str"):
            producer.send("orders", b"x", queue_id="0")  # type: ignore[arg-type]
        with pytest.raises(errors.WrongTypeError, match="prefetch is '1', a str"):
            next(client.consume("orders", prefetch="1"))  # type: ignore[arg-type]
        for read, text in (
            (client.consume("orders", strategy="circle"), "strategy is 'circle'.* name the group"),
            (client.consume("orders", group="g", until="end"), "until is 'end'.* without group"),
        ):
            with pytest.raises(errors.InvalidRequestError, match=text):
                next(assert_type(read, Iterator[quorumlog.Message]))


async def test_the_blocking_client_has_the_types_that_its_names_say() -> None:
    async with fake_cluster() as cluster:
        await asyncio.to_thread(use_blocking, cluster.bootstrap)


async def test_the_parts_of_the_client_have_the_types_of_their_calls() -> None:
    async with fake_cluster() as cluster, quorumlog.connect(cluster.bootstrap) as client:
        producer = client.producer()
        assert_type(await producer.send("orders", b"x", queue_id=0), quorumlog.Receipt)
        assert_type(await client.pull("orders", 0, 0), MessageBatch)
        offsets = await client.admin.fetch_offsets("g", [("orders", 0)])
        assert_type(offsets, dict[quorumlog.Queue, int])
        assert_type(client.transaction("g"), quorumlog.ConsumeTransaction)
        for wrong in (
            lambda: producer.send("orders", b"x", kye="k"),  # type: ignore[call-arg]
            lambda: client.pull("orders", 0),  # type: ignore[call-arg]
            lambda: client.admin.describe_pop(groups="g"),  # type: ignore[call-arg]
        ):
            with pytest.raises(TypeError, match=r"kye|offset|group"):
                await wrong()


def test_calls_that_spell_their_options_out_have_those_of_a_message() -> None:
    def options(function: object) -> dict[str, tuple[object, object]]:
        parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
        named = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
        return {p.name: (p.default, p.annotation) for p in named}

    sent = options(quorumlog.Producer.send)
    assert options(quorumlog.Producer.enqueue) == sent
    assert options(quorumlog.Producer.send_nowait) == sent
    of_batch = options(quorumlog.Producer.send_batch)
    assert of_batch == {name: sent[name] for name in sent.keys() - {"flag", "message_group"}}
    half = options(quorumlog.TransactionalProducer.begin)
    assert half == {name: sent[name] for name in HalfOptions.__optional_keys__}
    output = options(quorumlog.ConsumeTransaction.send)
    assert output == {name: sent[name] for name in {*half, "flag"} - {"broker_group"}}


def test_every_public_call_shows_its_parameters() -> None:
    for call in surface.calls():
        parameters = inspect.signature(call.function).parameters.values()
        assert all(one.kind is not one.VAR_KEYWORD for one in parameters), call
    options = inspect.signature(quorumlog.Client.consume).parameters
    assert {"topic", "group", "until", "queues", "strategy", "prefetch"} <= options.keys()
    assert inspect.signature(sync.Client.consume).parameters == options


async def test_an_option_that_there_is_not_is_refused_by_the_name_of_the_call() -> None:
    async with fake_cluster() as cluster, quorumlog.connect(cluster.bootstrap) as client:
        producer = client.producer()
        made = client.transactional_producer("work", lambda _: "commit")
        with pytest.raises(TypeError, match=r"^Producer\.send\(\) got an unexpected .* 'kye'$"):
            await producer.send("orders", b"x", kye="k")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"^Producer\.send_batch\(\) got .* 'flag'$"):
            await producer.send_batch("orders", [b"x"], flag=1)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"^TransactionalProducer\.begin\(\) got .* 'delay'$"):
            await made.begin("orders", b"x", delay=1)  # type: ignore[call-arg]
        async with client.transaction("g") as transaction:
            with pytest.raises(
                TypeError, match=r"^ConsumeTransaction\.send\(\) got .* 'broker_group'$"
            ):
                transaction.send("orders", b"x", broker_group="g0")  # type: ignore[call-arg]
        assert cluster.bodies() == []


def test_a_blocking_call_says_in_its_signature_what_it_returns() -> None:
    def returned(function: object) -> object:
        return inspect.signature(function).return_annotation  # type: ignore[arg-type]

    assert returned(sync.connect) is sync.Client
    assert returned(sync.Client.producer) is sync.Producer
    assert returned(sync.Producer.enqueue) is sync.Delivery
    assert returned(sync.TransactionalProducer.begin) is sync.Transaction
