"""Names of producers: the last one to claim has it, from the moment its claim is in the log."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from node.config.limits import Limits
from node.errors.common import (
    BadRequestError,
    BusyError,
    LimitReachedError,
    NotAppliedError,
    NotLeaderError,
    ProducerFencedError,
)
from node.state.image import decode_image, encode_image
from node.state.state import State
from node.state.tables.incarnations import IncarnationsTable
from node.state.tables.table import TableImage
from quorumlog.pb.log_pb2 import AppendRequest, ClaimProducerRequest
from quorumlog.pb.state_pb2 import Command
from quorumlog.pb.transaction_pb2 import EndTransactionRequest
from tests.node.broker_fakes import Fixture, node_at, node_with, request
from tests.node.transaction_calls import COMMITTED, GROUP, begun, ended, stored

MANY = 1_500
"""Messages of a transaction whose end is made in several turns of the loop."""
LARGE: dict[str, Any] = {"file_size_bytes": 4 << 20, "batch_size_bytes_max": 1 << 20}


async def claim(node: Fixture, name: str = "n") -> int:
    return (await node.broker.incarnations.claim_producer(ClaimProducerRequest(name=name))).number


def batch(lo: int, number: int, *, name: str = "n", producer_id: int = 0) -> AppendRequest:
    made = request(lo, lo + 1, producer_id=producer_id)
    made.incarnation.name, made.incarnation.number = name, number
    return made


def numbers_of(node: Fixture) -> dict[str, int]:
    return node.machine.state.table(IncarnationsTable).numbers


async def test_the_last_one_has_the_name(node: Fixture) -> None:
    assert (await claim(node), await claim(node, "other")) == (1, 1)
    await node.broker.append(batch(0, 1))
    assert await claim(node) == 2
    with pytest.raises(ProducerFencedError, match=r"incarnation 1 of producer 'n'.*is 2;"):
        await node.broker.append(batch(1, 1))
    await node.broker.append(batch(1, 2))
    await node.broker.append(batch(2, 1, name="other"))
    await node.broker.append(request(3, 4))
    for name, number in (("nobody", 0), ("nobody", 1), ("n", 3), ("n", 1 << 63)):
        with pytest.raises(ProducerFencedError):
            await node.broker.append(batch(9, number, name=name))
    assert node.log.store.reads.queue_range("orders", 0) == (0, 4)


async def test_no_append_comes_between_a_claim_and_its_end(node: Fixture) -> None:
    """The claim is written and not decided: what comes later lies behind it, and is refused."""
    await claim(node)
    before = await node.written(node.broker.append(batch(0, 1)))
    claiming = await node.written(claim(node))
    with pytest.raises(ProducerFencedError):
        await node.broker.append(batch(1, 1))
    another = await node.written(claim(node))
    claiming.cancel()  # Whoever gives up does not withdraw it.
    with pytest.raises(ProducerFencedError):
        await node.broker.append(batch(1, 2))
    node.driver.release()
    assert (await before).record_count == 1, "it lies before the claim"
    assert await another == 3
    assert numbers_of(node) == {"n": 3}


async def test_claims_of_one_moment_get_numbers_of_their_own(node: Fixture) -> None:
    assert await asyncio.gather(*(claim(node) for _ in range(3))) == [1, 2, 3]


@node_with(limits=Limits(own_append_count_max=1))
async def test_a_claim_that_is_refused_leaves_the_one_before_it(node: Fixture) -> None:
    """The first is in the log and not decided: a batch of an older one would lie behind it."""
    await claim(node)
    claiming = await node.written(claim(node))
    with pytest.raises(BusyError):
        await claim(node)
    with pytest.raises(ProducerFencedError):
        await node.broker.append(batch(0, 1))
    node.driver.release()
    assert await claiming == 2


async def test_a_repeated_batch_of_an_earlier_one_is_known(node: Fixture) -> None:
    """What is in the log already is answered, whoever has the name by now."""
    await claim(node)
    first = await node.broker.append(batch(0, 1, producer_id=7))
    await claim(node)
    again = await node.broker.append(batch(0, 1, producer_id=7))
    assert (again.is_duplicate, again.position) == (True, first.position)
    following = batch(1, 1, producer_id=7)
    following.sequence = 1
    with pytest.raises(ProducerFencedError):
        await node.broker.append(following)


def end_of(position: int, number: int, name: str = "n") -> EndTransactionRequest:
    return EndTransactionRequest(
        transaction_id=position,
        producer_group=GROUP,
        outcome=COMMITTED,
        producer_name=name,
        incarnation=number,
    )


async def test_an_earlier_one_ends_no_transaction_any_more(node: Fixture) -> None:
    """What it had ended before it hears again, and others of its group may end the rest."""
    end = node.broker.transactions.end_transaction
    number = await claim(node)
    opened = [await begun(node, lo, lo + 1) for lo in range(2)]
    assert not (await end(end_of(opened[0], number))).was_ended
    assert await claim(node) == number + 1
    assert (await end(end_of(opened[0], number))).was_ended
    for sender in (number, number + 2, 0):
        with pytest.raises(ProducerFencedError):
            await end(end_of(opened[1], sender))
    for name in ("", "a b", "x" * 300):
        with pytest.raises(BadRequestError, match="producer_name"):
            await end(end_of(opened[1], number, name))
    assert len(await stored(node)) == 1
    await end(end_of(opened[1], number + 1))
    assert len(await stored(node)) == 2


@node_with(**LARGE)
async def test_no_end_of_a_transaction_comes_behind_a_claim(node: Fixture) -> None:
    """A claim enters the log while the messages of an earlier one are made, in turns."""
    number = await claim(node)
    opened = await begun(node, 0, MANY)
    end = asyncio.create_task(node.broker.transactions.end_transaction(end_of(opened, number)))
    assert await claim(node) == number + 1
    with pytest.raises(ProducerFencedError):
        await end
    assert await stored(node) == []
    assert (await ended(node, opened)).outcome == COMMITTED


async def test_a_claim_that_the_log_lost_is_none(node: Fixture) -> None:
    await claim(node)
    claiming = await node.written(claim(node))
    node.driver.lose()
    node.driver.decide(0)
    with pytest.raises(NotAppliedError):
        await claiming
    with pytest.raises(NotLeaderError):
        await claim(node)
    node.driver.lead()
    node.driver.is_holding = False
    await node.broker.append(batch(0, 1))
    assert await claim(node) == 2


async def test_names_are_bounded_and_one_is_never_forgotten(tmp_path: Path) -> None:
    limits = Limits(producer_name_count_max=2)
    async with node_at(tmp_path, limits=limits) as node:
        for name in ("a", "b", "a"):
            await claim(node, name)
        with pytest.raises(LimitReachedError, match="names of producers"):
            await claim(node, "c")
        for name in ("", "a b", "x" * 300, "ä"):
            with pytest.raises(BadRequestError):
                await claim(node, name)
        image = node.machine.state.image()
        again = State(limits, decode_image(encode_image(image)))
        assert again.table(IncarnationsTable).numbers == {"a": 2, "b": 1}
        for name, number in (("a", 2), ("c", 1)):
            command = Command(claim_producer=Command.ClaimProducer(name=name, number=number))
            assert again.apply_command(command, 0) is not None, "every replica refuses it"
        assert again.table(IncarnationsTable).numbers == {"a": 2, "b": 1}


def test_a_state_without_names_has_no_part_of_it() -> None:
    """So nodes of before there were names read it."""
    image = State(Limits()).image()
    assert "producer_incarnations" not in image.tables
    with pytest.raises(ValueError, match="unknown form"):
        IncarnationsTable(Limits(), TableImage(1, {"else": {}}))
