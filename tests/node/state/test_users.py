"""Users in the replicated state: what a command may do, and what it may not."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from node.config.limits import Limits
from node.errors.common import NodeError
from node.state.registry import check_tables, decode_table, encode_table
from node.state.state import State
from node.state.tables.users import USERS_MAX, UsersTable
from quorumlog.pb.state_pb2 import Command
from quorumlog.pb.users_pb2 import Credential, Rates, Rule, User

TOKEN = Credential(id="t", token_sha256=b"t" * 32)
NEXT = Credential(id="b", token_sha256=b"b" * 32)
ADMIN = User(name="admin", roles=["admin"], credentials=[TOKEN], revision=1)


def put(state: State, user: User, **changes: Any) -> str:
    """Code of the refusal of a user with these changes; empty: it was put."""
    changed = User()
    changed.CopyFrom(user)
    command = Command.PutUser(
        must_be_first=bool(changes.pop("must_be_first", False)),
        reset_id=changes.pop("reset_id", b""),
    )
    has_none = bool(changes.pop("has_no_certificates", False))
    for name in changes:
        changed.ClearField(name)
    changed.MergeFrom(User(name=changed.name, **changes))
    command.user.CopyFrom(changed)
    return code(state.apply_command(Command(put_user=command, has_no_certificates=has_none), 0))


def put_role(state: State, name: str, *rules: Rule) -> str:
    return code(state.apply_command(Command(put_role=Command.PutRole(name=name, rules=rules)), 0))


def delete_user(state: State, name: str) -> str:
    return code(state.apply_command(Command(delete_user=Command.DeleteUser(name=name)), 0))


def delete_role(state: State, name: str) -> str:
    return code(state.apply_command(Command(delete_role=Command.DeleteRole(name=name)), 0))


def code(refusal: NodeError | None) -> str:
    return "" if refusal is None else refusal.code


def begun() -> State:
    state = State(Limits())
    assert put(state, ADMIN, must_be_first=True) == ""
    return state


def test_the_first_user_comes_once() -> None:
    state = begun()
    assert put(state, User(name="b", revision=1), must_be_first=True) == "node.user_exists"
    assert put(state, User(name="b", revision=1)) == ""
    assert list(state.table(UsersTable).users.users) == ["admin", "b"]


def test_a_reset_replaces_the_admin_once() -> None:
    state, new = begun(), Credential(id="first", token_sha256=b"n" * 32)
    assert put(state, ADMIN, rates=Rates(connections=1), revision=2) == ""
    assert put(state, User(name="b", roles=["admin"], revision=1), credentials=[NEXT]) == ""
    assert put(state, ADMIN, is_disabled=True, revision=3) == ""
    reset: dict[str, Any] = {"credentials": [new], "reset_id": b"1" * 16}
    assert put(state, ADMIN, **reset) == ""
    admin = state.table(UsersTable).users.users["admin"]
    assert (admin.roles, list(admin.credentials)) == (("admin",), ["first"])
    assert (admin.is_disabled, admin.revision, admin.rates.connections) == (False, 4, 0)
    assert put(state, User(name="b", revision=2)) == ""
    for user in (ADMIN, User(name="c", revision=1)):
        assert put(state, user, **reset) == "node.user_exists"
    taken: dict[str, Any] = {"credentials": [new], "reset_id": b"2" * 16}
    assert put(state, User(name="c", revision=1), **taken) == "node.credential_taken"
    other = reset | {"credentials": [NEXT], "reset_id": b"2" * 16}
    assert put(state, User(name="b", revision=3)) == ""
    assert put(state, ADMIN, **other) == ""
    assert put(state, ADMIN, **reset) == "node.user_exists", "no later file brings one back"
    for number in range(USERS_MAX - len(state.table(UsersTable).users.users)):
        assert put(state, User(name=f"u{number}", revision=1)) == ""
    rescue = User(name="rescue", roles=["admin"], revision=1)
    assert put(state, rescue) == "node.limit_reached"
    way_back = {"credentials": [Credential(id="r", token_sha256=b"r" * 32)], "reset_id": b"3" * 16}
    assert put(state, rescue, **way_back) == "", "with all users in use, too"
    copy = UsersTable(Limits(), state.image().tables[UsersTable.name])
    assert copy.reset_ids == (b"1" * 16, b"2" * 16, b"3" * 16)


def test_of_two_changes_at_once_one_is_refused() -> None:
    state = begun()
    assert put(state, ADMIN, roles=["admin", "reader"], revision=2) == ""
    assert put(state, ADMIN, roles=["admin", "operator"], revision=2) == "node.user_changed"
    assert put(state, ADMIN) == "node.user_exists"
    assert put(state, User(name="new", revision=2)) == "node.unknown_user"


@pytest.mark.parametrize(
    "change",
    [
        {"roles": ["operator"]},
        {"credentials": []},
        {"credentials": [Credential(id="k", sealed_secret=b"sealed")]},
        {"credentials": [Credential(id="e", token_sha256=b"e" * 32, expires_unix_ms=1 << 60)]},
        {"is_disabled": True},
    ],
)
def test_no_change_leaves_a_cluster_without_an_admin(change: dict[str, Any]) -> None:
    state = begun()
    before = state.table(UsersTable).content()
    assert put(state, ADMIN, revision=2, **change) == "node.last_admin"
    assert delete_user(state, "admin") == "node.last_admin"
    assert state.table(UsersTable).content() == before
    second = User(name="b", roles=["admin"], revision=1)
    second.credentials.add(id="t", certificate="CN=b")
    assert put(state, second) == ""
    assert put(state, ADMIN, revision=2, **change) == ""
    assert delete_user(state, "b") == "node.last_admin"
    # Where no port takes certificates the token stays.
    assert put(state, ADMIN, revision=3, has_no_certificates=True) == ""
    assert put(state, ADMIN, revision=4, **change, has_no_certificates=True) == "node.last_admin"


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"roles": ["nothing"]}, "node.unknown_role"),
        ({"roles": ["producer-consumer"]}, "node.bad_access"),
        ({"roles": ["producer-consumer:"]}, "node.bad_access"),
        ({"roles": ["reader:a"]}, "node.bad_access"),
        ({"roles": [f"producer-consumer:{n}" for n in range(51)]}, "node.bad_access"),
        ({"roles": ["producer-consumer:" + "a" * 256]}, "node.bad_access"),
        ({"roles": ["producer-consumer:a-*"]}, "node.bad_access"),
        ({"roles": ["producer-consumer:a b"]}, "node.bad_access"),
        ({"credentials": [Credential(id="x")]}, "node.bad_access"),
        ({"credentials": [Credential(id="", certificate="CN=a")]}, "node.bad_access"),
        ({"credentials": [Credential(id="x", certificate="O=a")]}, "node.bad_access"),
        ({"credentials": [Credential(id="x", token_sha256=b"short")]}, "node.bad_access"),
        ({"credentials": [Credential(id="x", certificate=f"CN={n}") for n in "ab"]},
         "node.bad_access"),
        *(({"credentials": [Credential(id="x", certificate=name)]}, "node.bad_access")
          for name in ("CN=*", "DNS:*.example", "CN= x", "CN=x ", "URI:spiffe://x/*")),
        ({"credentials": [Credential(id=f"x{n}", token_sha256=b"x" * 32, expires_unix_ms=n)
                          for n in range(2)]}, "node.bad_access"),
        ({"roles": ["producer-consumer:%DLQ%hers"]}, "node.bad_access"),
        ({"credentials": [Credential(id=f"x{n}", certificate=f"CN={n}") for n in range(17)]},
         "node.bad_access"),
        ({"credentials": [Credential(id="x", token_sha256=b"t" * 32)]}, "node.credential_taken"),
    ],
)  # fmt: skip
def test_a_user_that_cannot_be_is_refused(change: dict[str, Any], refusal: str) -> None:
    state = begun()
    assert put(state, User(name="b", revision=1), **change) == refusal
    assert put(state, User(name="not a name", revision=1)) == "node.bad_access"
    assert list(state.table(UsersTable).users.users) == ["admin"]


def rule(resource: str, *actions: str, deny: bool = False) -> Rule:
    return Rule(resource=resource, actions=actions, deny=deny)


def test_roles_are_made_used_and_deleted() -> None:
    state = begun()
    assert put_role(state, "admin", rule("Topic:*", "Pub")) == "node.ready_made_role"
    assert delete_role(state, "admin") == "node.ready_made_role"
    assert put_role(state, "auditor", rule("Topic:a b", "Pub")) == "node.bad_access"
    assert put_role(state, "auditor") == "node.bad_access"
    assert put_role(state, "auditor", rule("Topic:*", "Sub"), rule("Group:*", "Get")) == ""
    assert put(state, User(name="b", roles=["auditor"], revision=1)) == ""
    assert delete_role(state, "auditor") == "node.role_in_use"
    assert put_role(state, "auditor", rule("Topic:{}*", "Sub")) == "node.role_in_use"
    assert put(state, User(name="b", roles=["reader"], revision=2)) == ""
    assert delete_role(state, "auditor") == ""
    assert delete_role(state, "auditor") == "node.unknown_role"


def test_a_role_of_the_last_admin_stays_one_that_changes_users() -> None:
    state = begun()
    all_needed = rule("Cluster:*", "Update", "List", "Get")
    assert put_role(state, "owner", all_needed) == ""
    owner = User(name="admin", roles=["owner"], credentials=[TOKEN], revision=2)
    assert put(state, owner) == ""
    for action in all_needed.actions:
        no_users = rule("Cluster:users", action, deny=True)
        assert put_role(state, "owner", all_needed, no_users) == "node.last_admin"


@pytest.mark.parametrize(
    ("resource", "use"),
    [
        ("Topic:%DLQ%hers", "Group:hers"),
        ("Topic:%RETRY%hers*", "Group:hers*"),
        ("Topic:%RETRY%*", "Group:*"),
        ("Topic:%DLQ%{}*", "Group:{}*"),
        ("Topic:rmq_sys_*", "Get on Cluster:users"),
        ("Topic:RMQ_SYS_*", ""),  # The topic of traces is one of them.
        ("Topic:TBW102*", ""),
        ("Topic:TBW102", "Get on Cluster:users"),
    ],
)
def test_a_rule_that_decides_nothing_is_refused_with_the_one_that_does(
    resource: str, use: str
) -> None:
    for is_denial in (False, True):
        put = Command.PutRole(name="r", rules=[rule(resource, "Sub", deny=is_denial)])
        refusal = begun().apply_command(Command(put_role=put), 0)
        said = "" if refusal is None else str(refusal).replace("rules for ", "")
        assert (f"use {use}" if use else "") in said
        assert bool(said) is bool(use)


def everything() -> Iterable[User]:
    full = User(name="b", roles=["reader", "producer-consumer:b-"], is_disabled=True, revision=1)
    full.credentials.add(id="k", sealed_secret=b"sealed", expires_unix_ms=7)
    full.credentials.add(id="c", certificate="URI:spiffe://b")
    full.rates.CopyFrom(Rates(bytes_per_second=1, messages_per_second=2, connections=3))
    yield full
    yield User(name="c", revision=1)


def test_a_copy_of_the_state_has_the_same_users() -> None:
    state = begun()
    assert UsersTable.name not in State(Limits()).image().tables, "as before there were users"
    assert all(put(state, user) == "" for user in everything())
    assert put_role(state, "r", rule("Topic:{}*", "Pub", "Get", deny=True)) == ""
    image = state.image()
    table = check_tables(image.tables)[UsersTable.name]
    read = decode_table(UsersTable, encode_table(UsersTable, table, 0))
    again = UsersTable(Limits(), read)
    assert again.content() == state.table(UsersTable).content()
    assert json.dumps(read.content) == json.dumps(table.content)
    known, users = again.users, state.table(UsersTable).users
    assert known.roles == users.roles
    assert known.users.keys() == users.users.keys()
    assert known.by_token.keys() == users.by_token.keys()
    assert len(known.by_certificate) == 1
    assert known.users["b"].rates == users.users["b"].rates
