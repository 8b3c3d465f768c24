"""Durable things: one address makes its share, the others get service all the same."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from node.config.limits import Limits
from node.errors.common import BusyError
from node.runtime.accounts import LIMITS, Accounts, Kind, Limit, on_behalf_of
from node.runtime.shares import DECIDED_MS
from node.state.state import PERMISSION_ALL
from quorumlog.pb.log_pb2 import ClaimProducerRequest
from quorumlog.pb.retry_pb2 import RetryLaterRequest, RetryMessage
from quorumlog.pb.state_pb2 import Command
from quorumlog.pb.transaction_pb2 import CommitConsumedRequest, ConsumedOffset, ConsumedOffsets
from store.record.topic_names import retry_topic
from tests.node.broker.pop.pop_calls import ack, receive
from tests.node.broker.pop.pop_calls import send as send_to_pop
from tests.node.broker_fakes import Fixture, node_with
from tests.node.delayed import delayed
from tests.node.delayed import send as send_delayed
from tests.node.transaction_calls import begun, ended

_HOURS_MS = 12 * 3_600_000


async def commit(node: Fixture, name: str) -> None:
    await node.commit(name, ("orders", 0, 0))


async def commit_consumed(node: Fixture, name: str) -> None:
    row = ConsumedOffset(topic="orders", queue_id=0, offset=0, expected=-1)
    consumed = ConsumedOffsets(group=name, offsets=[row])
    await node.broker.consumed.commit_consumed(CommitConsumedRequest(consumed=consumed))


async def give_back(node: Fixture, name: str) -> None:
    given = RetryMessage(topic="orders", queue_id=0, offset=0)
    await node.broker.retry.retry_later(RetryLaterRequest(group=name, messages=[given]))


async def put_retry_topic(node: Fixture, name: str) -> None:
    put = Command.PutTopic(topic=retry_topic(name), queue_count=1, permission=PERMISSION_ALL)
    await node.broker.own_appends.submit(Command(put_topic=put))


async def put_key(node: Fixture, name: str, value: str | None = "") -> None:
    put = Command.PutKeyValue(namespace="n\n", key=name, value=value)
    await node.broker.own_appends.submit(Command(put_key_value=put))


async def claim(node: Fixture, name: str) -> None:
    await node.broker.incarnations.claim_producer(ClaimProducerRequest(name=name))


async def pop(node: Fixture, name: str) -> Any:
    delivery = await receive(node, 1, group=name, invisible_ms=_HOURS_MS)
    return name, *delivery


async def delete_group(node: Fixture, name: str, _made: Any) -> None:
    await node.delete_group(name)


async def delete_topic(node: Fixture, name: str, _made: Any) -> None:
    delete = Command.DeleteTopic(topic=retry_topic(name))
    await node.broker.own_appends.submit(Command(delete_topic=delete))


async def pass_time(node: Fixture, _name: str, _made: Any) -> None:
    node.clock.now_ms += 60_000


class Thing(NamedTuple):
    kind: Kind
    make: Callable[[Fixture, str], Awaitable[Any]]
    end: Callable[[Fixture, str, Any], Awaitable[Any]] | None
    """None: it stays for ever."""


THINGS = {
    "groups by commits": Thing(Kind.NAMES, commit, delete_group),
    "groups by commits of what was consumed": Thing(Kind.NAMES, commit_consumed, delete_group),
    "groups by messages given back": Thing(Kind.NAMES, give_back, delete_group),
    "groups by receives": Thing(Kind.NAMES, pop, delete_group),
    "topics of groups": Thing(Kind.NAMES, put_retry_topic, delete_topic),
    "offsets": Thing(Kind.OFFSETS, commit, delete_group),
    "offsets of pop": Thing(Kind.OFFSETS, pop, delete_group),
    "names of producers": Thing(Kind.PRODUCERS, claim, None),
    "keys": Thing(Kind.KEYS, put_key, lambda node, name, _: put_key(node, name, None)),
    "half messages": Thing(
        Kind.TRANSACTIONS,
        lambda node, _: begun(node, 0, 1),
        lambda node, _, position: ended(node, position),
    ),
    "messages handed out": Thing(
        Kind.DELIVERIES, pop, lambda node, name, made: ack(node, *made[1:], group=name)
    ),
    "messages handed out of groups that are deleted": Thing(Kind.DELIVERIES, pop, delete_group),
    "messages handed out of queues that are reset": Thing(
        Kind.DELIVERIES, pop, lambda node, name, _: commit(node, name)
    ),
    "delayed messages": Thing(
        Kind.DELAYED,
        lambda node, _: send_delayed(node, delayed(1, TIMER_DELAY_SEC="50")),
        pass_time,
    ),
    "messages given back": Thing(Kind.DELAYED, give_back, pass_time),
}


@pytest.mark.parametrize("name", THINGS)
@node_with(topics={"orders": 1})
async def test_an_address_makes_its_share_and_others_are_served(name: str, node: Fixture) -> None:
    kind, make, end = THINGS[name]
    accounts = Accounts({kind: Limit(LIMITS[kind].name, 16, connection_part=1)})
    stranger, user = accounts.open("10.0.0.1"), accounts.open("10.0.0.2")
    await node.append(0, 1)
    made: dict[str, Any] = {}

    async def flood() -> None:
        for number in range(16):
            made[f"s{number}"] = await make(node, f"s{number}")

    with on_behalf_of(stranger):
        with pytest.raises(BusyError, match=rf"^{LIMITS[kind].name} of 10\.0\.0\.1: 8 held"):
            await flood()
        assert len(made) == 8
        if kind is Kind.NAMES:  # What is there already may be used.
            await commit(node, "s0")
    assert accounts.refused[kind.name.lower()] == 1
    await make(node, "own")
    with on_behalf_of(user):
        made["user"] = await make(node, "user")
    assert accounts.held(kind)[0] == 9
    if end is not None:
        for one, what in made.items():
            await end(node, one, what)
    node.clock.now_ms += DECIDED_MS
    with on_behalf_of(stranger):
        if end is None:
            with pytest.raises(BusyError):
                await make(node, "again")
        else:
            await make(node, "again")
    for account in (stranger, user):
        account.close()
    node.driver.lose()  # A new leader knows no makers.
    assert (accounts.held(kind)[0], len(accounts.addresses)) == (0, 0)


async def test_administration_has_no_share(node: Fixture) -> None:
    accounts = Accounts({Kind.NAMES: Limit("names", 1)})
    with on_behalf_of(accounts.open("10.0.0.1")):
        for number in range(3):
            await node.create_topic(f"t{number}")
    assert accounts.held(Kind.NAMES)[0] == 0


@node_with(limits=Limits(pop_window_count_max=8), topics={"orders": 1})
async def test_an_address_has_half_of_a_queue_of_somebody_elses_group(node: Fixture) -> None:
    accounts = Accounts()
    stranger, user = accounts.open("10.0.0.1"), accounts.open("10.0.0.2")
    await send_to_pop(node, *(f"m{number}" for number in range(12)))
    with on_behalf_of(stranger):
        taken = await receive(node, 12, invisible_ms=_HOURS_MS)
        assert len(taken) == 4
        assert not await receive(node, 12)
    with on_behalf_of(user):
        users = await receive(node, 12, invisible_ms=1_000)
        assert len(users) == 4
    with on_behalf_of(stranger):
        # The same one often, at once: it counts once.
        await asyncio.gather(*(ack(node, taken[0]) for _ in range(4)))
        assert len(await receive(node, 12, invisible_ms=_HOURS_MS)) == 1
        assert not await receive(node, 12)
        # What the other one did not acknowledge in time goes over to who is given it.
        node.clock.now_ms += 2_000
        assert [got.body for got in await receive(node, 12)] == [got.body for got in users]
    assert accounts.held(Kind.DELIVERIES)[0] == 8
    with on_behalf_of(user):
        assert not await receive(node, 12)
        await ack(node, *taken)
        assert [got.body for got in await receive(node, 12)] == ["m9", "m10", "m11"]


@node_with(topics={"orders": 1})
async def test_a_send_that_is_not_stored_leaves_the_share_as_it_was(node: Fixture) -> None:
    accounts = Accounts()
    with on_behalf_of(accounts.open("10.0.0.1")):
        half = await node.written(begun(node, 0, 1))
        wait = await node.written(send_delayed(node, delayed(1, TIMER_DELAY_SEC="50")))
    kinds = (Kind.TRANSACTIONS, Kind.DELAYED)
    assert [accounts.held(kind)[0] for kind in kinds] == [1, 1]
    node.driver.decide(0)
    await asyncio.gather(half, wait, return_exceptions=True)
    assert [accounts.held(kind)[0] for kind in kinds] == [0, 0]


def test_the_limits_of_accounts_are_those_of_the_tables() -> None:
    limits = Limits()
    assert LIMITS[Kind.TRANSACTIONS].count_max == limits.open_transaction_count_max
    assert LIMITS[Kind.DELIVERIES].count_max == limits.pop_in_flight_count_max
    assert LIMITS[Kind.OFFSETS].count_max == limits.offset_count_max
    assert LIMITS[Kind.PRODUCERS].count_max == limits.producer_name_count_max
    assert LIMITS[Kind.DELAYED].count_max == limits.delayed_count_max
    assert LIMITS[Kind.NAMES].count_max <= min(limits.topic_count_max, limits.group_count_max)
