"""`client.admin` makes users and roles, and what they may do counts at once."""

from pathlib import Path
from typing import Literal

import pytest

import quorumlog
from quorumlog import errors, sync
from quorumlog.admin.types import NewCredential, Rule, UserRates
from quorumlog.user_tokens import new_token
from tests.node.processes import SingleNode
from tests.node.users_files import ADMIN_TOKEN, user_settings

SECRET = "secret-of-eight-or-more"


async def test_a_user_is_made_explained_changed_and_deleted(tmp_path: Path) -> None:
    with SingleNode(tmp_path / "n", **user_settings(tmp_path)) as node:
        address = node.node_json()["address"]
        own = new_token()
        async with (
            quorumlog.connect(address, token=ADMIN_TOKEN) as client,
            quorumlog.connect(address, token=f"{own}\n") as bob,
        ):
            admin = client.admin
            assert (await admin.who_am_i()).name == "admin"
            rules = [Rule("Topic:shop-*", ("Pub",)), Rule("Topic:shop-x", ("Pub",), deny=True)]
            assert (await admin.put_role("shop", rules)).rules == tuple(rules)
            added = [
                NewCredential("t1", token=own),
                NewCredential("KEY1", secret=SECRET),
                NewCredential("c1", certificate="CN=bob"),
            ]
            rates = UserRates(connections=5)
            made = await admin.put_user(
                "bob", roles=["shop"], add=added, rates=rates, must_be_new=True
            )
            kinds = [(one.id, one.kind) for one in made.credentials]
            assert kinds == [("t1", "token"), ("KEY1", "access_key"), ("c1", "certificate")]
            assert (made.rates, made.differs, made.away) == (rates, (), ())
            assert [user.name for user in await admin.users()] == ["admin", "bob"]
            with pytest.raises(errors.ConflictError, match="user 'bob' already"):
                await admin.put_user("bob", must_be_new=True)
            assert [role.name for role in await admin.roles()][-2:] == ["reader", "shop"]

            assert (await bob.admin.who_am_i()).roles == ("shop",)
            yes = await admin.explain_access("bob", "pub", "topic:shop-a")
            assert (yes.is_allowed, yes.role, str(yes.rule)) == (True, "shop", str(rules[0]))
            no = await bob.admin.explain_access("bob", "Pub", "Topic:shop-x")
            with pytest.raises(errors.PermissionDeniedError, match="lacks Get on Cluster:users"):
                await bob.admin.explain_access("admin", "Pub", "Topic:shop-x")
            assert (no.is_allowed, str(no.rule)) == (False, "DENY Topic:shop-x Pub")
            assert (await admin.explain_access("bob", "Sub", "Topic:shop-a")).rule is None
            with pytest.raises(errors.PermissionDeniedError, match="user 'bob' lacks List on"):
                await bob.admin.users()

            changed = await admin.put_user("bob", roles=[], remove=["t1"])
            assert (changed.roles, len(changed.credentials)) == ((), 2)
            with pytest.raises(errors.PermissionDeniedError, match=r"token|credential"):
                await bob.admin.who_am_i()
            await admin.delete_role("shop")
            await admin.delete_user("bob")
        with sync.connect(address, token=ADMIN_TOKEN) as blocking:
            assert [user.name for user in blocking.admin.users()] == ["admin"]


@pytest.mark.parametrize("transport", ["framed", "grpc"])
async def test_messages_of_a_wrong_token_are_surely_not_in_the_log(
    tmp_path: Path, transport: Literal["framed", "grpc"]
) -> None:
    with SingleNode(tmp_path / "n", **user_settings(tmp_path)) as node:
        address = node.node_json()["address"]
        async with quorumlog.connect(address, token=ADMIN_TOKEN) as admin:
            await admin.admin.create_topic("orders")
        wrong = new_token()
        async with quorumlog.connect(address, token=wrong, transport=transport) as client:
            for _ in range(2):
                with pytest.raises(errors.PermissionDeniedError) as raised:
                    await client.producer().send("orders", b"x")
                assert raised.value.code == "node.unauthenticated"
                assert raised.value.outcome is errors.Outcome.NOT_APPLIED


def test_no_secret_is_shown_by_a_value_or_an_error() -> None:
    made = NewCredential("k", secret=SECRET)
    assert SECRET not in repr(made)
    assert SECRET.encode() not in made.to_pb().SerializeToString()
    for wrong in {"token": SECRET.encode()}, {"secret": SECRET + "\ud800"}:
        with pytest.raises(errors.InvalidRequestError) as raised:
            NewCredential("k", **wrong)
        assert SECRET not in str(raised.value)
    with pytest.raises(errors.InvalidRequestError, match="name one of"):
        NewCredential("k", token="a", certificate="CN=b")
    good, no_token = new_token(), pytest.raises(errors.InvalidRequestError, match="no token: it")
    for text in ("shop.token", SECRET, good[:30], good + "x", f"{good[:-1]} "):
        with no_token as raised:
            quorumlog.connect("h:1", token=text)
        assert text not in str(raised.value)
        with no_token:
            NewCredential("k", token=text)
