"""What a node shows of itself: /status and the samples behind /metrics.

Owns which part each value is of. A node that is not up yet shows what it has.
"""

import dataclasses
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from node import bound_samples, metrics
from node.broker.sizes import TopicSizes
from node.rocketmq import samples as gateway
from quorumlog import __version__
from raft.messages import NO_NODE
from store.stats import LatencyStats

if TYPE_CHECKING:
    from node.node import Node


def status(node: "Node") -> dict[str, Any]:
    """Return the picture for /status, with the same keys at any time."""
    settings, ready = node.settings, node.health.ready()
    found: dict[str, Any] = {
        "node_id": settings.node_id,
        "cluster_id": settings.cluster_id,
        "replication": settings.replication,
        "version": __version__,
        "pid": os.getpid(),
        "uptime_ms": int(1000 * (time.monotonic() - node.began_s)),
        "phase": node.health.phase.value,
        "ready": ready.is_good,
        "detail": ready.reason,
        "address": node.address,
        "peer_address": node.peer_address,
        "http_address": node.http_address,
        "role": "",
        "term": None,
        "leader_id": NO_NODE,
        "first_index": None,
        "last_index": None,
        "durable_index": None,
        "commit_index": None,
        "applied_index": None,
        "warnings": [],
        "nameserver": nameserver(node),
    }
    if hasattr(node, "maintenance"):
        found |= {**node.replica_status(), "warnings": list(node.warnings())}
    return found


def nameserver(node: "Node") -> dict[str, Any] | None:
    """Return how the replica of the name server is; None without one, or before it is there."""
    status = node.nameserver.status() if hasattr(node, "nameserver") else None
    if status is None:
        return None
    return dataclasses.asdict(status) | {"group_problems": dict(node.nameserver.watch.problems)}


def samples(node: "Node") -> Iterator[metrics.Sample]:
    """Yield the value of each metric that is not a histogram."""
    settings = node.settings
    identity = (str(settings.node_id), settings.cluster_id, settings.group, __version__)
    yield "node", identity, 1.0
    yield "ready", (), float(node.health.ready().is_good)
    yield "uptime_seconds", (), time.monotonic() - node.began_s
    for file, unix_s in node.tls_ends_unix_s.items():
        yield "tls_expiry_timestamp_seconds", (file,), unix_s
    yield from metrics.call_samples(node.calls.counters)
    if hasattr(node, "grpc"):
        yield from bound_samples.call_bounds(node.grpc.requests, node.grpc.responses)
    yield from bound_samples.log_bounds()
    yield from bound_samples.http_bounds(node.http.connections)
    if hasattr(node, "maintenance"):
        yield from node.replica_samples()
        yield from metrics.link_samples(node.link.stats())
        yield "scrub_interval_seconds", (), settings.scrub_interval_ms / 1000
        yield from metrics.store_samples(node.log.store.stats())
        yield "store_warnings", (), len(node.warnings())
        yield from metrics.broker_samples(node.broker.stats())
    if hasattr(node, "nameserver"):
        yield from metrics.nameserver_samples(node.nameserver)
    if hasattr(node, "rocketmq"):
        yield from gateway.samples(node.rocketmq)


def histograms(node: "Node") -> dict[str, LatencyStats | TopicSizes]:
    """Return the histograms by name."""
    found: dict[str, LatencyStats | TopicSizes] = {}
    if hasattr(node, "log"):
        stats = node.log.store.stats()
        found["append_seconds"] = stats.put_latency
        found["sync_seconds"] = stats.sync_latency
    if hasattr(node, "maintenance"):
        found["record_bytes"] = node.broker.stats().record_sizes
    return found
