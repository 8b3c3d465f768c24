"""Runs the loads whose calls are counted: three nodes as processes, one client in this one.

Owns the steady state: warmed up, one batch in flight, several windows. An append is counted to its
end: each window goes on for some ticks after the last receipt, in which followers apply. Must not
know what a call is, nor which counts are too many.
"""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.calls.counted_node import SETTINGS, TICK_MS
from bench.calls.counter import CallCounter, CallCounts
from bench.own_cluster import parent_of_data
from bench.report import directory_kind
from bench.signalled import BEGIN, END, Ask, MeasuredNodeError, signalled
from deploy.local import LocalCluster
from node.config.users import first_user_text
from node.users.credentials import digest_of
from quorumlog.cluster.transport import Transport

if TYPE_CHECKING:
    from quorumlog.client import Client

BODY_SIZE_BYTES: Final = 1024
BATCH_COUNT: Final = 100
TOKEN: Final = "qlt_" + "b" * 43
_TOPIC: Final = "calls"
_QUEUE_COUNT: Final = 4
_WARM_UP_COUNT: Final = 100
_WINDOW_COUNT: Final = 5
_APPENDS_PER_WINDOW: Final = 200
_IDLE_S: Final = 4 * TICK_MS / 1000
_TAIL_S: Final = 1.2 * TICK_MS / 1000
"""Time after which a window's last append is applied everywhere."""

Send = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class CallsWindow:
    """Calls of one process in one window."""

    counts: CallCounts
    """All calls, idle ones too."""
    message_count: int
    calls: float
    """Calls of a message, without the idle ones."""


@dataclass(slots=True)
class ProcessCalls:
    """Calls of one process."""

    role: str
    """`leader`, `follower` with its number, or `client`."""
    idle_per_s: float
    """Calls of a second without an append."""
    windows: list[CallsWindow] = field(default_factory=list)

    def add(self, counts: CallCounts, seconds: float, message_count: int) -> None:
        """Add a window."""
        calls = (counts.total - self.idle_per_s * seconds) / message_count
        self.windows.append(CallsWindow(counts, message_count, calls))

    @property
    def chosen(self) -> CallsWindow:
        """The window with the second most calls.

        On a busy machine frames wait, and are then handled together, for fewer calls. An idle one
        handles each one alone, which is what counts. The window with the most may have been one in
        which the machine stood still, and time itself made calls."""
        return sorted(self.windows, key=lambda window: window.calls)[-2:][0]

    def row(self) -> dict[str, Any]:
        """Return the figures under stable keys."""
        chosen = self.chosen
        return {
            "process": self.role,
            "calls": round(chosen.calls, 2),
            "windows": [round(window.calls, 2) for window in self.windows],
            "python": round(chosen.counts.python.total() / chosen.message_count, 2),
            "c": round(chosen.counts.c.total() / chosen.message_count, 2),
            "idle_per_s": round(self.idle_per_s),
        }

    def top(self, count: int) -> list[dict[str, Any]]:
        """Return the functions with the most calls of a message, their own and those in C that they
        make."""
        counts, messages = self.chosen.counts, self.chosen.message_count
        functions = {name: [calls, 0] for name, calls in counts.python.items()}
        in_c: dict[str, dict[str, float]] = {}
        for (caller, called), calls in counts.c.most_common():
            functions.setdefault(caller, [0, 0])[1] += calls
            in_c.setdefault(caller, {})[called] = round(calls / messages, 2)
        order = sorted(functions, key=lambda name: (-sum(functions[name]), name))
        return [
            {
                "function": name,
                "calls": round(functions[name][0] / messages, 2),
                "c_calls": round(functions[name][1] / messages, 2),
                "c": in_c.get(name, {}),
            }
            for name in order[:count]
        ]


@dataclass(frozen=True, slots=True)
class MeasuredCalls:
    """The calls of each process, with one message in flight and with batches."""

    transport: Transport
    directory_kind: str
    single: Sequence[ProcessCalls]
    """Of an append of one message."""
    batch: Sequence[ProcessCalls]
    """Of a message of a batch of BATCH_COUNT."""


