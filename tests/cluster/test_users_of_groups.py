"""Users of two broker groups: each keeps all of them, a group that was away is repaired by the same
change, and what was revoked opens neither."""

import asyncio
from pathlib import Path

import pytest

import quorumlog
from quorumlog.admin.types import NewCredential, Rule
from quorumlog.errors import PermissionDeniedError, QuorumlogError
from quorumlog.user_tokens import new_token
from tests.cluster.conftest import running
from tests.cluster.workload import TOPIC
from tests.node.users_files import ADMIN_TOKEN, user_settings
from tests.patience import eventually

pytestmark = pytest.mark.long
GROUPS = ("g0", "g1")


async def use(client: quorumlog.Client) -> None:
    """Send to both groups, and consume it from both as a group."""
    async with client.producer() as producer:
        sent = {await producer.send(TOPIC, b"x", broker_group=group) for group in GROUPS}
    assert {receipt.broker_group for receipt in sent} == {*GROUPS}
    seen = set[str]()
    async for message in client.consume(TOPIC, group=f"{TOPIC}-readers"):
        seen.add(message.broker_group)
        if seen == {*GROUPS}:
            break


async def refused_by(client: quorumlog.Client) -> set[str]:
    """Which groups refuse an append of a client."""
    refusing = set()
    producer = client.producer()
    for group in GROUPS:
        try:
            await producer.send(TOPIC, b"x", broker_group=group)
        except PermissionDeniedError:
            refusing.add(group)
    return refusing


async def test_a_group_that_was_away_is_repaired_by_the_same_change(tmp_path: Path) -> None:
    settings = user_settings(tmp_path)
    first, second = (NewCredential(name, token=new_token()) for name in ("first", "second"))
    key, role = NewCredential("KEY", secret="secret of the key"), f"producer-consumer:{TOPIC}"
    async with (
        running(tmp_path / "c", nodes=1, groups=2, settings=settings, token=ADMIN_TOKEN) as (
            cluster,
            admin,
        ),
        quorumlog.connect(cluster.bootstrap, token=first.token) as one,
        quorumlog.connect(cluster.bootstrap, token=second.token) as two,
    ):

        async def shown() -> tuple[list[str], tuple[str, ...], tuple[str, ...]]:
            [user] = [user for user in await admin.admin.users() if user.name == "shop"]
            return sorted(row.id for row in user.credentials), user.differs, user.away

        made = await admin.admin.put_user("shop", roles=[role], add=[first], must_be_new=True)
        assert made.differs == ()
        await use(one)
        assert await refused_by(two) == {*GROUPS}

        async with quorumlog.connect(cluster.address(1), token=ADMIN_TOKEN) as other:
            await eventually(
                lambda: other.broker_groups == GROUPS, "node 1 to name the other group"
            )
        await asyncio.to_thread(cluster.kill, 2)
        change = {"add": [second, key], "remove": ["first"]}
        async with quorumlog.connect(
            cluster.bootstrap, token=ADMIN_TOKEN, timeout_ms=3_000
        ) as hasty:
            with pytest.raises(QuorumlogError, match="g1"):
                await hasty.admin.put_user("shop", **change)  # type: ignore[arg-type]
            with pytest.raises(QuorumlogError, match="g1"):
                await hasty.admin.put_role("look", [Rule("Topic:*", ("Get",))])
        assert await shown() == (["KEY", "second"], (), ("g1",))
        cluster.start(2)
        await asyncio.to_thread(cluster.wait_ready)
        await eventually(lambda: admin.broker_groups == GROUPS)
        assert await shown() == (["KEY", "first", "second"], ("g1",), ())
        assert (await refused_by(one), await refused_by(two)) == ({"g0"}, {"g1"})
        [look] = [row for row in await admin.admin.roles() if not row.is_ready_made]
        assert look.differs == ("g1",)

        changed = await admin.admin.put_user("shop", **change)  # type: ignore[arg-type]
        assert changed.differs == ()
        assert await shown() == (["KEY", "second"], (), ())
        assert await refused_by(one) == {*GROUPS}
        await use(two)
        assert (await admin.admin.put_role("look", look.rules)).differs == ()
        for wrong in ({"remove": ["first"]}, {"add": [NewCredential("KEY", secret="s" * 32)]}):
            with pytest.raises(QuorumlogError, match="credential"):
                await admin.admin.put_user("shop", **wrong)
