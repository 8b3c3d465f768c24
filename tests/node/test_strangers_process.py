"""Strangers at the ports of real nodes: absurd terms and epochs, and ports without a proof."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deploy.local import LocalCluster
from deploy.local_metrics import metric_of
from node.config.exposure import ANYONE_MAY_BE_A_NODE
from node.peers import handshake
from node.peers.frames import FrameKind
from node.peers.handshake import LinkIdentity
from node.replication.ha.core.types import HaBinding, HaStanding
from node.replication.ha.core.wire import Bound, Hello, encode
from node.replication.raft.codec import encode as encode_message
from raft.ceiling import TERM_JUMP_MAX
from raft.messages import (
    AppendReply,
    AppendRequest,
    CampaignNow,
    Configuration,
    ConfigurationAt,
    InstallSnapshot,
    Message,
    Refusal,
    SnapshotMeta,
    VoteReply,
    VoteRequest,
)
from raft.messages import Standing as RaftStanding
from tests.node.links import Raw
from tests.node.processes import run_to_end
from tests.patience import PATIENCE_S, wait_for

pytestmark = pytest.mark.long
LAST = (1 << 63) - 1
MEMBERS = ConfigurationAt(-1, Configuration((1, 2, 3)))


def claims(node: int, *, cluster_id: str, group: str = "g0", secret: bytes = b"") -> LinkIdentity:
    """Who the stranger says it is."""
    return LinkIdentity(cluster_id, group, node, "0.1.0", "127.0.0.1:1", secret)


@asynccontextmanager
async def stranger_at(cluster: LocalCluster, node: int, who: LinkIdentity) -> AsyncIterator[Raw]:
    """Get in at the peer port of a node as somebody."""
    file = cluster.node_directory(node) / "data" / "node.json"
    stranger = Raw()
    try:
        async with asyncio.timeout(PATIENCE_S):
            address = json.loads(file.read_text())["peer_address"]
            await stranger.dial(int(address.rpartition(":")[2]))
            await stranger.shake_hands(who, node)
            yield stranger
    finally:
        stranger.close()


def term_of(cluster: LocalCluster, node: int) -> int:
    return int(metric_of(cluster, node, "quorumlog_term"))


def absurd_messages() -> dict[str, Message]:
    """What 50 bytes of a stranger said before they were refused."""
    ends = ("", 0, 0)
    return {
        "vote request": VoteRequest(*ends, LAST, LAST, 9, 9, False, True, False),
        "pre-vote": VoteRequest(*ends, LAST - 1, LAST, 9, 9, True, False, False),
        "vote reply": VoteReply(*ends, LAST, 7, False, True, False, Refusal.OLD_TERM, 0),
        "append": AppendRequest(*ends, LAST, -1, 0, 0, (), -1, 0, (), 0),
        "append reply": AppendReply(
            *ends, LAST, -1, Refusal.OLD_TERM, -1, -1, (), 0, RaftStanding.FULL, 0
        ),
        "campaign now": CampaignNow(*ends, LAST),
        "snapshot": InstallSnapshot(*ends, LAST, SnapshotMeta(9, 9, MEMBERS), 0),
    }


async def say(cluster: LocalCluster, node: int, who: LinkIdentity, message: Message) -> str:
    """Get in as somebody, say one thing, and return with which code the node ends it."""
    async with stranger_at(cluster, node, who) as stranger:
        await stranger.send(*encode_message(message))
        kind, header, _ = (await stranger.ended())[-1]
        assert kind is FrameKind.GOODBYE
        return handshake.read_goodbye(header)[0]


def test_a_cluster_outlives_absurd_terms(tmp_path: Path) -> None:
    """Without a secret anybody is a node; each kind of message, at each node, and restarts."""
    with LocalCluster.create(tmp_path / "c", 3) as cluster:
        leader = cluster.leader_id()
        before = max(term_of(cluster, node) for node in cluster.node_ids)
        for node in cluster.node_ids:
            who = claims(node % 3 + 1, cluster_id=cluster.cluster_id)
            for name, message in absurd_messages().items():
                said = "replaced"
                while said == "replaced":  # The peer itself dialled again just then.
                    said = asyncio.run(say(cluster, node, who, message))
                assert said == "term_jump", name
            closed = metric_of(cluster, node, "quorumlog_peer_closed_total", code="term_jump")
            assert closed == len(absurd_messages())
            assert "too far ahead" in cluster.log_path(node).read_text()
        cluster.kill(leader)
        others = [node for node in cluster.node_ids if node != leader]
        wait_for("another leader", lambda: cluster.leader_id() in others)
        cluster.start(leader)
        cluster.wait_ready()
        assert max(term_of(cluster, node) for node in cluster.node_ids) < before + 1000


def test_a_forged_term_that_is_taken_is_told(tmp_path: Path) -> None:
    """A jump within the bound is followed by all, and the node says that it cannot be right."""
    high = TERM_JUMP_MAX - 1000
    forged = CampaignNow("", 0, 0, high)
    with LocalCluster.create(tmp_path / "c", 3) as cluster:
        leader = cluster.leader_id()
        other = leader % 3 + 1
        who = claims(leader, cluster_id=cluster.cluster_id)

        async def forge() -> None:
            async with stranger_at(cluster, other, who) as stranger:
                await stranger.send(*encode_message(forged))
                wait_for("the jump", lambda: term_of(cluster, leader) > high)

        asyncio.run(forge())
        cluster.wait_ready()
        assert high < term_of(cluster, cluster.leader_id()) < high + 1000
        shown = "; ".join(one.detail for one in cluster.status())
        assert "no elections explain term" in shown or metric_of(
            cluster, leader, "quorumlog_store_warnings"
        )


def test_a_master_outlives_absurd_epochs(tmp_path: Path) -> None:
    settings = {"nameserver_listen": "off"}
    with LocalCluster.create(
        tmp_path / "c", 3, replication="sync_master", settings=settings
    ) as cluster:
        master = cluster.leader_id()
        before = term_of(cluster, master)
        other = master % 3 + 1
        group = "g0 (master-slave, 2 copies of 1,2,3)"
        who = claims(other, cluster_id=cluster.cluster_id, group=group)
        absurd = Bound(HaBinding((1 << 31) - 1, other, 9), 1, 0, 0, 0, HaStanding.FULL, 7)

        async def bind() -> None:
            async with stranger_at(cluster, master, who) as stranger:
                hello = Hello(other, 7, f"{cluster.cluster_id}/g0")
                await stranger.put(encode(hello) + encode(absurd))
                loop = asyncio.get_running_loop()
                while await loop.sock_recv(stranger.socket, 1 << 16):
                    pass

        for _ in range(3):
            asyncio.run(bind())
        wait_for(
            "the refusals", lambda: metric_of(cluster, master, "quorumlog_ha_epoch_jumps_total")
        )
        assert cluster.leader_id() == master
        assert term_of(cluster, master) < before + 100


def test_a_peer_port_without_a_proof_ends_the_start(tmp_path: Path) -> None:
    done = run_to_end(tmp_path / "data", peer_listen="0.0.0.0:0")
    assert done.returncode == 78
    assert "may speak as a node" in done.stderr
    assert "set secret_file" in done.stderr
    assert not (tmp_path / "data" / "node.json").exists()


def test_a_start_names_every_port_that_a_stranger_could_misuse(tmp_path: Path) -> None:
    """127.1 is loopback to the system and a name to the rule, so nobody can come in meanwhile."""
    settings = {"unproven_peers": ANYONE_MAY_BE_A_NODE}
    with LocalCluster.create(tmp_path / "c", 1, settings=settings) as cluster:
        cluster.stop(1)
        file = cluster.node_directory(1) / "node.toml"
        text = file.read_text()
        for key in ("peer_listen", "http_listen"):  # gRPC does not take that spelling.
            text = text.replace(f'\n{key} = "127.0.0.1:', f'\n{key} = "127.1:')
        file.write_text(text)
        cluster.start(1)
        cluster.wait_ready()
        lines = [line for line in cluster.log_path(1).read_text().splitlines() if "misuse" in line]
        for key in ("peer_listen", "http_listen"):
            assert any(f"{key} 127.1:" in line for line in lines), key
