"""Which groups a client follows: those that its addresses, or the nodes there, vouch for."""

from collections import Counter

import pytest

import quorumlog
from quorumlog import errors
from tests.patience import eventually
from tests.quorumlog.fake_groups import connect, fake_groups


async def all_sent_to(client: quorumlog.Client, *groups: str) -> None:
    """Every group that the client follows gets messages; these are all."""
    async with client.producer() as producer:
        sent = [await producer.enqueue("orders", b"%d" % i, key=f"k{i}") for i in range(60)]
        receipts = [await delivery for delivery in sent]
    assert Counter(receipt.broker_group for receipt in receipts).keys() == set(groups)


async def asked_again(client: quorumlog.Client, count: int = 3) -> None:
    """Wait until each group was asked for routes so many times more."""
    routers = [group.router for group in client._cluster.known()]
    targets = [router.questions + count for router in routers]
    await eventually(lambda: all(r.questions >= t for r, t in zip(routers, targets, strict=True)))


@pytest.mark.long
@pytest.mark.usefixtures("be_quick")
async def test_a_group_that_only_another_one_names_is_not_followed() -> None:
    """g1 is vouched for, and what it says of others is not."""
    async with fake_groups("g0", "g1", "g2") as groups:
        groups["g0"].neighbours = [groups["g1"]]
        async with connect(groups, "g0") as client:
            await asked_again(client)
            assert client.broker_groups == ("g0", "g1")
            await all_sent_to(client, "g0", "g1")
        assert groups["g2"].entries == []
        async with connect(groups, "g0", "g1") as client:
            assert client.broker_groups == ("g0", "g1", "g2"), "the caller points at g1"


@pytest.mark.long
@pytest.mark.usefixtures("be_quick")
async def test_a_group_that_nobody_names_any_more_is_left_out_though_it_answers() -> None:
    async with fake_groups("g0", "g1") as groups, connect(groups, "g0") as client:
        assert client.broker_groups == ("g0", "g1")
        groups["g0"].neighbours = []
        await eventually(lambda: client.broker_groups == ("g0",))
        before = len(groups["g1"].entries)
        await all_sent_to(client, "g0")
        assert len(groups["g1"].entries) == before
        groups["g0"].neighbours = [groups["g1"]]
        await eventually(lambda: client.broker_groups == ("g0", "g1"))
        await asked_again(client)
        assert client.broker_groups == ("g0", "g1")


@pytest.mark.long
@pytest.mark.usefixtures("be_quick")
async def test_a_group_stays_while_those_who_vouch_are_down() -> None:
    async with fake_groups("g0", "g1") as groups, connect(groups, "g0") as client:
        await groups["g0"].stop()
        await eventually(lambda: client.broker_groups == ("g1",))
        await asked_again(client)
        assert client.broker_groups == ("g1",)
        await all_sent_to(client, "g1")


@pytest.mark.long
@pytest.mark.parametrize("claims", [{"cluster_id": "other"}, {"group": "g7"}, {"group": ""}])
@pytest.mark.usefixtures("be_quick")
async def test_an_impostor_at_the_address_of_a_group_gets_nothing(claims: dict[str, str]) -> None:
    """Whoever listens where g1 was has to say that it is g1 of this cluster."""
    async with fake_groups("g0", "g1") as groups:
        impostor = groups["g1"]
        groups["g0"].neighbours = [groups["g1"]]
        route_name = impostor.group
        if "group" in claims:
            # g0 goes on to name g1 there.
            groups["g0"].neighbours = [Named(route_name, impostor)]  # type: ignore[list-item]
        for name, value in claims.items():
            setattr(impostor, name, value)
        async with connect(groups, "g0") as client:
            await asked_again(client)
            assert set(client.broker_groups) <= {"g0", "g1"}
            await all_sent_to(client, "g0")
            with pytest.raises(errors.QuorumlogError):
                await client.producer(timeout_ms=300).send("orders", b"x", broker_group="g1")
        assert impostor.entries == []


class Named:
    """A group as others name it, whatever its nodes say."""

    def __init__(self, group: str, cluster: object) -> None:
        self.group, self._cluster = group, cluster

    def __getattr__(self, name: str) -> object:
        return getattr(self._cluster, name)
