"""The guard: who calls, and the end of a call whose right is taken while it waits."""

import asyncio
import hashlib
import hmac
import statistics
import time
from dataclasses import replace

import pytest

from node.errors.translation import describe
from node.errors.users import ForbiddenError, UnauthenticatedError
from node.users.calling import calling, may, require
from node.users.credentials import SecretBox, digest_of
from node.users.guard import Caller, Guard
from node.users.needs import NEEDS
from node.users.node_proofs import BadProofError
from node.users.rules import Action, Need, ResourceKind
from node.users.users import Credential, Rates, User, Users
from quorumlog.pb.log_pb2 import PullRequest, RouteRequest
from quorumlog.pb.nameserver_pb2 import ReportRequest
from store.errors import Outcome

BOX = SecretBox(b"k" * 32)
PULL = "LogService/Pull"
STREAM = "LogService/AppendStream"
ENDS_MS = 1_000


def user(name: str, *roles: str, **credentials: Credential) -> User:
    return User(name, roles, False, credentials, Rates(), 1)


@pytest.mark.long
def test_an_unknown_key_takes_as_long_as_a_wrong_secret() -> None:
    guard = guarded(SHOP)
    mac = hmac.digest(b"wrong", b"text", "sha1")

    def took_ns(key: str) -> int:
        began_ns = time.perf_counter_ns()
        for _ in range(50):
            found = guard.by_signature(
                key, lambda tried: hmac.compare_digest(hmac.digest(tried, b"text", "sha1"), mac)
            )
        assert found.is_nobody
        return time.perf_counter_ns() - began_ns

    ratio = statistics.median(took_ns("kez") / took_ns("key") for _ in range(2_000))
    assert ratio == pytest.approx(1, abs=0.05)


def users(*those: User) -> Users:
    return Users({one.name: one for one in those}, {})


SHOP = user(
    "shop",
    "producer-consumer:shop-",
    token=Credential(token_sha256=digest_of("token")),
    short=Credential(token_sha256=digest_of("short"), expires_unix_ms=ENDS_MS),
    key=Credential(sealed_secret=BOX.seal("key", b"secret of shop")),
    sealed_elsewhere=Credential(sealed_secret=SecretBox(b"l" * 32).seal("key", b"secret")),
    certificate=Credential(certificate="DNS:shop.example"),
)


def guarded(*those: User, now_ms: int = 0) -> Guard:
    guard = Guard("on", lambda: now_ms, BOX)
    guard.look(users(*those))
    return guard


def callers(guard: Guard) -> dict[str, Caller]:
    def with_secret(key: str, secret: bytes) -> Caller:
        mac = hmac.new(secret, b"text", hashlib.sha1).digest()
        return guard.by_signature(
            key, lambda tried: hmac.new(tried, b"text", hashlib.sha1).digest() == mac
        )

    return {
        "token": guard.by_header("Bearer token"),
        "lower case": guard.by_header("bearer  token"),
        "key": with_secret("key", b"secret of shop"),
        "certificate": guard.by_certificate(["CN=x", "DNS:shop.example"]),
        "no header": guard.by_header(""),
        "basic": guard.by_header("Basic dG9rZW4="),
        "wrong token": guard.by_header("Bearer token2"),
        "ended token": guard.by_header("Bearer short"),
        "long token": guard.by_header("Bearer " + "t" * 10_000),
        "wrong secret": with_secret("key", b"secret of soap"),
        "unknown key": with_secret("kex", b"\0" * 32),
        "sealed elsewhere": with_secret("sealed_elsewhere", b"secret"),
        "other certificate": guard.by_certificate(["CN=shop.example"]),
        "no certificate": guard.by_certificate([]),
    }


