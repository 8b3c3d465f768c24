"""One run of an official client against a cluster whose leader is killed while it sends.

Owns the two processes of the client and the order of events.
"""

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

from deploy.local import LocalCluster
from quorumlog.pb.log_pb2 import RouteRequest
from quorumlog.sync import connect
from store.record.topic_names import TRACE_TOPIC
from tests.compat.official.account import GROUPS, KINDS, Account, account
from tests.compat.official.clients import Official
from tests.node.processes import connected

IsEnough = Callable[[dict[str, Any]], bool]
START_S: Final = 60.0
SEND_S: Final = 300.0
RECEIVE_S: Final = 600.0
_TYPES: Final = {
    "ordered": "FIFO",
    "ordinary": "NORMAL",
    "delayed": "DELAY",
    "transactional": "TRANSACTION",
}


class Program:
    """A client's process and what it said. Use it as a context manager."""

    def __init__(self, client: Official, home: Path, *arguments: str) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._name = f"{client.name} {arguments[0]}"
        self.events: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._log = (home / "log").open("ab")
        self._said = (home / "events.jsonl").open("ab", buffering=0)
        self._process = subprocess.Popen(
            [*client.command(home), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=home,
            env={**os.environ, "HOME": str(home), **client.environment(home)},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.write(line)
            if line.startswith(b"{"):
                with self._changed:
                    self.events.append(json.loads(line))
                    self._changed.notify_all()
        with self._changed:
            self.events.append({"event": "ended"})
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(START_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()
        self._log.close()
        self._said.close()

    def wait_for(self, is_enough: IsEnough, timeout_s: float) -> None:
        """Show each event, from the first, until one is enough. Fails when the process ends."""
        deadline, at = time.monotonic() + timeout_s, 0
        while True:
            events = self._events_from(at, deadline)
            assert events, f"{self._name}: not in {timeout_s} s; {at} lines, {self.events[-3:]}"
            for event in events:
                assert event["event"] != "ended", f"{self._name} ended: {self.events[-4:]}"
                if is_enough(event):
                    return
            at += len(events)

    def _events_from(self, at: int, deadline: float) -> list[dict[str, Any]]:
        """Return the events from a number on, as soon as there is one; none at the deadline."""
        with self._changed:
            left_s = max(0.0, deadline - time.monotonic())
            self._changed.wait_for(lambda: len(self.events) > at, left_s)
            return self.events[at:]


def _received(sent: list[dict[str, Any]], groups: Sequence[str]) -> IsEnough:
    """Whether every group has everything that was acknowledged."""
    kept = {f"{e['kind']}:{e['number']}" for e in sent if e["event"] == "acked" and e["kept"]}
    left = {(group, body) for group in groups for body in kept}

    def is_enough(event: dict[str, Any]) -> bool:
        if event["event"] == "received":
            left.discard((event["group"], event["body"]))
        return not left

    return is_enough


def _acked(count: int) -> IsEnough:
    """Whether so many ordered messages were acknowledged."""

    def is_enough(event: dict[str, Any]) -> bool:
        nonlocal count
        count -= event["event"] == "acked" and event["kind"] == "ordered"
        return count <= 0

    return is_enough


def prepare(cluster: LocalCluster, prefix: str) -> None:
    """Make a topic of each type, and the groups that are set to be orderly."""
    with connect(cluster.bootstrap) as client:
        for kind in KINDS:
            client.admin.create_topic(f"{prefix}-{kind}", queue_count=4, message_type=_TYPES[kind])
        if not any(topic.topic == TRACE_TOPIC for topic in client.admin.list_topics()):
            client.admin.create_topic(TRACE_TOPIC)
        for group in GROUPS:
            if group.endswith("-orderly"):
                client.admin.set_group_settings(f"{prefix}-{group}", is_orderly=True)


def broker_addresses(cluster: LocalCluster) -> list[str]:
    """Return the address of each node's own broker name."""
    addresses = []
    for number, node in enumerate(cluster.node_ids):
        with connected(cluster.address(node)) as client:
            route = client.log.Route(RouteRequest())
            port = route.remoting_addresses[number].rpartition(":")[2]
        addresses.append(f"127.0.0.1:{port}")
    return addresses


def client_arguments(client: Official, cluster: LocalCluster, count: int) -> tuple[str, ...]:
    """Prepare the topics of a client; return what its program takes."""
    prefix = "".join(c if c.isalnum() else "-" for c in client.name).lower()
    prepare(cluster, prefix)
    leader = cluster.leader_id()
    first = sorted(cluster.node_ids, key=lambda node: node != leader)
    if client.names_brokers:
        address = cluster.framed_address if client.is_classic else cluster.address
        addresses = [address(node) for node in first]
    else:
        of_node = dict(zip(cluster.node_ids, broker_addresses(cluster), strict=True))
        addresses = [of_node[node] for node in first]
    endpoints = ";".join(addresses) if client.takes_addresses else addresses[-1]
    return endpoints, prefix, str(count)


def run_requests(client: Official, cluster: LocalCluster, home: Path, count: int) -> Program:
    """Ask questions and kill the leader half-way; return the program when all were answered."""
    arguments, leader = client_arguments(client, cluster, count), cluster.leader_id()
    with Program(client, home, "request", *arguments) as program:
        program.wait_for(lambda event: event["event"] == "ready", START_S)
        program.wait_for(_acked(count // 2), SEND_S)
        cluster.kill(leader)
        program.wait_for(lambda event: event["event"] == "done", SEND_S)
        return program


def run(
    client: Official, cluster: LocalCluster, home: Path, count: int, *, leader_returns: bool = True
) -> Account:
    """Send, kill the leader half-way, receive everything; return what became of it.

    The leader is dead until all was acknowledged; then it comes back, if it is to. The client for
    Node.js never takes a newer route for sending, so for it the leader comes back at once. For a
    classic client it comes back when three quarters are acknowledged, and the next one is killed.
    """
    arguments, leader = client_arguments(client, cluster, count), cluster.leader_id()
    with Program(client, home / "produce", "produce", *arguments) as producer:
        producer.wait_for(lambda event: event["event"] == "ready", START_S)
        producer.wait_for(_acked(count // 2), SEND_S)
        killed_at = len(producer.events)
        cluster.kill(leader)
        if not client.takes_addresses:
            cluster.restart(leader)
        if client.is_classic and leader_returns:
            producer.wait_for(_acked(count * 3 // 4), SEND_S)
            cluster.restart(leader)
            leader = cluster.leader_id()
            cluster.kill(leader)
        producer.wait_for(lambda event: event["event"] == "done", SEND_S)
        if client.takes_addresses and leader_returns:
            cluster.restart(leader)
        with Program(client, home / "consume", "consume", *arguments) as consumer:
            consumer.wait_for(lambda event: event["event"] == "ready", START_S)
            consumer.wait_for(_received(producer.events, client.groups), RECEIVE_S)
            return account(
                producer.events,
                consumer.events,
                killed_at=killed_at,
                groups=client.groups,
                ordered_groups=client.ordered_groups,
            )
