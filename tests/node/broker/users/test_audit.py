"""The audit: its rows, how many of them there are, and their way to the leader."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from node.broker.users.audit import (
    CALLERS_MAX,
    REFUSALS_PER_SECOND,
    REHEARSALS_PER_SECOND,
    SHARE_COUNT_MAX,
    STRANGERS_PER_SECOND,
    WAITING_COUNT_MAX,
    Audit,
)
from node.errors.common import BadRequestError, NotLeaderError
from node.errors.users import ForbiddenError, UnauthenticatedError
from node.runtime.accounts import Accounts, on_behalf_of
from node.users.calling import set_calling
from node.users.credentials import digest_of
from node.users.guard import Guard
from node.users.needs import NEEDS
from node.users.rehearsal import ROWS_MAX
from node.users.users import Credential, Rates, User, Users
from quorumlog.pb import admin_pb2, users_pb2
from quorumlog.pb.log_pb2 import PullRequest
from quorumlog.pb.users_pb2 import (
    HandAuditRequest,
    PutRoleRequest,
    PutUserRequest,
    RoleNames,
    Rule,
)
from store.format import AUDIT_TOPIC
from tests.node.broker_fakes import Fixture, hidden
from tests.patience import eventually

PUT_USER, CREATE = "UserService/PutUser", "AdminService/CreateTopic"
PUT_ROLE = "UserService/PutRole"


def user(name: str, role: str) -> User:
    return User(name, (role,), False, {"t": Credential(digest_of(name))}, Rates(), 1)


def guarded(audit: Audit) -> Guard:
    guard = Guard("on", lambda: 0)
    guard.look(Users({one.name: one for one in (user("root", "admin"), user("r", "reader"))}, {}))
    guard.on_refused, guard.on_administered = audit.note_refusal, audit.note_change
    return guard


@asynccontextmanager
async def running(
    node: Fixture, handed: Any = None, audit: Audit | None = None
) -> AsyncIterator[Audit]:
    audit = audit or Audit(node.broker.context, node.broker.own_appends, is_on=True)
    task = asyncio.create_task(audit.run(handed))
    try:
        yield audit
    finally:
        task.cancel()


def rows(node: Fixture) -> list[dict[str, Any]]:
    return [json.loads(message.body) for message in hidden(node, AUDIT_TOPIC)]


async def test_changes_and_refusals_are_rows_and_other_calls_are_not(node: Fixture) -> None:
    async with running(node) as audit:
        guard, connection = guarded(audit), Accounts().open("10.1.2.3")
        roles = RoleNames(roles=["reader"])
        denial = Rule(deny=True, resource="topic:a*", actions=["pub"])
        calls: list[tuple[str, str, Any]] = [
            (
                "root",
                PUT_USER,
                PutUserRequest(
                    name="new",
                    roles=roles,
                    add_credentials=[
                        users_pb2.Credential(
                            id="t1", token_sha256=b"secret digest", expires_unix_ms=9
                        ),
                        users_pb2.Credential(id="k1"),
                    ],
                    remove_credentials=["t0"],
                    rates=users_pb2.Rates(bytes_per_second=5),
                    secrets=[b"top secret"],
                ),
            ),
            ("root", PUT_ROLE, PutRoleRequest(name="team", rules=[denial])),
            ("r", CREATE, admin_pb2.CreateTopicRequest(topic="orders")),
            ("nobody", CREATE, admin_pb2.CreateTopicRequest(topic="orders")),
            ("r", "LogService/Pull", PullRequest(topic="orders")),
        ]
        with on_behalf_of(connection):
            for token, method, request in calls:
                with (
                    suppress(ForbiddenError, UnauthenticatedError),
                    guard.serving(guard.by_token(token), method, NEEDS[method], request),
                ):
                    pass
            with (
                pytest.raises(NotLeaderError),
                guard.serving(guard.by_token("root"), CREATE, NEEDS[CREATE], calls[2][2]),
            ):
                raise NotLeaderError
        await eventually(lambda: len(rows(node)) == 5, "the rows are written")
    changes = "roles=reader +token t1 until 9 +key k1 -t0 rates=bytes_per_second:5"
    shown = [(r["user"], r["call"], r["resource"], r["address"], r["outcome"]) for r in rows(node)]
    assert shown == [
        ("root", PUT_USER, f"Cluster:users new {changes}", "10.1.2.3", "ok"),
        ("root", PUT_ROLE, "Cluster:users team DENY Topic:a* Pub", "10.1.2.3", "ok"),
        ("r", CREATE, "Topic:orders", "10.1.2.3", "node.forbidden"),
        ("", CREATE, "", "10.1.2.3", "node.unauthenticated"),
        ("root", CREATE, "Topic:orders", "10.1.2.3", "node.not_leader"),
    ]
    assert "secret" not in json.dumps(rows(node))


async def test_a_flood_of_refusals_leaves_some_out_and_says_how_many(node: Fixture) -> None:
    async with running(node) as audit:
        caller = guarded(audit).by_token("r")
        for _ in range(500):
            audit.note_refusal(caller, CREATE, ForbiddenError("r", "", "", "Topic:" + "x" * 9_999))
        await eventually(lambda: len(rows(node)) == audit.written_total > 0, "they are written")
        node.clock.now_ms += 1_000
        audit.note_refusal(caller, CREATE, ForbiddenError("r", "", "", "Topic:x"))
        await eventually(lambda: rows(node)[-1]["left_out"], "it is written")
        assert rows(node)[-1]["left_out"] == 500 - REFUSALS_PER_SECOND
        assert max(len(row["resource"]) for row in rows(node)) == 1_000


async def test_no_flood_of_strangers_hides_the_refusal_of_a_user(node: Fixture) -> None:
    accounts = Accounts()
    async with running(node) as audit:
        guard = guarded(audit)
        for number in range(CALLERS_MAX + 50):
            nobody = guard.by_token("")
            nobody.account = accounts.open(f"10.{number // 250}.0.{number % 250}")
            for _ in range(REFUSALS_PER_SECOND + 5):
                audit.note_refusal(nobody, CREATE, UnauthenticatedError("", "", ""))
        audit.note_refusal(guard.by_token("r"), CREATE, ForbiddenError("r", "", "", "Topic:x"))
        await eventually(lambda: any(row["user"] == "r" for row in rows(node)), "the user's row")
        await eventually(lambda: len(rows(node)) == audit.written_total, "all are written")
    by_address = Counter(row["address"] for row in rows(node) if not row["user"])
    assert max(by_address.values()) == REFUSALS_PER_SECOND
    assert by_address.total() == STRANGERS_PER_SECOND
    assert len(audit._refusals) <= CALLERS_MAX


async def test_no_flood_of_failed_changes_hides_the_refusal_of_another_user(node: Fixture) -> None:
    (need,) = NEEDS[PUT_USER](PutUserRequest()) or ()
    audit = Audit(node.broker.context, node.broker.own_appends, is_on=True)
    guard = guarded(audit)
    root, other = guard.by_token("root"), guard.by_token("r")
    for _ in range(100):  # Seconds without a leader.
        node.clock.now_ms += 1_000
        for _ in range(REFUSALS_PER_SECOND + 5):
            audit.note_change(root, PUT_USER, need, PutUserRequest(), NotLeaderError.code)
        assert len(audit._rows) <= SHARE_COUNT_MAX
    audit.note_change(root, PUT_USER, need, PutUserRequest(), "")
    audit.note_refusal(other, CREATE, ForbiddenError("r", "", "", "Topic:x"))
    async with running(node, audit=audit):
        await eventually(lambda: not audit._rows, "all are written")
    shown = Counter((row["user"], row["outcome"]) for row in rows(node))
    assert shown == {
        ("root", NotLeaderError.code): SHARE_COUNT_MAX,
        ("root", "ok"): 1,
        ("r", ForbiddenError.code): 1,
    }


async def test_a_flood_in_prepare_has_few_rows_and_says_how_many_calls(node: Fixture) -> None:
    audit = Audit(node.broker.context, node.broker.own_appends, is_on=True)
    guard = Guard("prepare", lambda: 60_000_000 + node.clock.now_ms)
    guard.rehearsal.on_row, guard.rehearsal.on_forgotten = audit.note_rehearsal, audit.leave_out
    error = ForbiddenError("r", "", "", "Topic:x")
    for number in range(6_000):
        guard.rehearsal.note("r", f"10.0.{number // 120 % 2}.{number % 120}", CREATE, error)
    assert len(audit._rows) == REHEARSALS_PER_SECOND
    assert audit.left_out_total == 6_000 - ROWS_MAX - REHEARSALS_PER_SECOND
    (warning,) = guard.warnings()
    assert f"6000 calls, at least {ROWS_MAX} callers" in warning
    for _ in range(SHARE_COUNT_MAX):  # Seconds.
        node.clock.now_ms += 1_000
        for number in range(ROWS_MAX):
            guard.rehearsal.note("r", f"10.9.9.{number}", CREATE, error)
    assert len(audit._rows) == SHARE_COUNT_MAX
    assert max(json.loads(row)["count"] for _, row in audit._rows) == 60
    node.clock.now_ms += 400_000
    guard.rehearsal.note("r", "10.9.9.9", CREATE, error)
    node.clock.now_ms += 400_000
    assert ": 1 calls, " in guard.warnings()[0]


async def test_rows_wait_for_a_leader_up_to_a_limit_and_go_to_another_one(node: Fixture) -> None:
    handed: list[tuple[str, HandAuditRequest]] = []

    async def hand_over(*row: Any) -> None:
        handed.append(row)

    node.driver.lose()
    async with running(node, hand_over) as audit:
        caller = guarded(audit).by_token("root")
        (need,) = NEEDS[PUT_USER](PutUserRequest()) or ()
        for _ in range(WAITING_COUNT_MAX + 5):
            audit.note_change(caller, PUT_USER, need, PutUserRequest(), "")
        await eventually(
            lambda: sum(len(request.rows) for _, request in handed) == WAITING_COUNT_MAX,
            "they are handed over",
        )
        assert {row[0] for row in handed} == {"host2:8082"}
        own_id = json.loads(handed[0][1].rows[0])["node_id"]
        set_calling(guarded(audit).node(own_id))
        with pytest.raises(NotLeaderError):
            await audit.hand_audit(handed[0][1])
        assert audit.left_out_total == 5
    node.driver.lead()
    async with running(node) as audit:
        good = json.loads(handed[0][1].rows[0])
        for bad in (b"no JSON", b"[]", good | {"user": 1}, good | {"unix_ms": -1}, {"node_id": 1}):
            row = bad if isinstance(bad, bytes) else json.dumps(bad).encode()
            with pytest.raises(BadRequestError):
                await audit.hand_audit(HandAuditRequest(rows=[handed[0][1].rows[0], row]))
        for node_id in (own_id + 1, 0):  # Another node of the group, and one of another group.
            set_calling(guarded(audit).node(node_id))
            with pytest.raises(BadRequestError, match=f"calls at node {node_id}"):
                await audit.hand_audit(handed[0][1])
        assert not rows(node)
        set_calling(guarded(audit).node(own_id))
        await audit.hand_audit(handed[0][1])
        assert len(rows(node)) == len(handed[0][1].rows)