GOOD = ("token", "lower case", "key", "certificate")
WHY = {
    "no header": "shows no credential; .*; name the file of a token: qlog --token-file FILE",
    "ended token": "the token of user 'shop' has ended; .* until .*: qlog user token add shop$",
    "wrong token": "the token is unknown; no user of .*: qlog user token add USER$",
    "wrong secret": "access key 'key' is unknown, or .*; no user .*: qlog user key add USER",
    "other certificate": "CN=shop.example; .*: qlog user certificate add USER CN=shop.example$",
}


def test_a_credential_makes_a_caller_and_nothing_else_does() -> None:
    guard = guarded(SHOP, now_ms=ENDS_MS)
    for what, caller in callers(guard).items():
        if what in GOOD:
            assert caller.rights.user is SHOP, what
        else:
            with pytest.raises(UnauthenticatedError, match=WHY.get(what, "; .*; ")):
                _ = caller.rights


@pytest.mark.parametrize(
    "later",
    [
        users(),
        users(replace(SHOP, is_disabled=True)),
        users(user("shop", "admin", token=Credential(token_sha256=digest_of("new")))),
    ],
    ids=["deleted", "disabled", "other credentials"],
)
def test_a_caller_is_no_user_once_its_credential_is_gone(later: Users) -> None:
    guard = guarded(SHOP)
    known = [caller for what, caller in callers(guard).items() if what in GOOD]
    guard.look(later)
    for caller in known:
        with pytest.raises(UnauthenticatedError):
            caller.publish([(b"shop-a", 0)])


async def test_a_call_is_made_in_the_name_of_its_caller() -> None:
    guard = guarded(SHOP)
    caller = guard.by_token("token")
    assert may(Action.SUB, ResourceKind.TOPIC, "other"), "the node itself may do everything"
    with guard.serving(caller, PULL, NEEDS[PULL], PullRequest(topic="shop-a", group="shop-g")):
        assert calling() is caller
        assert may(Action.SUB, ResourceKind.TOPIC, "shop-b")
        assert not may(Action.SUB, ResourceKind.TOPIC, "other")
        with pytest.raises(ForbiddenError, match="'shop' lacks Sub on Topic:other"):
            require(Action.SUB, ResourceKind.TOPIC, "other")


@pytest.mark.parametrize(
    "request_", [PullRequest(topic="other"), PullRequest(topic="shop-a", group="other")]
)
async def test_all_that_a_call_needs_is_needed(request_: PullRequest) -> None:
    guard = guarded(SHOP)
    refused = []
    guard.on_refused = lambda caller, method, _error: refused.append((caller.name, method))
    with (
        pytest.raises(ForbiddenError),
        guard.serving(guard.by_token("token"), PULL, NEEDS[PULL], request_),
    ):
        raise AssertionError("it was served")
    assert refused == [("shop", PULL)]
    assert guard.refused["forbidden"] == 1


def test_names_of_any_size_are_decided_and_not_kept() -> None:
    shop = guarded(replace(SHOP, roles=("admin",))).by_token("token")
    need = Need(Action.SUB, ResourceKind.TOPIC, "a" * 1_000)
    assert shop.may(need)
    assert need not in shop.rights._decisions
    shop.publish([(b"rmq_sys_a", 0)])
    assert b"rmq_sys_a" not in shop.rights.may_publish


@pytest.mark.parametrize(
    ("how", "method"),
    [("deleted", PULL), ("role", PULL), ("ended", PULL), ("deleted", STREAM), ("ended", STREAM)],
)
async def test_a_call_that_waits_ends_when_its_right_is_taken(how: str, method: str) -> None:
    now_ms = 0
    guard = Guard("on", lambda: now_ms, BOX)
    guard.look(users(SHOP))
    begun = asyncio.Event()

    async def wait(token: str) -> None:
        request = PullRequest(topic="shop-a")
        with guard.serving(guard.by_token(token), method, NEEDS[method], request):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(wait("short" if how == "ended" else "token"))
    await begun.wait()
    if how == "deleted":
        guard.look(users())
    elif how == "role":
        guard.look(users(replace(SHOP, roles=("producer-consumer:soap-",))))
    else:
        now_ms = ENDS_MS
        guard.end_forbidden(lambda caller: caller.ends)
    with pytest.raises(ForbiddenError if how == "role" else UnauthenticatedError) as raised:
        await task
    is_done = describe(raised.value).outcome
    assert is_done is (Outcome.UNKNOWN if method == STREAM else Outcome.NOT_APPLIED)


