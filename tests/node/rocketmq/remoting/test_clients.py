"""The table of classic clients: who pays for a member, and who may take its place."""

from unittest.mock import Mock

import pytest

from node.errors.common import BusyError
from node.rocketmq.remoting.clients import Clients, Consumption, Member, Subscription
from node.rocketmq.remoting.protocol.answers import RefusedError
from node.runtime.accounts import Account, Accounts, Kind, Limit

HERE, THERE = "10.0.0.1", "10.0.0.2"


def table() -> Clients:
    return Clients(Mock(), Mock(), monotonic_s=lambda: 0.0)


def member(account: Account, client_id: str = "a") -> Member:
    connection = Mock()
    connection.connection.is_ended = False
    return Member(client_id, connection, account, "JAVA", 453, 0.0, 0)


def reads(*topics: str, expression: str = "*", version: int = 1) -> Consumption:
    told = {topic: Subscription(topic, expression, False, version) for topic in topics}
    return Consumption("CONSUME_PASSIVELY", "CLUSTERING", "", told)


@pytest.mark.parametrize("limit", [Limit("members", 24), Limit("members", size_bytes_max=16_000)])
def test_a_heartbeat_is_taken_as_a_whole_or_not_at_all(limit: Limit) -> None:
    accounts, known = Accounts({Kind.MEMBERS: limit}), table()
    client = member(accounts.open(HERE))
    with pytest.raises(BusyError):
        known.put(client, ["p1", "p2"], {"c1": reads("t"), "c2": reads("t")})
    assert (known.count, known.producers, known.consumers) == (0, {}, {})
    known.put(client, ["p1"], {"c1": reads("t")})
    for _ in range(8):
        known.put(client, ["p1"], {"c1": reads("t")})
    assert accounts.held(Kind.MEMBERS)[0] == 2
    known.on_closed(client.connection)
    assert (accounts.held(Kind.MEMBERS), known._members_of) == ((0, 0), {})


def test_a_client_id_is_replaced_from_its_own_address_only() -> None:
    accounts, known = Accounts(), table()
    first, stranger, again = (member(accounts.open(host)) for host in (HERE, THERE, HERE))
    known.put(first, ["p"], {"c": reads("t")})
    for producers, consumers in ((["p"], {}), ([], {"c": reads("t")})):
        with pytest.raises(RefusedError, match=HERE):
            known.put(stranger, producers, consumers)
    for is_consumer, group in ((False, "p"), (True, "c")):
        with pytest.raises(RefusedError):
            known.leave(is_consumer, group, "a", stranger.account)
    known.put(again, ["p"], {"c": reads("t")})
    assert (known.count, first.account.is_empty) == (2, True)
    known.on_closed(first.connection)
    assert known.count == 2, "it goes on over the other connection"
    again.connection.connection.is_ended = True
    known.put(stranger, ["p"], {"c": reads("t")})
    known.leave(False, "p", "a", stranger.account)
    known.leave(True, "c", "a", stranger.account)
    assert (known.count, accounts.held(Kind.MEMBERS)) == (0, (0, 0))


def test_members_that_stay_pay_for_subscriptions_or_these_are_forgotten() -> None:
    long, limit = "x" * 3_000, Limit("members", size_bytes_max=40_000, address_part=1)
    accounts, known = Accounts({Kind.MEMBERS: limit}), table()
    first, second = (member(accounts.open(HERE), one) for one in "ab")
    known.put(second, [], {"c": reads("t1")})
    known.put(first, [], {"c": reads("t1", "t2", expression="y" * 500, version=2)})
    known.put(first, [], {"c": reads("t2", expression=long[:900], version=3)})
    known.on_closed(first.connection)
    assert second.account.is_empty is False
    assert second.account.sizes[Kind.MEMBERS] == known.consumers["c"].members["b"].size_bytes > 900
    third = member(accounts.open(HERE), "c")
    with pytest.raises(BusyError):
        known.put(third, [], {"c": reads("t2", expression=long * 2, version=4)})
    known.put(third, [], {"c": reads("t2", expression=long[:1_200], version=4)})
    second.account.take(Kind.MEMBERS, 5_000 - second.account.sizes[Kind.MEMBERS], 0)
    known.on_closed(third.connection)
    assert known.consumers["c"].topics == set()


def test_no_address_changes_what_another_one_reads() -> None:
    accounts, known = Accounts(), table()
    own, stranger = member(accounts.open(HERE)), member(accounts.open(THERE), "b")
    for first, second in ((own, stranger), (stranger, own)):
        for one in (first, second):
            expression, version = ("A", 1) if one is own else ("nothing", 1 << 62)
            known.put(one, [], {"c": reads("t", expression=expression, version=version)})
        group = known.consumers["c"]
        expressions = [group.subscription(host, "t") for host in (HERE, THERE)]
        assert [one.expression for one in expressions if one] == ["A", "nothing"]
        known.put(stranger, [], {"c": reads()})
        known.on_closed(stranger.connection)
        left = group.subscription(THERE, "t")
        assert (group.topics, left and left.expression) == ({"t"}, "A")
        known.on_closed(own.connection)
    assert accounts.held(Kind.MEMBERS) == (0, 0)
