"""Connecting, finding the leader, admin calls, and calls that are tried again."""

import asyncio
import subprocess
import sys

import pytest

import quorumlog
from quorumlog import errors
from quorumlog.errors import Outcome
from tests.patience import PATIENCE_S, eventually
from tests.quorumlog.fake_cluster import CLUSTER_ID, connect, fake_cluster


async def test_a_single_address_is_enough() -> None:
    async with (
        fake_cluster() as cluster,
        quorumlog.connect(cluster.nodes[3].address, cluster_id=CLUSTER_ID) as client,
    ):
        route = await client.route("orders", "none")
        assert route.cluster_id == client.cluster_id == CLUSTER_ID
        assert route.leader_id == 1
        assert route.nodes == {n.node_id: n.address for n in cluster.nodes.values()}
        assert route.topics["orders"].queue_count == 4
        assert "none" not in route.topics
        assert (await client.producer().send("orders", b"x")).index == 0


def test_addresses_that_make_no_sense_are_refused() -> None:
    wrongs: list[str | list[str]] = ["", "localhost", "localhost:", ":1", "h:x", "h:70000", []]
    for wrong in wrongs:
        with pytest.raises(errors.InvalidRequestError):
            quorumlog.connect(wrong)
    with pytest.raises(errors.InvalidRequestError):
        quorumlog.connect("h:1", timeout_ms=0)


async def test_an_unreachable_cluster_is_reported_after_a_while() -> None:
    async with fake_cluster(1) as cluster:
        address = cluster.nodes[1].address
        await cluster.nodes[1].stop()
        with pytest.raises(errors.UnavailableError, match=address):
            await quorumlog.connect(address, connect_timeout_ms=100).start()


async def test_another_cluster_is_refused_at_once() -> None:
    async with fake_cluster() as cluster:
        client = quorumlog.connect(cluster.bootstrap, cluster_id="mine")
        with pytest.raises(errors.WrongClusterError):
            await client.start()


async def test_a_cluster_without_a_leader_is_found_and_waited_for() -> None:
    async with fake_cluster() as cluster:
        cluster.leader_id = 0
        async with connect(cluster) as client:
            assert (await client.route()).leader_id == 0
            sending = asyncio.create_task(client.producer().send("orders", b"x"))
            await eventually(lambda: client.stats().questions > 6)
            cluster.elect(2)
            assert (await sending).term == 2


async def test_a_deposed_leader_that_does_not_know_is_outvoted() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        await client.admin.list_topics()
        cluster.elect(3)
        cluster.beliefs[1], cluster.terms[1] = 1, 1  # Node 1 still takes itself for the leader.
        await cluster.nodes[1].stop()
        await cluster.nodes[1].start()
        assert (await client.producer().send("orders", b"x")).term == 2
        assert (await client.route()).leader_id == 3


@pytest.mark.long
async def test_hints_that_lead_nowhere_end_with_the_deadline() -> None:
    async with fake_cluster() as cluster, connect(cluster, timeout_ms=400) as client:
        cluster.leader_id, cluster.hint = 0, 2
        cluster.beliefs.update({1: 2, 2: 2, 3: 2})  # They name node 2, and it refuses.
        with pytest.raises(errors.DeadlineError) as caught:
            await client.admin.list_topics()
        assert caught.value.outcome is Outcome.NOT_APPLIED
        assert caught.value.attempts < 60
        with pytest.raises(errors.DeadlineError):
            await client.producer().send("orders", b"x")


@pytest.mark.long
async def test_a_promotion_is_not_repeated_beyond_its_own_time() -> None:
    """It was repeated for the client's time, 30 s by default."""
    async with fake_cluster() as cluster, connect(cluster) as client:
        with pytest.raises(errors.DeadlineError, match=r"promotion_timeout") as late:
            await client.admin.ha_promote(2, timeout_ms=50)
        assert late.value.outcome is Outcome.UNKNOWN
        assert cluster.promotion_count == 1


async def test_admin_calls_follow_the_leader() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        cluster.elect(2)
        created = await client.admin.create_topic("new", queue_count=3)
        assert (created.topic, created.queue_count, created.permission) == ("new", 3, 6)
        assert [t.topic for t in await client.admin.list_topics()] == ["new", "orders"]
        with pytest.raises(errors.TopicExistsError):
            await client.admin.create_topic("new", must_be_new=True)
        info = await client.admin.transfer_leadership(3)
        assert (info.leader_id, info.term) == (3, 3)
        assert (await client.admin.node_status()).node_id == 3
        assert (await client.admin.node_status(1)).role == "follower"
        assert await client.admin.commit_offsets("g", {("orders", 1): 5}) == 7
        offsets = await client.admin.fetch_offsets("g", [("orders", 1), ("orders", 2)])
        assert offsets == {("orders", 1): 5}
        with pytest.raises(errors.UnimplementedError):
            await client.admin.list_groups()


async def test_the_status_of_a_cluster_has_the_members_that_are_down() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        await cluster.nodes[3].stop()
        status = await client.admin.cluster_status()
        assert (status.leader_id, status.term, status.cluster_id) == (1, 1, CLUSTER_ID)
        assert [node.node_id for node in status.nodes] == [1, 2, 3]
        assert "error" in status.to_dict()["nodes"][2]
        assert status.to_dict()["nodes"][0]["members"][0]["is_voter"] is True
        cluster.removed = {2, 3}
        status = await client.admin.cluster_status()
        assert [node.node_id for node in status.nodes] == [1, 2], "2 still answers"


@pytest.mark.long
async def test_a_call_to_a_paused_leader_is_made_again_at_its_successor() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        await client.admin.list_topics()
        cluster.nodes[1].gate.clear()
        listing = asyncio.create_task(client.admin.list_topics())
        creating = asyncio.create_task(client.admin.create_topic("new", must_be_new=True))
        await asyncio.sleep(0.05)
        cluster.elect(2)
        assert len(await listing) == 1
        # Nobody can know whether the first attempt is done later, so this one is not repeated.
        with pytest.raises(errors.OutcomeUnknownError):
            await creating
        cluster.nodes[1].gate.set()


async def test_a_closed_client_refuses_everything() -> None:
    async with fake_cluster() as cluster:
        client = connect(cluster)
        with pytest.raises(errors.ClosedError):
            client.producer()
        async with client:
            client.producer().send_nowait("orders", b"x")
            admin = client.admin
        assert cluster.bodies() == [b"x"]  # Closing flushed it.
        with pytest.raises(errors.ClosedError):
            client.producer()
        with pytest.raises(errors.ClosedError):
            await client.start()
        with pytest.raises(errors.ClosedError):
            await admin.list_topics()


def test_importing_the_package_loads_no_grpc() -> None:
    code = (
        "import sys, quorumlog; "
        "assert 'grpc' not in sys.modules; assert quorumlog.connect; assert 'grpc' in sys.modules; "
        "assert all(getattr(quorumlog, name) for name in quorumlog.__all__)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)
    with pytest.raises(AttributeError):
        _ = quorumlog.nonsense