async def test_a_change_ends_calls_in_slices_and_the_next_one_begins_anew() -> None:
    guard = guarded(SHOP)

    async def wait() -> None:
        request = PullRequest(topic="shop-a")
        with guard.serving(guard.by_token("token"), PULL, NEEDS[PULL], request):
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(wait()) for _ in range(1_000)]
    await asyncio.sleep(0)
    guard.look(users(replace(SHOP, roles=("admin",))))
    await asyncio.sleep(0)  # Half of them were found allowed.
    guard.look(users())
    await asyncio.sleep(0)
    assert sum(map(asyncio.Task.cancelling, tasks)) == 256
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(end) for end in ends} == {UnauthenticatedError}


async def test_a_call_that_keeps_its_right_goes_on_and_its_own_end_is_its_own() -> None:
    guard = guarded(SHOP)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        request = PullRequest(topic="shop-a")
        with guard.serving(guard.by_token("token"), PULL, NEEDS[PULL], request):
            begun.set()
            await go_on.wait()
            return "served"

    tasks = [asyncio.create_task(wait()) for _ in range(2)]
    await begun.wait()
    await asyncio.sleep(0)
    guard.look(users(replace(SHOP, roles=("admin",))))
    tasks[1].cancel()
    go_on.set()
    assert await tasks[0] == "served"
    with pytest.raises(asyncio.CancelledError):
        await tasks[1]


async def test_a_node_makes_the_calls_of_nodes_alone_and_others_cannot_report() -> None:
    guard = guarded(SHOP)
    report = "NameServerService/Report"
    alone = guarded(SHOP)
    with (
        pytest.raises(UnauthenticatedError, match="only nodes of the cluster"),
        alone.serving(alone.by_header(""), report, NEEDS[report], ReportRequest()),
    ):
        raise AssertionError("it was served")
    late = alone.unproven(BadProofError("was made 45000 ms ago by the clock of this node"))
    with (
        pytest.raises(UnauthenticatedError, match=r"45000 ms ago.*compare the secrets and clocks"),
        alone.serving(late, report, NEEDS[report], ReportRequest()),
    ):
        raise AssertionError("it was served")
    node = guard.node()
    with guard.serving(node, report, NEEDS[report], ReportRequest()):
        assert may(Action.DELETE, ResourceKind.TOPIC, "any")
    with (
        pytest.raises(UnauthenticatedError, match="only users may make this call"),
        guard.serving(node, PULL, NEEDS[PULL], PullRequest(topic="shop-a")),
    ):
        raise AssertionError("a node reads nothing in its own name")
    with pytest.raises(UnauthenticatedError, match="a node is no user"):
        node.publish([(b"shop-a", 0)])
    with pytest.raises(UnauthenticatedError, match="a node is no user"):
        guard.check(node, "Http/status", ())
    for other in (guard.by_token("token"), guard.by_token("other")):
        with (
            pytest.raises(UnauthenticatedError),
            guard.serving(other, report, NEEDS[report], ReportRequest()),
        ):
            raise AssertionError("it was served")


def test_the_way_to_the_cluster_is_open_and_its_topics_are_not() -> None:
    guard, route = guarded(SHOP), NEEDS["LogService/Route"]
    nobody = guard.by_header("")
    assert guard.needs_of(nobody, "LogService/Route", route, RouteRequest()) is None
    needs = guard.needs_of(nobody, "LogService/Route", route, RouteRequest(topics=["shop-a"]))
    with pytest.raises(UnauthenticatedError):
        guard.check(nobody, "LogService/Route", needs)
