"""Compares the ways to replicate, with one client in one run: speed, and the cost of a dead leader.

Owns the modes, the order of a comparison, and the published figures beside ours. A cluster of each
mode is measured at rest, for speed; then its leader (or master) is killed under load. The result
counts the acked messages that are missing (RPO) and the time without an ack (RTO). The kernel of
this machine still delivers what a killed process had handed to it, so the RPO of a mode that acks
before it replicates is a lower bound.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from bench import cluster, failover
from bench.cluster import ClusterLoad, Progress
from bench.own_cluster import NODE_COUNT, own_cluster
from bench.report import machine, machine_limits

if TYPE_CHECKING:
    from quorumlog.client import Client

_TIMEOUT_MS: Final = 30_000
_SPEED_KEYS: Final = (
    "acked_msgs_per_s", "acked_mb_per_s", "durability", "batch_latency", "serial_latency",
)  # fmt: skip
_DEATH_KEYS: Final = (
    "acked_count", "failed_count", "unknown_count", "read_count", "lost_count", "duplicate_count",
    "out_of_order_count",
)  # fmt: skip


class ComparedMode(NamedTuple):
    """One way to replicate."""

    name: str
    replication: Literal["raft", "sync_master", "async_master"]
    flush: Literal["sync", "async"]
    promises_no_loss: bool
    """Whether acked messages survive the death of any one node."""


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
        row, place = await _measure(directory, mode, load, kills, seed, named)
        rows.append(row)
    return {
        "bench": "compare",
        "modes": rows,
        "published": list(PUBLISHED),
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


async def _measure(
    directory: str | None,
    mode: ComparedMode,
    load: ClusterLoad,
    kills: int,
    seed: int,
    show: Progress,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measure one mode. Return its row, and the conditions of the figures."""
    import quorumlog

    with own_cluster(directory, flush=mode.flush, replication=mode.replication) as own:
        async with quorumlog.connect(own.bootstrap, timeout_ms=_TIMEOUT_MS) as client:
            await cluster.make_topic(client, load)
            speed = await cluster.produce(client, load, show, pids={})
            deaths = await failover.measure(client, own.nodes, kills=kills, seed=seed, show=show)
            reported = 0 if mode.replication == "raft" else await _reported_lost_count(client)
        place = {
            "machine": machine(),
            "directory": own.directory,
            "directory_kind": own.directory_kind,
            "node_count": NODE_COUNT,
            "limits": machine_limits(own.directory),
        }
    row = {
        "mode": mode.name,
        **{key: speed[key] for key in _SPEED_KEYS},
        **{key: deaths[key] for key in _DEATH_KEYS},
        "reported_lost_count": reported,
        "rto": deaths["next_ack"],
    }
    return row, place


async def _reported_lost_count(client: "Client") -> int:
    """Return the count of messages that the nodes report as cut off, acked or not; a part that
    several replicas cut counts once."""
    from quorumlog.admin.types import NodeDown

    cut: dict[tuple[int, int], int] = {}
    for replica in (await client.admin.ha_group()).nodes:
        assert not isinstance(replica, NodeDown), f"{replica} after all nodes were level"
        for loss in replica.losses:
            key = loss.epoch, loss.lo_position
            cut[key] = max(cut.get(key, 0), loss.record_count)
    return sum(cut.values())
