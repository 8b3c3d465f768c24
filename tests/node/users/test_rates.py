"""Rates of users: what passes, what waits for it, and for how long."""

from collections import Counter
from random import Random

import pytest

from node.errors.users import RateLimitedError
from node.runtime.accounts import Accounts, on_behalf_of
from node.users.calling import calling, check_debt, received
from node.users.credentials import digest_of
from node.users.guard import Caller, Guard
from node.users.needs import NEEDS
from node.users.rates import Meter, UserRows
from node.users.users import Credential, Rates, User, Users
from quorumlog.pb.log_pb2 import PullRequest

PULL = "LogService/Pull"
TOKEN = {"t": Credential(token_sha256=digest_of("token"))}


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def guarded(clock: Clock, **rates: int) -> Guard:
    guard = Guard("on", lambda: 0)
    vars(guard)["rows"] = UserRows(clock)
    change(guard, **rates)
    return guard


def change(guard: Guard, **rates: int) -> None:
    user = User("shop", ("producer-consumer:shop-",), False, TOKEN, Rates(**rates), 1)
    guard.look(Users({"shop": user}, {}))


def pull(guard: Guard) -> None:
    row = NEEDS[PULL]
    with guard.serving(guard.by_token("token"), PULL, row, PullRequest(topic="shop-a")):
        check_debt()
        received(1_000, 10)


async def test_a_large_batch_passes_and_the_next_one_waits_for_it() -> None:
    clock = Clock()
    guard = guarded(clock, bytes_per_second=100)
    shop = guard.by_token("token")
    shop.publish([(b"shop-a", 0)], 9_100, 1)
    with pytest.raises(RateLimitedError) as refused:
        shop.publish([(b"shop-a", 0)], 1, 1)
    assert refused.value.retry_after_ms == 10_000
    assert str(refused.value).startswith("bytes a second of user 'shop' are over the limit, 100;")
    clock.now_s += 90.1
    shop.publish([(b"shop-a", 0)], 1, 1)
    assert guard.rows.refused["bytes"] == 1


def test_no_more_passes_than_the_rate_a_burst_and_one_batch() -> None:
    clock, random, passed = Clock(), Random(7), 0
    meter = Meter("it", (1_000, 0), Counter(), clock)
    for _ in range(20_000):
        clock.now_s += random.expovariate(50)
        size_bytes = random.randint(1, 500)
        try:
            meter.take(size_bytes, 1)
        except RateLimitedError as error:
            if random.random() < 0.5:
                clock.now_s += error.retry_after_ms / 1000 + 1e-9
                meter.take(size_bytes, 1)  # As it was told to.
                passed += size_bytes
        else:
            passed += size_bytes
    allowed = 1_000 * (clock.now_s - Clock.now_s)
    assert 0.98 * allowed < passed <= allowed + 1_000 + 500


async def test_reads_requests_and_other_users_have_their_own_buckets() -> None:
    clock = Clock()
    guard = guarded(clock, messages_per_second=5, requests_per_second=2)
    pull(guard)
    with pytest.raises(RateLimitedError, match="messages") as refused:
        pull(guard)
    assert refused.value.retry_after_ms == 1_000
    with pytest.raises(RateLimitedError, match="requests"):
        pull(guard)
    clock.now_s += 1.1
    pull(guard)
    change(guard)
    for _ in range(10):  # Without rates nothing waits, on calls that come now.
        pull(guard)


async def test_connections_of_a_user_are_counted_until_they_close() -> None:
    guard, accounts = guarded(Clock(), connections=2), Accounts()
    connections = [accounts.open("10.0.0.1") for _ in range(3)]

    def call(number: int) -> None:
        with on_behalf_of(connections[number]):
            pull(guard)

    for number in (0, 1, 0):
        call(number)
    with pytest.raises(RateLimitedError, match="connections of user 'shop'"):
        call(2)
    caller = guard.by_token("token")
    caller.account = connections[2]
    with pytest.raises(RateLimitedError, match="connections"):
        caller.publish([(b"shop-a", 0)], 1, 1)  # Over frames, which append without `serving`.
    connections[0].close()
    call(2)
    assert isinstance(calling(), Caller)


async def test_a_user_that_is_made_again_has_its_debt_and_its_connections() -> None:
    guard, accounts = guarded(Clock(), messages_per_second=5, connections=1), Accounts()
    connections = [accounts.open("10.0.0.1") for _ in range(2)]
    with on_behalf_of(connections[0]):
        pull(guard)
    guard.look(Users({}, {}))
    change(guard, messages_per_second=5, connections=1)
    for connection, what in zip(connections, ("messages", "connections"), strict=True):
        with on_behalf_of(connection), pytest.raises(RateLimitedError, match=what):
            pull(guard)
    connections[0].close()
    guard.look(Users({}, {}))
    assert not guard.rows._rows
