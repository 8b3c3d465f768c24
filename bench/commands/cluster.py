"""`qlog bench produce|consume|failover`: measure a cluster from outside.

Owns the options, the cluster that a run starts for itself, and the columns beside the figures:
machine, directory, limits, settings, targets. The measuring lives in the package `bench`.
"""

import itertools
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from qlog.command_decorators import Printout, printed
from qlog.connection import connected, run
from qlog.progress import progress_bars
from qlog.transport import transport
from quorumlog.command_errors import ExitCode

if TYPE_CHECKING:
    from bench.own_cluster import OwnCluster
    from quorumlog.client import Client

Flush = Literal["sync", "async"]
_Command = TypeVar("_Command", bound=Callable[..., Any])
_TIMEOUT_MS = 30_000
_PEERS = (
    "quorumlog-remoting", "etcd", "nats", "kafka", "bookkeeper", "rocketmq-dledger",
    "rocketmq-master-slave",
)  # fmt: skip


def _all_of(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    """Return a decorator that adds options in their order."""
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


def count_option(
    flag: str, name: str, default: int, what: str, **more: Any
) -> Callable[[_Command], _Command]:
    number = click.IntRange(min=1)
    return click.option(
        flag, name, type=number, default=default, show_default=True, help=what, **more
    )


dir_option = click.option(
    "--dir",
    "directory",
    help="Start the cluster in this directory.  [default: a new one on /dev/shm if there "
    "is one, else in the temporary directory; gone afterwards]",
)
seconds_option = click.option(
    "--seconds",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="How long to measure.",
)
seed_option = click.option(
    "--seed", type=int, default=1, show_default=True, help="Seed of the pauses between kills."
)
_place_options = _all_of(
    dir_option,
    click.option(
        "--flush",
        type=click.Choice(["sync", "async"]),
        default="sync",
        show_default=True,
        help="What a receipt of the started cluster means.",
    ),
)
"""Name the cluster; by default a run starts one for itself."""
_load_options = _all_of(
    seconds_option,
    count_option("--body-size", "body_size_bytes", 1024, "Size of each body.", metavar="BYTES"),
    count_option("--batch-count", "batch_count", 100, "Messages in an atomic batch."),
    count_option(
        "--in-flight", "in_flight_count", 16, "Batches that wait for receipts at the same time."
    ),
)
"""The fields of a ClusterLoad."""
_running_option = click.option(
    "-s",
    "--server",
    metavar="HOST:PORT,...",
    help="Measure this running cluster, into its topic 'bench', instead of starting one.",
)


@asynccontextmanager
async def cluster_of(
    server: str | None, directory: str | None, flush: Flush
) -> "AsyncIterator[tuple[Client, OwnCluster | None]]":
    """Yield a client of the measured cluster, and the cluster if this run has started it."""
    if server is not None:
        async with connected(server, timeout_ms=_TIMEOUT_MS) as client:
            yield client, None
        return
    import quorumlog
    from bench.own_cluster import own_cluster

    with own_cluster(directory, flush=flush) as own:
        click.echo(f"three nodes in {own.directory} ({own.directory_kind})", err=True)
        async with quorumlog.connect(
            own.bootstrap, timeout_ms=_TIMEOUT_MS, transport=transport()
        ) as client:
            yield client, own


def place_of(own: "OwnCluster | None", flush: Flush) -> dict[str, Any]:
    """Return the conditions of the figures, besides the load."""
    from bench.own_cluster import NODE_COUNT
    from bench.report import machine, machine_limits

    place: dict[str, Any] = {"machine": machine()}
    if own is None:
        return {**place, "directory": None, "directory_kind": None, "node_count": None,
                "flush": None, "limits": None}  # fmt: skip
    return {
        **place,
        "directory": own.directory,
        "directory_kind": own.directory_kind,
        "node_count": NODE_COUNT,
        "flush": flush,
        "limits": machine_limits(own.directory),
    }


def pids_of(own: "OwnCluster | None") -> dict[str, int]:
    """Return the processes whose processor time is measured: this one, and the nodes of the run."""
    return {"driver": os.getpid(), **(own.pids if own is not None else {})}


def printout_of(record: dict[str, Any], exit_code: ExitCode = ExitCode.OK) -> Printout:
    """Return what is printed; in a table, the values of a nested object get lines of their own."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            flat[key] = value
    return Printout(record, table=[flat], exit_code=exit_code)


@click.command()
@_load_options
@click.option(
    "--peer",
    type=click.Choice(_PEERS),
    metavar="PEER",
    help="Measure this system as well, right afterwards on the same disk: "
    + ", ".join(_PEERS)
    + ".",
)
@_place_options
@_running_option
@printed
def produce(
    peer: str | None, directory: str | None, flush: Flush, server: str | None, **load: Any
) -> Printout:
    """Measure appends: atomic batches with several in flight, then one message at a time.

    Starts three nodes on this machine, each a process of its own; this process drives them through
    the SDK. Only what has a receipt is counted. With --server it fills the topic 'bench' there with
    as many messages as the cluster takes, and leaves it. --peer measures three nodes of another
    system, with as many batches in flight as suit that best; bench/peers/install makes them ready,
    and bench/run compares all of them in one run. docs/planning.md explains each row.

    \b
    Keys of -o json:
      bench, seconds, acked_count, acked_msgs_per_s, acked_mb_per_s, durability,
      batch_latency, serial_appends_per_s, serial_latency, cpu, ratio, peer,
      targets, load, machine, directory, directory_kind, node_count, flush, limits

    \b
    Examples:
      qlog bench produce
      qlog bench produce --peer etcd -o json | jq .ratio
      qlog bench produce --dir /var/tmp --seconds 30
      qlog bench produce --server 127.0.0.1:8081 --seconds 5
    """
    from bench.cluster import ClusterLoad

    if peer is not None and server is not None:
        raise click.UsageError("--peer runs on the disk of the started cluster: no --server")
    offered = ClusterLoad(**load, serial_seconds=min(3.0, load["seconds"]))
    return printout_of(run(_produce(offered, peer, directory, flush, server)))


async def _produce(
    load: Any, peer: str | None, directory: str | None, flush: Flush, server: str | None
) -> dict[str, Any]:
    from bench import cluster
    from bench.peers import measured

    other: dict[str, Any] | None = None
    with progress_bars() as show:
        async with cluster_of(server, directory, flush) as (client, own):
            await cluster.make_topic(client, load)
            result = await cluster.produce(client, load, show, pids=pids_of(own))
            place = place_of(own, flush)
        if peer is not None:
            steps = itertools.count()
            other = await measured.measure(
                peer,
                os.path.dirname(place["directory"]),
                load,
                lambda step: show(f"{peer}: {step}", next(steps), None),
            )
    rate = other and other.get("acked_msgs_per_s")
    ratio = round(result["acked_msgs_per_s"] / rate, 2) if rate else None
    serial_p50_ms = result["serial_latency"]["p50_ms"]
    targets = [
        cluster.target("acked msg/s", result["acked_msgs_per_s"], cluster.TARGET_ACKED_MSGS_PER_S),
        cluster.target(
            "serial p50, ms", serial_p50_ms, cluster.TARGET_SERIAL_P50_MS, less_is_better=True
        ),
    ]
    if peer is not None:
        targets.append(cluster.target(f"times {peer}", ratio, cluster.TARGET_PEER_RATIO))
    return {
        "bench": "produce",
        **result,
        "ratio": ratio,
        "peer": other,
        "targets": targets,
        "load": load.row(),
        **place,
    }


@click.command()
@_load_options
@count_option(
    "--messages",
    "message_count",
    200_000,
    "Number of messages to append first and to read repeatedly.",
)
@_place_options
@_running_option
@printed
def consume(
    message_count: int, directory: str | None, flush: Flush, server: str | None, **load: Any
) -> Printout:
    """Measure reading: a topic from first to end, decoded, in batches through the SDK.

    \b
    Keys of -o json:
      bench, seconds, round_count, consumed_count, consumed_msgs_per_s,
      consumed_mb_per_s, cpu, targets, load, machine, directory, directory_kind,
      node_count, flush, limits

    \b
    Examples:
      qlog bench consume
      qlog bench consume --messages 1000000 -o json | jq .consumed_msgs_per_s
    """
    from bench.cluster import ClusterLoad

    offered = ClusterLoad(**load)

    async def act() -> dict[str, Any]:
        from bench import cluster

        with progress_bars() as show:
            async with cluster_of(server, directory, flush) as (client, own):
                await cluster.make_topic(client, offered)
                await cluster.fill(client, offered, message_count, show)
                result = await cluster.consume(client, offered, show, pids=pids_of(own))
                place = place_of(own, flush)
        wanted = cluster.TARGET_CONSUME_MSGS_PER_S
        targets = [cluster.target("consumed msg/s", result["consumed_msgs_per_s"], wanted)]
        return {
            "bench": "consume",
            **result,
            "targets": targets,
            "load": {**offered.row(), "message_count": message_count},
            **place,
        }

    return printout_of(run(act()))


@click.command()
@count_option("--kills", "kills", 10, "Number of kills.")
@seed_option
@_place_options
@printed
def failover(kills: int, seed: int, directory: str | None, flush: Flush) -> Printout:
    """Measure failover: SIGKILL the leader under load, and wait for the next acked append.

    Each time: the clock starts before the kill and stops at the first receipt of a later term; the
    node is started again, and the next kill waits until all nodes have caught up. At the end
    everything is read back, and what was acked must be there once. A kill takes about five seconds.

    \b
    Keys of -o json:
      bench, kill_count, next_ack, without_leader, healthy_again, histogram,
      kills, acked_count, failed_count, unknown_count, error_codes, read_count,
      lost_count, duplicate_count, out_of_order_count, targets, seed, machine,
      directory, directory_kind, node_count, flush, limits
      kills: node_id, term, next_ack_ms, without_leader_ms, healthy_again_ms

    \b
    Examples:
      qlog bench failover
      qlog bench failover --kills 50 -o json | jq .next_ack

    Ends with 0, or with 1 when something acked was lost, doubled or out of order.
    """
    record = run(_failover(kills, seed, directory, flush))
    is_wrong = any(record[f"{what}_count"] for what in ("lost", "duplicate", "out_of_order"))
    return printout_of(record, ExitCode.FINDINGS if is_wrong else ExitCode.OK)


async def _failover(kills: int, seed: int, directory: str | None, flush: Flush) -> dict[str, Any]:
    from bench import failover
    from bench.cluster import target

    with progress_bars() as show:
        async with cluster_of(None, directory, flush) as (client, own):
            assert own is not None, "no server was given, so the cluster is ours"
            result = await failover.measure(client, own.nodes, kills=kills, seed=seed, show=show)
            place = place_of(own, flush)
    next_ack = result["next_ack"]
    targets = [
        target("median, ms", next_ack["p50_ms"], failover.TARGET_P50_MS, less_is_better=True),
        target("p99, ms", next_ack["p99_ms"], failover.TARGET_P99_MS, less_is_better=True),
    ]
    return {"bench": "failover", **result, "targets": targets, "seed": seed, **place}
