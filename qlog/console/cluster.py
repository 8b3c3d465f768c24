"""The connection of a console to its cluster, shared by all pages.

Owns the client and how long an answer serves several pages: many open tabs ask the cluster no more
often than one. Must not know any page.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, NamedTuple, TypeVar

import quorumlog
from qlog.cluster.judgement import Look, Looks
from quorumlog.admin.messages import DelayStatus
from quorumlog.admin.types import ClusterStatus, NodeDown, NodeEvent, NodeHistory
from quorumlog.errors import DeadlineError, PermissionDeniedError, QuorumlogError, UnavailableError

SHARED_S: Final = 1.0
"""An answer serves all that ask within this time."""
_SHARED_COUNT_MAX: Final = 256
_DELAYS_S: Final = 1.0
_FLOWS_S: Final = 10.0
"""The same of counts by topic, which cost a node the most. Those six times as old give no rate."""
_FLOW: Final = re.compile(r'\nquorumlog_topic_(in|out)_messages_total\{topic="([^"]*)"\} (\S+)')
_T = TypeVar("_T")
Flow = tuple[float, float | None]
"""Messages since the processes of the nodes began, and how many a second; None: not known yet."""


class _Shared(NamedTuple):
    """An answer, and how long it serves."""

    at_s: float
    for_s: float
    answer: asyncio.Future[Any]

    def is_over(self, now_s: float) -> bool:
        done = self.answer
        is_wrong = done.done() and (done.cancelled() or done.exception() is not None)
        return now_s - self.at_s > (SHARED_S if is_wrong else self.for_s)


class Cluster:
    """What pages ask. One per console, for one event loop."""

    def __init__(self, client: quorumlog.Client, *, is_full: bool) -> None:
        """`is_full`: whether pages may change the cluster."""
        self.client: Final = client
        self.is_full: Final = is_full
        self._shared: dict[Hashable, _Shared] = {}
        self._looks: Final = Looks(client)
        self._counts: dict[int, tuple[float, dict[tuple[str, str], float]]] = {}
        """Of each node: when they were read, in s, and messages by `in` or `out` and topic."""

    async def shared(
        self, key: Hashable, ask: Callable[[], Awaitable[_T]], for_s: float = SHARED_S
    ) -> _T:
        """Return an answer that is at most `for_s` old, an error at most `SHARED_S`; those who ask
        together share one."""
        now = time.monotonic()
        found = self._shared.get(key)
        if found is None or found.is_over(now):
            for old in [k for k, one in self._shared.items() if one.is_over(now)]:
                del self._shared[old]
            if len(self._shared) >= _SHARED_COUNT_MAX:
                return await ask()
            found = self._shared[key] = _Shared(now, for_s, asyncio.ensure_future(ask()))
            found.answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        answer: _T = await asyncio.shield(found.answer)
        return answer

    async def status(self) -> ClusterStatus:
        """Return the status of all nodes."""
        return await self.shared("status", self.client.admin.cluster_status)

    async def node_ids(self) -> list[int]:
        """Return the nodes that answer."""
        nodes = (await self.status()).nodes
        return sorted(node.node_id for node in nodes if not isinstance(node, NodeDown))

    async def histories(self) -> dict[int, NodeHistory]:
        """Return the last hour of each node that answers."""
        return await self.shared("histories", self._histories)

    async def _histories(self) -> dict[int, NodeHistory]:
        ids = await self.node_ids()
        found = await asyncio.gather(*(self.try_node(self.client.admin.history(n)) for n in ids))
        return {n: said for n, said in zip(ids, found, strict=True) if said is not None}

    async def look(self) -> Look:
        """Return the status of all nodes, and what is wrong."""
        return await self.shared("look", self._looks.look)

    async def events(self) -> list[NodeEvent]:
        """Return the events of all nodes, the newest first."""
        await self.look()
        every = [event for said in self._looks.events.values() for event in said.events]
        every.sort(key=lambda event: (event.unix_ms, event.node_id, event.number), reverse=True)
        return every

    async def delays(self) -> list[DelayStatus] | None:
        """Return the delayed messages of each broker group; None: one has no leader now."""
        try:
            async with asyncio.timeout(_DELAYS_S):
                return await self.shared("delays", self.client.admin.delay_status)
        except (TimeoutError, QuorumlogError):
            return None

    async def flows(self, for_s: float = _FLOWS_S) -> dict[tuple[str, str], Flow]:
        """Return the flows `in` and `out` of each topic that has series of its own."""
        return await self.shared("flows", self._flows, for_s)

    async def _flows(self) -> dict[tuple[str, str], Flow]:
        try:
            ids = await self.node_ids()
            asked = (self.try_node(self.client.admin.metrics(node_id)) for node_id in ids)
            pages = await asyncio.gather(*asked)
        except PermissionDeniedError:
            return {}
        now, before, self._counts = time.monotonic(), self._counts, {}
        flows: dict[tuple[str, str], Flow] = {}
        for node_id, page in zip(ids, pages, strict=True):
            counts = {(way, topic): float(n) for way, topic, n in _FLOW.findall(page or "")}
            self._counts[node_id] = now, counts
            at_s, old = before.get(node_id, (now, {}))
            for key, count in counts.items():
                total, per_s = flows.get(key, (0, None))
                if 0 < now - at_s < 6 * _FLOWS_S and key in old and old[key] <= count:
                    per_s = (per_s or 0.0) + (count - old[key]) / (now - at_s)
                flows[key] = total + count, per_s
        return flows

    @staticmethod
    async def try_node(call: Awaitable[_T]) -> _T | None:
        """Return the answer of a node; None if it gives none, which its status says as well."""
        try:
            return await call
        except (UnavailableError, DeadlineError):
            return None
        except QuorumlogError as error:
            if error.code in ("node.unknown_method", "node.wrong_mode"):  # An older build; raft.
                return None
            raise
