"""Accounts: three levels, their limits, leases of the hot path, and that all is given back; rooms
of tables, of which one address has half."""

import asyncio
from random import Random

import pytest

from node.errors.common import BusyError
from node.runtime.accounts import (
    LEASE_COUNT,
    LEASE_SIZE_BYTES,
    Account,
    Accounts,
    Charge,
    Kind,
    Lease,
    Limit,
    caller,
    on_behalf_of,
)
from node.runtime.room import Room
from node.runtime.shares import DECIDED_MS, Shares
from tests.seeds import FRESH, chosen

SMALL = {kind: Limit(f"{kind.name.lower()} of a test", 16, 1_600) for kind in Kind}
"""An address has 8 of each with 800 bytes, a connection 2 with 200."""


def refusal(accounts: Accounts, host: str, kind: Kind, size_bytes: int = 0) -> str:
    """Charge new connections of an address until one is refused; return what it says."""
    for _ in range(100):
        try:
            accounts.open(host).charge(kind, size_bytes)
        except BusyError as error:
            return str(error)
    raise AssertionError("nothing was refused")


@pytest.mark.parametrize("kind", Kind)
def test_a_connection_an_address_and_the_node_have_limits_in_number_and_bytes(kind: Kind) -> None:
    name = SMALL[kind].name
    for size_bytes, unit in ((1, ""), (199, "bytes of ")):
        accounts = Accounts(SMALL)
        account = accounts.open("10.0.0.1")
        for _ in range(1 if unit else 2):
            account.charge(kind, size_bytes)
        with pytest.raises(BusyError, match=f"{unit}{name} of one connection") as error:
            account.charge(kind, size_bytes)
        assert error.value.retryable
        assert f"{unit}{name} of 10.0.0.1" in refusal(accounts, "10.0.0.1", kind, size_bytes)
        # Two others have what is left, whatever the first one does.
        for host in ("10.0.0.2", "10.0.0.3"):
            accounts.open(host).charge(kind, size_bytes)
        assert f"{unit}{name} of all callers" in refusal(accounts, "10.0.0.2", kind, size_bytes)
        assert accounts.refused[kind.name.lower()] == 3


def test_a_refused_charge_holds_nothing_and_a_released_one_makes_room() -> None:
    accounts = Accounts(SMALL)
    account = accounts.open("10.0.0.1")
    charge = account.charge(Kind.LOCKS, 100)
    charge.resize(180)
    with pytest.raises(BusyError):
        charge.resize(201)
    with pytest.raises(BusyError):
        account.charge(Kind.LOCKS, 100)
    assert accounts.held(Kind.LOCKS) == (1, 180)
    charge.resize(20)
    account.charge(Kind.LOCKS, 180).release()
    for _ in range(2):
        charge.release()
    assert accounts.held(Kind.LOCKS) == (0, 0)


def test_what_outlives_its_connection_stays_charged_until_it_ends() -> None:
    accounts = Accounts(SMALL)
    account = accounts.open("10.0.0.1")
    charge = account.charge(Kind.CALLS)
    account.close()
    account.close()
    assert (len(accounts.addresses), accounts.total.is_empty) == (1, False)
    charge.release()
    assert (len(accounts.addresses), accounts.total.is_empty) == (0, True)
    late = account.charge(Kind.CALLS)  # A part of it still worked.
    other = accounts.open("10.0.0.1")
    assert late.account.address is other.address
    late.release()
    other.close()
    assert len(accounts.addresses) == 0


def test_a_client_that_another_node_speaks_for_has_an_account_while_it_holds_something() -> None:
    accounts = Accounts(SMALL)
    charges = [accounts.of_remote("10.0.0.9", "10.0.0.9:77").charge(Kind.CALLS) for _ in range(2)]
    with pytest.raises(BusyError, match="of one connection"):
        accounts.of_remote("10.0.0.9", "10.0.0.9:77").charge(Kind.CALLS)
    accounts.settle()
    assert len(accounts.addresses) == 1
    for charge in charges:
        charge.release()
    accounts.settle()
    assert len(accounts.addresses) == 0
    accounts.of_remote("10.0.0.9", "10.0.0.9:77").charge(Kind.CALLS).release()
    accounts.settle()
    assert len(accounts.addresses) == 0
    accounts.of_remote("10.0.0.8", "10.0.0.8:77")
    accounts.settle()
    assert (len(accounts.addresses), len(accounts._remotes)) == (0, 0), "it holds nothing"


