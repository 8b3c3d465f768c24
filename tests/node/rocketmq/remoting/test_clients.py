"""The table of classic clients: who pays for a member, and who may take its place."""

from itertools import chain
from unittest.mock import Mock

import pytest

from node.errors.common import BusyError
from node.rocketmq.protocol.names import comparable
from node.rocketmq.remoting.clients import (
    RESERVED_COUNT_MAX,
    RESERVED_OF_ADDRESS_MAX,
    SILENT_S_MAX,
    Clients,
    Consumption,
    Member,
    Owner,
    ReservedIds,
    Subscription,
)
from node.rocketmq.remoting.protocol.answers import RefusedError
from node.runtime.accounts import Account, Accounts, Kind, Limit
from node.runtime.turn import Turn

HERE, THERE = "10.0.0.1", "10.0.0.2"


def table() -> Clients:
    return Clients(Mock(), Mock(), monotonic_s=lambda: 0.0)


def member(account: Account, client_id: str = "a") -> Member:
    connection = Mock()
    connection.connection.is_ended = False
    return Member(client_id, connection, account, "JAVA", 453, 0.0, 0)


def end(known: Clients, *gone: Member) -> None:
    for one in gone:
        one.connection.connection.is_ended = True
    steps = [known.on_closed(one.connection) for one in gone]
    shown = [one.connection for one in known.members((True, "c")).values()]
    assert not any(one.connection in shown for one in gone), "before the first step"
    list(chain(*steps))
    for one in gone:
        one.connection.connection.is_ended = False  # Tests have them join again.


def reads(*topics: str, expression: str = "*", version: int = 1) -> Consumption:
    subscriptions = {topic: Subscription(topic, expression, False) for topic in topics}
    versions = dict.fromkeys(subscriptions, version)
    return Consumption("CONSUME_PASSIVELY", "CLUSTERING", "", versions, subscriptions)


@pytest.mark.parametrize("limit", [Limit("members", 24), Limit("members", size_bytes_max=16_000)])
def test_a_heartbeat_is_taken_as_a_whole_or_not_at_all(limit: Limit) -> None:
    accounts, clients = Accounts({Kind.MEMBERS: limit}), table()
    client = member(accounts.open(HERE))
    with pytest.raises(BusyError):
        clients.put(client, ["p1", "p2"], {"c1": reads("t"), "c2": reads("t")})
    assert (clients.count, clients.producers, clients.consumers) == (0, {}, {})
    clients.put(client, ["p1"], {"c1": reads("t")})
    for _ in range(8):
        clients.put(client, ["p1"], {"c1": reads("t")})
    assert accounts.held(Kind.MEMBERS)[0] == 2
    end(clients, client)
    assert (accounts.held(Kind.MEMBERS), clients._members_of) == ((0, 0), {})


def test_a_client_id_is_replaced_from_its_own_address_only() -> None:
    accounts, clients = Accounts(), table()
    first, stranger, again = (member(accounts.open(host)) for host in (HERE, THERE, HERE))
    clients.put(first, ["p"], {"c": reads("t")})
    for producers, consumers in ((["p"], {}), ([], {"c": reads("t")})):
        with pytest.raises(RefusedError, match=HERE):
            clients.put(stranger, producers, consumers)
    for is_consumer, group in ((False, "p"), (True, "c")):
        with pytest.raises(RefusedError):
            clients.leave(is_consumer, group, "a", stranger.owner)
    clients.put(again, ["p"], {"c": reads("t")})
    assert (clients.count, first.account.is_empty) == (2, True)
    end(clients, first)
    assert clients.count == 2, "it goes on over the other connection"
    clients.leave(False, "p", "a", again.owner)
    clients.leave(True, "c", "a", again.owner)
    clients.put(stranger, ["p"], {"c": reads("t")})
    end(clients, stranger)
    assert (clients.count, accounts.held(Kind.MEMBERS)) == (0, (0, 0))


