"""Measures the ground of a plan: appends of several kinds, reads, failover, catch-up, disk.

Owns the order and the scale. All on one cluster of three nodes and its client, on this machine, so
the rate of appends is that of a group whose nodes and client share it: a group on hosts of its own
is faster, and a plan errs on the safe side. A check predicts loads that no cost was fitted to, and
compares with what was measured in turn with the others; the rest of it is done again on another
cluster.
"""

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psutil

from bench import cluster, failover, limits
from bench.cluster import ClusterLoad, Progress, make_topic
from bench.engine import EngineScale, recovery_time
from bench.own_cluster import NODE_COUNT, OwnCluster, directory_made, own_cluster
from bench.report import directory_kind, machine
from planning.capacity.calibration import AppendPoint, Calibration
from planning.capacity.formats import FormatSizes
from store.config import MIB

if TYPE_CHECKING:
    from quorumlog.client import Client

KINDS: Final = ((1, 1024), (1, 65_536), (10, 2048), (100, 100), (100, 1024), (16, 16_384))
"""Messages of a batch and size of a body: small and large of both, to tell the terms of a cost
apart, and one between, since a single message has a shorter way than the first of several."""
CHECKED_KINDS: Final = ((10, 512), (50, 1024), (20, 4096))
"""Loads between those that are measured."""
APPEND_BOUND: Final = 0.2
SIZE_BOUND: Final = 0.02
CATCH_UP_BOUND: Final = 0.5
"""Wider than for appends: a transfer of a second or two meets syncs and new files by chance."""
FAILOVER_BOUND: Final = 0.5
"""An election begins after a random time between half a second and a second."""
_GROWTH_COUNT: Final = 20_000
_POLL_S: Final = 0.01
_DEADLINE_S: Final = 120.0
_TIMEOUT_MS: Final = 30_000


@dataclass(frozen=True, slots=True)
class CalibrationScale:
    """The amount of work."""

    rounds: int = 12
    """Each kind of append is measured so often, in turn with the others."""
    seconds: float = 0.5
    """Of each kind of append in a round."""
    read_seconds: float = 2.0
    kills: int = 5
    catch_up_size_bytes: int = 256 * MIB
    disk_size_bytes: int = 256 * MIB
    recovery_size_bytes: int = 512 * MIB


QUICK: Final = CalibrationScale(2, 0.3, 0.3, 1, 16 * MIB, 16 * MIB, 64 * MIB)


class CatchUpError(Exception):
    """A node that was away did not become level."""

    code, retryable, outcome = "bench.catch_up", False, None

    def __str__(self) -> str:
        return (
            f"a node that was away is not level after {_DEADLINE_S:g} s; is the machine busy? run "
            "it again on a quiet one"
        )


async def measure(
    directory: str | None, scale: CalibrationScale, show: Progress, *, is_checked: bool = False
) -> tuple[Calibration, list[AppendPoint]]:
    """Start three nodes below the directory and measure.

    Returns the calibration, and for a check the points of `CHECKED_KINDS`, which are not in it.
    """
    import quorumlog

    kinds = KINDS + (CHECKED_KINDS if is_checked else ())
    with directory_made(directory):
        with own_cluster(directory, flush="sync") as own:
            async with quorumlog.connect(own.bootstrap, timeout_ms=_TIMEOUT_MS) as client:
                await make_topic(client, ClusterLoad())
                points = await append_points(client, own, kinds, scale, show)
                resident = [psutil.Process(pid).memory_info() for pid in own.pids.values()]
                load = ClusterLoad(seconds=scale.read_seconds)
                read = await cluster.consume(client, load, show, pids=own.pids)
                catch_up = await _catch_up(client, own, scale, show)
                kills = await failover.measure(
                    client, own.nodes, kills=scale.kills, seed=1, show=show
                )
            place = {**machine(), "directory_kind": own.directory_kind, "node_count": NODE_COUNT}
            parent = os.path.dirname(own.directory)
        show("disk and recovery", 0, None)
        disk = _disk(parent, scale)
    calibration = Calibration(
        source=f"measured on {place['cpu_count']} cores, {place['directory_kind']}",
        is_measured=True,
        appends=tuple(points[: len(KINDS)]),
        read_cpu_s=float(sum(row["cpu_s"] for row in read["cpu"]) / read["consumed_count"]),
        catch_up_bytes_per_s=catch_up,
        failover_s=kills["next_ack"]["p50_ms"] / 1e3,
        failover_s_max=kills["next_ack"]["max_ms"] / 1e3,
        # Without the pages of files.
        node_memory_size_bytes=max(int(one.rss - one.shared) for one in resident),
        machine=place,
        made_unix_ms=int(time.time() * 1e3),
        **disk,
    )
    return calibration, points[len(KINDS) :]


async def append_points(
    client: "Client",
    own: OwnCluster,
    kinds: Sequence[tuple[int, int]],
    scale: CalibrationScale,
    show: Progress,
) -> list[AppendPoint]:
    """Measure kinds of batches in turn, so that a slow minute of the machine meets all of them.

    The rate is the median of the rounds; processor time is summed, since it is counted in steps.
    """
    by_kind: dict[tuple[int, int], list[_Slice]] = {kind: [] for kind in kinds}
    for _ in range(scale.rounds):
        for (count, size_bytes), slices in by_kind.items():
            load = ClusterLoad(
                seconds=scale.seconds,
                serial_seconds=0.0,
                body_size_bytes=size_bytes,
                batch_count=count,
            )
            leader = f"node {own.nodes.leader_id()}"
            figures = await cluster.produce(client, load, show, pids=own.pids)
            cpu_s = {row["process"]: row["cpu_s"] for row in figures["cpu"]}
            batches = figures["acked_count"] / count
            slices.append(_Slice(batches, figures["seconds"], cpu_s[leader], sum(cpu_s.values())))
    points = []
    for (count, size_bytes), slices in by_kind.items():
        batches = sum(one.batches for one in slices)
        points.append(
            AppendPoint(
                batch_count=count,
                body_size_bytes=size_bytes,
                batches_per_s=median(one.batches / one.seconds for one in slices),
                leader_cpu_s=sum(one.leader_cpu_s for one in slices) / batches,
                nodes_cpu_s=sum(one.nodes_cpu_s for one in slices) / batches,
            )
        )
    return points


