"""Questions about transactions: how many are asked, in which order, and damaged records."""

import asyncio

import pytest

from node.broker.transactions.producers import SHARES
from node.config.limits import Limits
from node.errors.common import NotLeaderError
from quorumlog.pb.transaction_pb2 import TRANSACTION_OUTCOME_GIVEN_UP
from store.errors import CorruptionError, DerivedFileError
from tests.node.broker_fakes import Fixture, node_with
from tests.node.transaction_calls import begun, part, producer, question, round_of
from tests.patience import eventually

FEW = Limits(transaction_question_count_max=2)


def check_counts(node: Fixture) -> list[int]:
    return [one.check_count for one in part(node).open.values()]


@node_with(limits=FEW)
async def test_no_more_are_counted_than_are_asked(node: Fixture) -> None:
    ids = [await begun(node, n, n + 1) for n in range(5)]
    async with producer(node) as stream:
        await round_of(node, 6_000)
        assert check_counts(node) == [0] * 5
        ids_seen = [(await question(stream)).transaction_id for _ in range(2)]
        assert check_counts(node) == [1, 1, 0, 0, 0]
        await round_of(node, 1_000)
        ids_seen += [(await question(stream)).transaction_id for _ in range(2)]
        await round_of(node, 1_000)
        ids_seen.append((await question(stream)).transaction_id)
        assert ids_seen == ids
        assert check_counts(node) == [1] * 5


@node_with(limits=FEW)
async def test_questions_that_a_producer_does_not_take_do_not_count_and_go_to_another(
    node: Fixture,
) -> None:
    ids = [await begun(node, n, n + 1) for n in range(3)]
    async with producer(node) as stuck:
        await round_of(node, 6_000)
        async with producer(node) as other:
            await round_of(node, 1_000)
            assert (await question(other)).transaction_id == ids[2]
            for _ in range(20):  # Nobody takes the others: they may wait without end.
                await round_of(node, 30_000)
                assert check_counts(node)[:2] == [0, 0]
            ids_seen = {(await question(other)).transaction_id for _ in range(2)}
            assert ids_seen <= {*ids}
            assert sum(check_counts(node)) == 3
        node.driver.lose()
        with pytest.raises(NotLeaderError):  # Those that another was asked are gone.
            await question(stuck)


async def test_producers_that_come_again_cost_no_memory(node: Fixture) -> None:
    transaction_id = await begun(node, 0, 1)
    checks = node.broker.transactions.checks
    for _ in range(5):
        async with producer(node) as stream:
            waiting = asyncio.ensure_future(anext(stream))
            await eventually(lambda: checks.producers.room.used == 1, "it is there")
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait({waiting})
    assert [position for _, position in checks._due] == [transaction_id]
    await round_of(node, 6_000)
    assert checks._due == [], "it waits for a producer"
    group = part(node).open[transaction_id].producer_group
    for _ in range(5):
        checks.producers._on_come(group)
    assert [position for _, position in checks._due] == [transaction_id]
    async with producer(node) as stream:
        assert (await question(stream)).transaction_id == transaction_id


ROOM_BYTES = 2_500
"""Two questions with a message of 1,000 bytes."""
ROOM = Limits(transaction_question_size_bytes_max=ROOM_BYTES)
SHARE = Limits(transaction_question_size_bytes_max=ROOM_BYTES * SHARES)


@node_with(limits=SHARE)
async def test_questions_to_a_stuck_producer_are_bounded(node: Fixture) -> None:
    ids = [await begun(node, n, n + 1, size_bytes=1_000) for n in range(5)]
    async with producer(node) as stream:
        await round_of(node, 6_000)
        ids_seen = [(await question(stream)).transaction_id for _ in range(2)]
        assert 1_000 < node.broker.transactions.checks.producers.size_bytes < 2_000, "the last"
        assert check_counts(node) == [1, 1, 0, 0, 0]
        await round_of(node, 1_000)
        await begun(node, 9, 10, size_bytes=1_000, group="others")
        async with producer(node, "others") as other:
            await round_of(node, 6_000)
            await question(other)
        ids_seen.append((await question(stream)).transaction_id)
        assert ids_seen == ids[:3]


@node_with(limits=ROOM)
async def test_questions_of_all_producers_have_a_limit_of_bytes(node: Fixture) -> None:
    producers = node.broker.transactions.checks.producers
    for n in range(3):
        await begun(node, n, n + 1, size_bytes=1_000, group=f"g{n}")
    async with producer(node, "g2") as last:
        async with producer(node, "g0"), producer(node, "g1"):
            await round_of(node, 6_000)
            assert 2_000 < producers.size_bytes < ROOM_BYTES
        assert producers.size_bytes == 0, "who goes leaves nothing behind"
        await round_of(node, 1_000)
        assert producers.size_bytes > 0
        node.driver.lose()
        with pytest.raises(NotLeaderError):
            await question(last)
        assert producers.size_bytes == 0


@node_with(limits=ROOM)
async def test_a_question_that_is_larger_than_the_limit_is_asked_alone(node: Fixture) -> None:
    large = await begun(node, 0, 1, size_bytes=5_000)
    async with producer(node) as stream:
        await round_of(node, 6_000)
        assert (await question(stream)).transaction_id == large


def damage(node: Fixture, transaction_id: int) -> list[CorruptionError | DerivedFileError]:
    """Have one transaction be damaged on this node's disk; return what will be found."""
    ends, reports = node.broker.transactions.ends, list[CorruptionError | DerivedFileError]()
    whole = ends.half_messages

    def half_messages(known: object) -> bytes:
        if known.position == transaction_id:  # type: ignore[attr-defined]
            raise CorruptionError("file", 0, "body CRC", "1", "2")
        return whole(known)  # type: ignore[arg-type]

    ends.half_messages = half_messages  # type: ignore[method-assign]
    node.broker.context.on_damage = reports.append
    return reports


async def test_damage_of_one_does_not_keep_the_others_from_being_asked_or_given_up(
    node: Fixture,
) -> None:
    ids = [await begun(node, n, n + 1) for n in range(3)]
    reports = damage(node, ids[0])
    async with producer(node) as stream:
        await round_of(node, 6_000)
        assert [(await question(stream)).transaction_id for _ in range(2)] == ids[1:]
        assert len(reports) == 1
    # All of them have their next time.
    assert {position for _, position in node.broker.transactions.checks._due} == {*ids}
    await round_of(node, 2 * 86_400_000)
    assert list(part(node).open) == ids[:1]
    assert part(node).ended == dict.fromkeys(ids[1:], TRANSACTION_OUTCOME_GIVEN_UP)
    assert len(reports) == 2
