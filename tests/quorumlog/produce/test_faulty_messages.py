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
    producing,
)

CODE = "node.delay_too_long"


class Refusing:
    """A node that refuses messages whose body begins with `bad`, and names them or does not."""

    def __init__(self, cluster: FakeCluster, name: Any = None, code: str = CODE) -> None:
        """`name` makes the list of named messages out of the true one; None: an old node."""
        self.batches: list[int] = []
        """Messages of each batch that came, refused or not."""
        self._name, self._code = name, code
        self._cluster = cluster
        cluster.script.append(self.refuse)

    async def refuse(self, _node: Any, request: Any) -> common_pb2.Error | None:
        self._cluster.script.appendleft(self.refuse)
        bodies = [message.body for message in decode_all(request.records)]
        self.batches.append(len(bodies))
        faulty = [i for i, body in enumerate(bodies) if body.startswith(b"bad")]
        if not faulty:
            return None
        named = [] if self._name is None else self._name(faulty)
        return common_pb2.Error(
            code=self._code,
            message=f"{bodies[faulty[0]].decode()} is refused; do something",
            outcome=common_pb2.OUTCOME_NOT_APPLIED,
            faulty_records=named,
        )


async def outcomes(
    producer: quorumlog.Producer, bodies: list[bytes], bad_queue_id: int = 0
) -> list[quorumlog.Receipt | errors.QuorumlogError]:
    queue_ids = [bad_queue_id if body.startswith(b"bad") else 0 for body in bodies]
    sent = [
        producer.send_nowait("orders", body, queue_id=queue_id)
        for body, queue_id in zip(bodies, queue_ids, strict=True)
    ]
    endings: list[Any] = await asyncio.gather(
        *(one.receipt() for one in sent), return_exceptions=True
    )
    return endings


def check(
    cluster: FakeCluster,
    bodies: list[bytes],
    endings: list[quorumlog.Receipt | errors.QuorumlogError],
    code: str = CODE,
) -> None:
    """What is good was stored once and in order; what is bad failed, and is said not to be."""
    good = [body for body in bodies if not body.startswith(b"bad")]
    assert cluster.bodies() == good
    at = 0
    for body, one in zip(bodies, endings, strict=True):
        if body.startswith(b"bad"):
            assert isinstance(one, errors.QuorumlogError), one
            assert (one.code, one.outcome, one.retryable) == (code, Outcome.NOT_APPLIED, False)
            assert one.faulty_records == ()
        else:
            assert isinstance(one, quorumlog.Receipt), one
            assert one.queue_offset == at
            at += 1


def mixed(count: int, step: int = 2) -> list[bytes]:
    return [b"bad %04d" % i if i % step == 0 else b"%04d" % i for i in range(count)]


@pytest.mark.parametrize("idempotent", [True, False])
async def test_half_of_a_batch_is_refused_in_one_answer(idempotent: bool) -> None:
    async with producing(idempotent=idempotent) as (cluster, producer):
        node = Refusing(cluster, list)
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
        lambda faulty: faulty[:1],
        lambda faulty: faulty[:3],
        lambda faulty: [*faulty, 1_000],
        lambda faulty: [4_294_967_295],
        lambda faulty: faulty[::-1] * 3,
    ],
    ids=["the first", "three", "one too many", "no such", "in another order"],
)
async def test_other_lists_end_in_the_same_way(name: Any) -> None:
    """Of nodes that look at a part only, and of those that name what is not there."""
    async with fake_cluster() as cluster, connect(cluster) as client:
        Refusing(cluster, name)
        bodies = mixed(40, step=4)
        check(cluster, bodies, await outcomes(client.producer(), bodies))
        assert len(cluster.producers) == 1


@pytest.mark.parametrize("code", ["node.unknown_queue", "node.delay_too_long", "node.bad_request"])
@pytest.mark.parametrize("idempotent", [True, False])
async def test_messages_that_a_node_does_not_name_fail_alone(code: str, idempotent: bool) -> None:
    async with producing(idempotent=idempotent, in_flight_max=1) as (cluster, producer):
        cluster.topics["orders"] = 100
        Refusing(cluster, code=code)
        bodies = mixed(40, step=4)
        check(cluster, bodies, await outcomes(producer, bodies, bad_queue_id=99), code)


async def test_batches_behind_it_keep_their_order_and_their_producer() -> None:
    async with producing(batch_count_max=10) as (cluster, producer):
        node = Refusing(cluster, list)
        bodies = mixed(200, step=7)
        check(cluster, bodies, await outcomes(producer, bodies))
        assert len(cluster.producers) == 1
        assert node.batches.count(10) >= 1
        assert producer.stats().duplicates_count == 0


async def test_a_batch_of_faulty_messages_only_is_not_sent_again() -> None:
    async with producing() as (cluster, producer):
        node = Refusing(cluster, list)
        bodies = [b"bad %d" % i for i in range(20)]
        check(cluster, bodies, await outcomes(producer, bodies))
        assert node.batches == [20]
        await producer.send("orders", b"good")
        assert cluster.bodies() == [b"good"]
        assert len(cluster.producers) == 1


async def test_a_batch_that_must_stay_whole_fails_whole_and_says_which_messages() -> None:
    async with producing() as (cluster, producer):
        node = Refusing(cluster, list)
        with pytest.raises(errors.InvalidRequestError) as caught:
            await producer.send_batch("orders", [b"0", b"bad 1", b"2", b"bad 3"])
        assert caught.value.faulty_records == (1, 3)
        assert (cluster.bodies(), node.batches) == ([], [4])


async def test_a_batch_that_may_be_stored_already_is_not_taken_apart() -> None:
    """The first attempt has no answer: no list says what became of it."""
    async with producing() as (cluster, producer):
        cluster.script.append(BREAK_BEFORE)
        Refusing(cluster, list)
        endings = await outcomes(producer, [b"0", b"bad 1", b"2"])
        assert [type(one) for one in endings] == [errors.OutcomeUnknownError] * 3
        assert cluster.bodies() == []
        await producer.send("orders", b"good")
        assert cluster.bodies() == [b"good"]