class _Slice(NamedTuple):
    """One kind of append in one round."""

    batches: float
    seconds: float
    leader_cpu_s: float
    nodes_cpu_s: float


async def _catch_up(
    client: "Client", own: OwnCluster, scale: CalibrationScale, show: Progress
) -> float:
    """Return the bytes of log a second that a follower takes over which stood still.

    It is paused and not killed: the start of a process is no part of the rate.
    """
    leader = await client.admin.node_status()
    away = next(node_id for node_id in own.nodes.node_ids if node_id != leader.node_id)
    await asyncio.to_thread(own.nodes.pause, away)
    try:
        load = ClusterLoad(body_size_bytes=1024, batch_count=100)
        count = scale.catch_up_size_bytes // load.body_size_bytes
        await cluster.fill(client, load, count, show)
        target = (await client.admin.node_status()).end_log_position
    finally:
        await asyncio.to_thread(own.nodes.resume, away)
    began = time.perf_counter()
    while (await client.admin.node_status(away)).end_log_position < target:
        if time.perf_counter() - began > _DEADLINE_S:
            raise CatchUpError
        await asyncio.sleep(_POLL_S)
    return (target - leader.end_log_position) / (time.perf_counter() - began)


def _disk(directory: str, scale: CalibrationScale) -> Mapping[str, float]:
    write, read = limits.disk_bytes_per_second(directory, scale.disk_size_bytes)
    engine = EngineScale(recovery_size_bytes=scale.recovery_size_bytes)
    [rebuilt] = [
        figure
        for figure in recovery_time(directory, directory_kind(directory), engine)
        if figure.container == "ledger"
    ]
    return {
        "sync_s": 1 / limits.syncs_per_second(directory, 200),
        "disk_write_bytes_per_s": write,
        "disk_read_bytes_per_s": read,
        "rebuild_bytes_per_s": scale.recovery_size_bytes / rebuilt.value,
    }


async def check(
    directory: str | None,
    calibration: Calibration,
    checked: Sequence[AppendPoint],
    formats: FormatSizes,
    scale: CalibrationScale,
    show: Progress,
) -> list[dict[str, Any]]:
    """Predict loads and faults, compare with what is measured, and return a row for each."""
    import quorumlog

    rows = [row for point in checked for row in _compared_appends(calibration, point)]
    with own_cluster(directory, flush="sync") as own:
        async with quorumlog.connect(own.bootstrap, timeout_ms=_TIMEOUT_MS) as client:
            await make_topic(client, ClusterLoad())
            rows.append(await _log_growth(client, formats, show))
            caught_up = await _catch_up(client, own, scale, show)
            kills = await failover.measure(client, own.nodes, kills=scale.kills, seed=2, show=show)
    rows.append(
        compared(
            "log that a follower takes over, B/s",
            calibration.catch_up_bytes_per_s,
            caught_up,
            bound=CATCH_UP_BOUND,
        )
    )
    next_ack_s = kills["next_ack"]["p50_ms"] / 1e3
    rows.append(compared("failover, s", calibration.failover_s, next_ack_s, bound=FAILOVER_BOUND))
    return rows


def _compared_appends(calibration: Calibration, point: AppendPoint) -> list[dict[str, Any]]:
    """Compare rate and processor time: the latter hardly depends on what else the machine does."""
    count, size = point.batch_count, point.body_size_bytes
    what = f"appends of {count} x {size} B"
    rate = calibration.batch_cost.msgs_per_s(count, size)
    cpu_s = calibration.nodes_cost.seconds(count, count * size)
    return [
        compared(f"{what}, msg/s", rate, point.batches_per_s * count, bound=APPEND_BOUND),
        compared(
            f"{what}, us of all nodes a batch",
            cpu_s * 1e6,
            point.nodes_cpu_s * 1e6,
            bound=APPEND_BOUND,
        ),
    ]


async def _log_growth(client: "Client", formats: FormatSizes, show: Progress) -> dict[str, Any]:
    load = ClusterLoad(body_size_bytes=700, batch_count=20)
    before = (await client.admin.node_status()).end_log_position
    await cluster.fill(client, load, _GROWTH_COUNT, show)
    grown = (await client.admin.node_status()).end_log_position - before
    record = formats.record_size_bytes(
        body=load.body_size_bytes, topic=len(cluster.TOPIC), properties=0
    )
    entry = formats.entry_size_bytes(record, load.batch_count)
    predicted = _GROWTH_COUNT / load.batch_count * entry
    return compared("log of 20,000 messages, B", predicted, grown, bound=SIZE_BOUND)


def compared(what: str, predicted: float, measured: float, *, bound: float) -> dict[str, Any]:
    """Return one row of a check: `error` is predicted / measured - 1, at most `bound` of either
    sign."""
    error = predicted / measured - 1
    return {
        "what": what,
        "predicted": predicted,
        "measured": measured,
        "error": error,
        "bound": bound,
        "met": abs(error) <= bound,
    }