@dataclass(frozen=True, slots=True)
class CountedCluster:
    """Three nodes whose calls are counted on request."""

    nodes: LocalCluster
    ask: Ask
    roles: dict[int, str]
    """Role of each node, by id."""

    def begin(self) -> None:
        """Have each node count from zero; when this returns they do."""
        for node_id in self.roles:
            self.ask(node_id, BEGIN)

    def end(self) -> dict[str, CallCounts]:
        """End the count; return the calls of each node by its role."""
        return {
            role: CallCounts.from_json(self.ask(node_id, END))
            for node_id, role in self.roles.items()
        }

    def check(self) -> None:
        """Raise MeasuredNodeError unless the leader is the one of the start."""
        leader = self.nodes.leader_id()
        if self.roles.get(leader) != "leader":
            raise MeasuredNodeError(
                f"node {leader} leads now and did not at the start, so the counts say nothing; "
                "run it again while the machine has less to do"
            )


@contextmanager
def counted_cluster(directory: Path, *, with_users: bool = False) -> Iterator[CountedCluster]:
    """Run the nodes in a directory that does not exist, `with_users` with one, who has TOKEN."""
    settings = dict(SETTINGS)
    if with_users:
        file = directory.with_suffix(".user")
        file.write_text(first_user_text("bench", digest_of(TOKEN)))
        secret = directory.with_suffix(".secret")  # Nodes with users prove themselves by it.
        secret.touch(0o600)
        secret.write_text(2 * TOKEN)
        settings |= {"users": "on", "users_file": str(file)}
        settings |= dict.fromkeys(("secret_file", "nameserver_secret_file"), str(secret))
    nodes = LocalCluster.create(directory, flush="sync", settings=settings)
    with signalled(nodes, "bench.calls.counted_node") as ask:
        roles = {nodes.leader_id(): "leader"}
        for node_id in nodes.node_ids:
            roles.setdefault(node_id, f"follower {len(roles)}")
        yield CountedCluster(nodes, ask, roles)


async def measure(
    directory: str | None, transport: Transport, *, with_users: bool = False
) -> MeasuredCalls:
    """Start nodes in a new directory below the given one (default: memory), and count; `with_users`
    every call is checked.

    Raises MeasuredNodeError if another node came to lead or one ended."""
    import quorumlog

    root = Path(tempfile.mkdtemp(prefix="qlog-calls-", dir=parent_of_data(directory)))
    try:
        with counted_cluster(root / "cluster", with_users=with_users) as cluster:
            token = TOKEN if with_users else ""
            async with quorumlog.connect(
                cluster.nodes.bootstrap, transport=transport, token=token
            ) as client:
                single, batch = await _both(cluster, client)
            cluster.check()
        return MeasuredCalls(transport, directory_kind(str(root)), single, batch)
    finally:
        shutil.rmtree(root)


async def _both(
    cluster: CountedCluster, client: "Client"
) -> tuple[list[ProcessCalls], list[ProcessCalls]]:
    await client.admin.create_topic(_TOPIC, queue_count=_QUEUE_COUNT)
    body = os.urandom(BODY_SIZE_BYTES)
    bodies = [os.urandom(BODY_SIZE_BYTES) for _ in range(BATCH_COUNT)]
    async with client.producer() as producer:
        single = await CountedLoad(cluster, lambda: producer.send(_TOPIC, body), 1).run()
        send_batch = partial(producer.send_batch, _TOPIC, bodies)
        batch = await CountedLoad(cluster, send_batch, BATCH_COUNT).run()
    return single, batch


class CountedLoad:
    """Counts one load in windows, each between two turns of all nodes."""

    def __init__(self, cluster: CountedCluster, send: Send, message_count: int) -> None:
        """Create the load of a running cluster; `send` acks that many messages."""
        self._cluster, self._counter = cluster, CallCounter()
        self._send, self._message_count = send, message_count

    async def run(self) -> list[ProcessCalls]:
        """Return the calls of each process."""
        for _ in range(_WARM_UP_COUNT):
            await self._send()
        await asyncio.sleep(_TAIL_S)
        idle, idle_s = await self._window(0, _IDLE_S)
        per_s = {role: ProcessCalls(role, n.total / idle_s) for role, n in idle.items()}
        for _ in range(_WINDOW_COUNT):
            window, seconds = await self._window(_APPENDS_PER_WINDOW, _TAIL_S)
            for role, counts in window.items():
                per_s[role].add(counts, seconds, _APPENDS_PER_WINDOW * self._message_count)
        return list(per_s.values())

    async def _window(
        self, append_count: int, tail_s: float
    ) -> tuple[dict[str, CallCounts], float]:
        await asyncio.to_thread(self._cluster.begin)
        began_s = time.monotonic()
        self._counter.start()
        for _ in range(append_count):
            await self._send()
        await asyncio.sleep(tail_s)
        counts = {"client": self._counter.stop()}
        seconds = time.monotonic() - began_s
        return await asyncio.to_thread(self._cluster.end) | counts, seconds
