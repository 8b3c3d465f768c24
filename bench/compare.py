"""Compares the ways to replicate, with one client in one run: speed, and the cost of a dead leader.

Owns the modes, the order of a comparison, and the published figures beside ours. Each mode runs
twice: at rest on direct links, for speed; and with links between the nodes that take 50 ms, where
the leader (or master) is killed and its machine's network dies with it. The result counts the acked
messages that are missing (RPO) and the time without an ack (RTO).
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from bench import cluster, failover
from bench.cluster import ClusterLoad, Progress
from bench.delayed_links import DelayedLinks
from bench.own_cluster import NODE_COUNT, OwnCluster, own_cluster
from bench.report import machine, machine_limits

if TYPE_CHECKING:
    from quorumlog.client import Client

LINK_DELAY_MS: Final = 50.0
_TIMEOUT_MS: Final = 30_000


class ComparedMode(NamedTuple):
    """One way to replicate."""

    name: str
    replication: Literal["raft", "sync_master", "async_master"]
    flush: Literal["sync", "async"]
    promises_no_loss: bool
    """Whether acked messages survive the death of any one node, also with slow links."""


MODES: Final = (
    ComparedMode("raft_sync", "raft", "sync", True),
    ComparedMode("raft_async", "raft", "async", True),
    ComparedMode("sync_master", "sync_master", "sync", True),
    ComparedMode("async_master", "async_master", "sync", False),
)

PUBLISHED: Final = (
    {"what": "master-slave", "acked_msgs_per_s": 120_000, "rpo": "> 0", "rto": "by hand"},
    {"what": "DLedger", "acked_msgs_per_s": 80_000, "rpo": "0", "rto": "< 15 s"},
)
"""Conditions of RocketMQ's figures: 4 cores, SSD, bodies of 1 KB."""


async def compare(
    directory: str | None,
    modes: Sequence[ComparedMode],
    load: ClusterLoad,
    *,
    kills: int,
    seed: int,
    show: Progress,
) -> dict[str, Any]:
    """Measure these modes in turn; `kills` of the leader in each."""
    rows: list[dict[str, Any]] = []
    place: dict[str, Any] = {}
    for mode in modes:
        named = _named(show, mode)
        speed, place = await _speed(directory, mode, load, named)
        rows.append(
            {"mode": mode.name, **speed, **await _deaths(directory, mode, kills, seed, named)}
        )
    return {
        "bench": "compare",
        "modes": rows,
        "published": list(PUBLISHED),
        "link_delay_ms": LINK_DELAY_MS,
        "kills": kills,
        "seed": seed,
        "load": load.row(),
        **place,
    }


def is_wrong(row: Mapping[str, Any]) -> bool:
    """Whether a mode broke its promise: by a loss that it excludes, or by one that it hid."""
    mode = next(mode for mode in MODES if mode.name == row["mode"])
    if row["duplicate_count"] or row["out_of_order_count"]:
        return True
    if mode.promises_no_loss:
        return bool(row["lost_count"])
    return bool(row["lost_count"] > row["reported_lost_count"])


def _named(show: Progress, mode: ComparedMode) -> Progress:
    def named(what: str, done: float, total: float | None) -> None:
        show(f"{mode.name}: {what}", done, total)

    return named


async def _speed(
    directory: str | None, mode: ComparedMode, load: ClusterLoad, show: Progress
) -> tuple[dict[str, Any], dict[str, Any]]:
    with own_cluster(directory, flush=mode.flush, replication=mode.replication) as own:
        async with _connected(own) as client:
            await cluster.make_topic(client, load)
            figures = await cluster.produce(client, load, show, pids=own.pids)
        place = {
            "machine": machine(),
            "directory": own.directory,
            "directory_kind": own.directory_kind,
            "node_count": NODE_COUNT,
            "limits": machine_limits(own.directory),
        }
    kept = ("acked_msgs_per_s", "acked_mb_per_s", "durability", "batch_latency", "serial_latency")
    return {key: figures[key] for key in kept}, place


async def _deaths(
    directory: str | None, mode: ComparedMode, kills: int, seed: int, show: Progress
) -> dict[str, Any]:
    with (
        DelayedLinks(LINK_DELAY_MS) as links,
        own_cluster(
            directory,
            flush=mode.flush,
            replication=mode.replication,
            relay=links.relay,
        ) as own,
    ):
        async with _connected(own) as client:
            nodes = _Machines(own, links)
            figures = await failover.measure(client, nodes, kills=kills, seed=seed, show=show)
            reported = 0 if mode.replication == "raft" else await _reported_lost_count(client)
    counts = ("acked", "failed", "unknown", "read", "lost", "duplicate", "out_of_order")
    return {
        **{f"{name}_count": figures[f"{name}_count"] for name in counts},
        "reported_lost_count": reported,
        "rto": figures["next_ack"],
    }


async def _reported_lost_count(client: "Client") -> int:
    """Return the count of messages that the nodes report as cut off, acked or not; a part that
    several replicas cut counts once."""
    from quorumlog.admin.types import NodeDown

    cut: dict[tuple[int, int], int] = {}
    for replica in (await client.admin.ha_group()).nodes:
        assert not isinstance(replica, NodeDown), f"{replica} after all nodes were level"
        for loss in replica.losses:
            key = loss.epoch, loss.first_log_position
            cut[key] = max(cut.get(key, 0), loss.record_count)
    return sum(cut.values())


@asynccontextmanager
async def _connected(own: OwnCluster) -> "AsyncIterator[Client]":
    import quorumlog

    async with quorumlog.connect(own.bootstrap, timeout_ms=_TIMEOUT_MS) as client:
        yield client


class _Machines:
    """Nodes that lose their network when they are killed, and regain it at the restart."""

    def __init__(self, own: OwnCluster, links: DelayedLinks) -> None:
        self._own, self._links = own, links

    def kill(self, node_id: int) -> None:
        self._links.cut(node_id)
        self._own.nodes.kill(node_id)

    def start(self, node_id: int) -> None:
        self._links.join(node_id)
        self._own.nodes.start(node_id)