async def test_an_id_stays_with_the_address_whose_connection_broke() -> None:
    now_s, accounts = 0.0, Accounts()
    clients = Clients(Mock(), Mock(), monotonic_s=lambda: now_s)
    first, stranger, again = (member(accounts.open(host)) for host in (HERE, THERE, HERE))
    clients.put(first, ["p"], {"c": reads("t")})
    first.connection.connection.is_ended = True
    steps = clients.on_closed(first.connection)
    for _ in chain((None,), steps, (None,)):  # While its rows go, and when they have gone.
        with pytest.raises(RefusedError, match=HERE):
            clients.put(stranger, ["p"], {"c": reads("t")})
    assert (clients.count, accounts.held(Kind.MEMBERS)) == (0, (0, 0))
    clients.put(again, ["p"], {"c": reads("t")})
    assert len(clients._reserved._rows) == 0
    end(clients, again)
    now_s = SILENT_S_MAX
    clients.put(stranger, ["p"], {})
    await clients.expire(Turn())
    assert len(clients._reserved._rows) == 0, "its time is over for all others, too"


def test_reserved_ids_of_one_address_push_out_its_own_only() -> None:
    reserved = ReservedIds(lambda: 0.0)
    reserved.put((True, "c", "victim"), Owner(HERE, ""))
    for host in map(str, range(RESERVED_COUNT_MAX // RESERVED_OF_ADDRESS_MAX)):
        for number in range(RESERVED_OF_ADDRESS_MAX + 1):
            reserved.put((True, "c", f"{host}.{number}"), Owner(host, ""))
    assert (len(reserved._rows), reserved.owner((True, "c", "victim"))) == (
        RESERVED_COUNT_MAX,
        Owner(HERE, ""),
    )
    assert reserved.owner((True, "c", "0.0")) is None


@pytest.mark.parametrize("host", [HERE, THERE])
def test_no_member_changes_what_another_one_reads(host: str) -> None:
    """Nor of its own address: not when it joins, changes or leaves, in any order."""
    accounts, clients = Accounts(), table()
    own, other = member(accounts.open(HERE)), member(accounts.open(host), "b")
    for order in ((own, other), (other, own)):
        for one in order:
            consumption = reads("t", "u", expression="x" * 500, version=1 << 62)
            clients.put(one, [], {"c": reads("t", expression="A") if one is own else consumption})
        group, size_bytes = clients.consumers["c"], own.account.sizes[Kind.MEMBERS]
        for host_of, expected in ((HERE, "A" if host is THERE else None), ("10.0.0.3", None)):
            subscription = group.subscription("no member", host_of, "t")
            assert (subscription[0].expression if subscription else None) == expected
        for change in (reads("t", "v", expression="C", version=1 << 63), reads(), None):
            if change is None:
                end(clients, other)
            else:
                clients.put(other, [], {"c": change})
            reported, subscription = clients.reported("c"), group.subscription("a", HERE, "t")
            assert (subscription and subscription[0].expression) == "A"
            assert group.subscription("a", HERE, "u") is None
            assert reported is not None
            assert reported.filters["a"] == {"t": "A"}
            assert own.account.sizes[Kind.MEMBERS] == size_bytes
        end(clients, own)
    assert accounts.held(Kind.MEMBERS) == (0, 0)


def test_expressions_that_mean_the_same_are_the_same_to_the_leader() -> None:
    for texts in (("a||b", " b || a ", "a || b||"), ("*", "", " * ")):
        forms = {Subscription("t", text, False).comparable for text in texts}
        assert forms == {comparable(texts[0], is_sql=False)}


def test_members_that_read_the_same_share_what_they_told() -> None:
    accounts, users = Accounts(), table()
    for version in range(99):
        users.put(member(accounts.open(HERE), str(version)), [], {"c": reads("t", version=version)})
    rows = users.consumers["c"].members.values()
    assert len({id(one.consumption.subscriptions) for one in rows}) == 1
    assert [one.consumption.versions["t"] for one in rows] == [*range(99)]