def test_leases_that_wait_take_nothing_from_others_where_many_are_busy() -> None:
    limit = 64 * LEASE_COUNT
    accounts = Accounts({Kind.CALLS: Limit("calls", limit, limit * LEASE_SIZE_BYTES)})
    leases = [Lease(accounts.open("10.0.0.1")) for _ in range(limit // 2 - LEASE_COUNT)]
    for _ in range(3):
        for lease in leases:  # Each has a call under way.
            lease.count, lease.size_bytes = 1, 100
            if lease.count > lease.count_granted or lease.size_bytes > lease.size_granted:
                lease.grow()
        for lease in leases:
            lease.count = lease.size_bytes = 0
    assert accounts.refused["calls"] == 0


def test_a_lease_takes_in_steps_and_gives_back_what_it_does_not_use() -> None:
    accounts = Accounts({Kind.CALLS: Limit("calls", 64 * LEASE_COUNT)})
    account = accounts.open("10.0.0.1")
    lease = Lease(account)
    limit = account.limits[Kind.CALLS][0]
    for used in range(1, limit + 1):
        lease.count += 1
        if lease.count > lease.count_granted:
            lease.grow()
        assert used <= lease.count_granted == accounts.held(Kind.CALLS)[0] <= limit
    lease.count += 1
    with pytest.raises(BusyError, match="calls of one connection"):
        lease.grow()
    lease.count = 3
    accounts.settle()
    assert accounts.held(Kind.CALLS) == (3, 0)
    lease.count = 0
    accounts.settle()
    account.close()
    assert len(accounts.addresses) == 0


@pytest.mark.parametrize("seed", [1, 2, FRESH])
def test_sums_are_those_of_the_charges_after_any_order_of_calls(seed: int | str) -> None:
    again = "tests/node/runtime/test_accounts.py -k fresh"
    random, accounts = Random(chosen(seed, again)), Accounts(SMALL)
    charges: list[Charge] = []
    opened = [accounts.open(f"10.0.0.{number % 3}") for number in range(9)]
    for _ in range(3_000):
        try:
            match random.randrange(4):
                case 0 | 1:
                    account = random.choice(opened)
                    charges.append(account.charge(Kind(random.randrange(12)), random.randrange(90)))
                case 2 if charges:
                    charges.pop(random.randrange(len(charges))).release()
                case 3 if charges:
                    random.choice(charges).resize(random.randrange(90))
        except BusyError:
            pass
        if random.random() < 0.01:
            opened.pop(random.randrange(len(opened))).close()
            opened.append(accounts.open(f"10.0.0.{random.randrange(3)}"))
        for kind in Kind:
            of_kind = [one for one in charges if one.kind is kind]
            sums = len(of_kind), sum(one.size_bytes for one in of_kind)
            assert sums == accounts.held(kind)
    for account in opened:
        account.close()
    for charge in charges:
        charge.release()
    assert accounts.total.is_empty
    assert len(accounts.addresses) == 0


async def test_calls_know_their_caller_and_the_work_of_the_node_has_none() -> None:
    accounts = Accounts(SMALL)
    first, second = accounts.open("10.0.0.1"), accounts.open("10.0.0.2")

    async def work() -> object:
        await asyncio.sleep(0)
        return caller()

    tasks = [asyncio.create_task(work(), context=who.context) for who in (first, second, first)]
    assert await asyncio.gather(*tasks) == [first, second, first]
    assert caller() is None
    with on_behalf_of(second):
        assert caller() is second
    assert caller() is None


def test_durable_things_are_held_by_name_until_they_are_gone() -> None:
    accounts, there, opened, now_ms = Accounts(SMALL), set[str](), list[Account](), 0
    shares = Shares(Kind.NAMES, there.__contains__, lambda: now_ms)

    def made(host: str, name: str) -> None:
        opened.append(accounts.open(host))
        with on_behalf_of(opened[-1]):
            shares.check(name)
        there.add(name)

    for number in range(8):
        made("10.0.0.1", f"g{number}")
    made("10.0.0.1", "g3")  # It made this one before.
    with pytest.raises(BusyError, match=r"of 10\.0\.0\.1"):
        made("10.0.0.1", "more")
    made("10.0.0.2", "other")
    shares.check("own")
    there.discard("g5")
    with pytest.raises(BusyError, match="8 held"):  # It may not be there yet.
        made("10.0.0.1", "more")
    now_ms += DECIDED_MS
    made("10.0.0.1", "more")
    with pytest.raises(BusyError, match=r"of 10\.0\.0\.1"):
        made("10.0.0.1", "more of it")
    assert accounts.held(Kind.NAMES)[0] == 9
    for account in opened:
        account.close()
    assert len(accounts.addresses) == 2
    shares.clear()
    assert len(accounts.addresses) == 0


def test_a_network_of_ipv6_counts_as_one_address() -> None:
    accounts = Accounts(SMALL)
    same = [accounts.open(host).address for host in ("2001:db8::1", "2001:db8::ffff:2")]
    assert same[0] is same[1]
    assert accounts.open("::ffff:10.0.0.1").address is accounts.open("10.0.0.1").address
    assert accounts.open("::1").address is not accounts.open("2001:db8:0:1::1").address


def test_one_address_leaves_half_of_the_room_to_others() -> None:
    room, accounts = Room("readers", 8), Accounts()
    with on_behalf_of(accounts.open("10.0.0.1")):
        own = [room.take(), room.take(3)]
        with pytest.raises(BusyError, match=r"readers of 10\.0\.0\.1: 4 held, the limit is 4"):
            room.take()
    with on_behalf_of(accounts.open("10.0.0.2")):
        other = room.take(4)
    with pytest.raises(BusyError, match="readers: 8 held"):
        room.take()
    room.give_back(own[0])
    assert room.take() == ""
    for host, count in ((own[1], 3), (other, 4), ("", 1)):
        room.give_back(host, count)
    assert (room.used, dict(room._by_host)) == (0, {})
