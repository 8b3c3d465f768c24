"""A batch that is refused because of some messages: these fail, the others are stored in order."""

import asyncio
from typing import Any

import pytest

import quorumlog
from quorumlog import errors
from quorumlog.errors import Outcome
from quorumlog.pb import common_pb2
from tests.quorumlog.fake_cluster import (
    BREAK_BEFORE,
    FakeCluster,
    connect,
    decode_all,
    fake_cluster,
)

CODE = "node.delay_too_long"


class Refusing:
    """A node that refuses messages whose body begins with `bad`, and names them or does not."""

    def __init__(self, cluster: FakeCluster, name: Any = None) -> None:
        """`name` makes the list of named messages out of the true one; None: an old node."""
        self.batches: list[int] = []
        """Messages of each batch that came, refused or not."""
        self._name = name
        self._cluster = cluster
        cluster.script.actions.append(self.refuse)

    async def refuse(self, _node: Any, request: Any) -> common_pb2.Error | None:
        self._cluster.script.actions.appendleft(self.refuse)
        bodies = [message.body for message in decode_all(request.records)]
        self.batches.append(len(bodies))
        faulty = [i for i, body in enumerate(bodies) if body.startswith(b"bad")]
        if not faulty:
            return None
        named = [] if self._name is None else self._name(faulty)
        return common_pb2.Error(
            code=CODE,
            message=f"{bodies[faulty[0]].decode()} is refused; do something",
            outcome=common_pb2.OUTCOME_NOT_APPLIED,
            faulty_records=named,
        )


async def outcomes(
    producer: quorumlog.Producer, bodies: list[bytes]
) -> list[quorumlog.Receipt | errors.QuorumlogError]:
    sent = [producer.send_nowait("orders", body, queue_id=0) for body in bodies]
    endings: list[Any] = await asyncio.gather(
        *(one.receipt() for one in sent), return_exceptions=True
    )
    return endings


def check(
    cluster: FakeCluster,
    bodies: list[bytes],
    found: list[quorumlog.Receipt | errors.QuorumlogError],
) -> None:
    """What is good was stored once and in order; what is bad failed, and is said not to be."""
    good = [body for body in bodies if not body.startswith(b"bad")]
    assert cluster.bodies() == good
    at = 0
    for body, one in zip(bodies, found, strict=True):
        if body.startswith(b"bad"):
            assert isinstance(one, errors.InvalidRequestError), one
            assert (one.code, one.outcome, one.retryable) == (CODE, Outcome.NOT_APPLIED, False)
            assert one.faulty_records == ()
        else:
            assert isinstance(one, quorumlog.Receipt), one
            assert one.queue_offset == at
            at += 1


def mixed(count: int, step: int = 2) -> list[bytes]:
    return [b"bad %04d" % i if i % step == 0 else b"%04d" % i for i in range(count)]


@pytest.mark.parametrize("idempotent", [True, False])
async def test_half_of_a_batch_is_refused_in_one_answer(idempotent: bool) -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        node = Refusing(cluster, list)
        producer = client.producer(idempotent=idempotent)
        bodies = mixed(1_000)
        check(cluster, bodies, await outcomes(producer, bodies))
        assert node.batches == [1_000, 500]
        assert (producer.stats().failed_count, len(cluster.producers)) == (500, int(idempotent))


async def test_each_message_is_told_of_its_own_fault_or_of_one_like_it() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        Refusing(cluster, list)
        bodies = [b"0000", b"bad 1", b"0002", b"bad 3", b"bad 4"]
        endings = await outcomes(client.producer(), bodies)
        check(cluster, bodies, endings)
        assert str(endings[1]) == "bad 1 is refused; do something"
        like = "refused like message 1 of its batch: bad 1 is refused; do something"
        assert [str(endings[3]), str(endings[4])] == [like, like]
        assert endings[3] is not endings[4]


@pytest.mark.parametrize(
    "name",
    [
        None,
        lambda faulty: faulty[:1],
        lambda faulty: faulty[:3],
        lambda faulty: [*faulty, 1_000],
        lambda faulty: [4_294_967_295],
        lambda faulty: faulty[::-1] * 3,
    ],
    ids=["none", "the first", "three", "one too many", "no such", "in another order"],
)
async def test_other_lists_end_in_the_same_way(name: Any) -> None:
    """Of old nodes, of nodes that look at a part only, and of those that name what is not there."""
    async with fake_cluster() as cluster, connect(cluster) as client:
        Refusing(cluster, name)
        bodies = mixed(40, step=4)
        check(cluster, bodies, await outcomes(client.producer(), bodies))
        assert len(cluster.producers) == 1


async def test_batches_behind_it_keep_their_order_and_their_producer() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        node = Refusing(cluster, list)
        producer = client.producer(batch_count_max=10)
        bodies = mixed(200, step=7)
        check(cluster, bodies, await outcomes(producer, bodies))
        assert len(cluster.producers) == 1
        assert node.batches.count(10) >= 1
        assert producer.stats().duplicates_count == 0


async def test_a_batch_of_faulty_messages_only_is_not_sent_again() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        node = Refusing(cluster, list)
        producer = client.producer()
        bodies = [b"bad %d" % i for i in range(20)]
        check(cluster, bodies, await outcomes(producer, bodies))
        assert node.batches == [20]
        await producer.send("orders", b"good")
        assert cluster.bodies() == [b"good"]
        assert len(cluster.producers) == 1


async def test_messages_of_several_topics_are_told_apart_too() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        cluster.topics["audit"] = 1
        node = Refusing(cluster, list)
        producer = client.producer()
        sent = [
            (body, producer.send_nowait("audit" if i % 3 else "orders", body, queue_id=0))
            for i, body in enumerate(mixed(30))
        ]
        for body, delivery in sent:
            if body.startswith(b"bad"):
                with pytest.raises(errors.InvalidRequestError):
                    await delivery
            else:
                await delivery
        assert node.batches == [30, 15]


async def test_a_batch_that_must_stay_whole_fails_whole_and_says_which_messages() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        node = Refusing(cluster, list)
        producer = client.producer()
        with pytest.raises(errors.InvalidRequestError) as caught:
            await producer.send_batch("orders", [b"0", b"bad 1", b"2", b"bad 3"])
        assert caught.value.faulty_records == (1, 3)
        assert (cluster.bodies(), node.batches) == ([], [4])


async def test_a_batch_that_may_be_stored_already_is_not_taken_apart() -> None:
    """The first attempt has no answer: no list says what became of it."""
    async with fake_cluster() as cluster, connect(cluster) as client:
        cluster.script.actions.append(BREAK_BEFORE)
        Refusing(cluster, list)
        producer = client.producer()
        endings = await outcomes(producer, [b"0", b"bad 1", b"2"])
        assert [type(one) for one in endings] == [errors.OutcomeUnknownError] * 3
        assert cluster.bodies() == []
        await producer.send("orders", b"good")
        assert cluster.bodies() == [b"good"]
