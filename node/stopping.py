"""How a node stops without losing acknowledged data: its components stop in a fixed order.

Owns the order and the time-outs. Each step stops only components that exist, so the same code
cleans up after a start that failed half-way.
"""

import asyncio
from collections.abc import Awaitable
from typing import Final

import structlog

from node.monitoring.health import Phase
from node.node import Node
from node.raft_node import RaftNode
from node.runtime.node_file import remove_node_file

CALL_GRACE_MS: Final = 500
"""Time for calls whose answer is on its way when the broker stops."""
_log: Final = structlog.get_logger(component="stopping")


class Stopping:
    """One stop of one node."""

    def __init__(self, node: Node, hurry: asyncio.Event) -> None:
        """Stop `node`; once `hurry` is set, without waiting for the drain or for calls."""
        self._node, self._hurry = node, hurry

    async def run(self) -> None:
        """Stop everything; the directory is closed on return."""
        node = self._node
        if hasattr(node, "driver"):
            node.health.enter(Phase.DRAINING, "told to stop")
            await self._politely(self._drain())
            if hasattr(node, "nameserver"):
                await self._politely(node.nameserver.leave())
            node.broker.stop()
        node.health.enter(Phase.STOPPING)
        if hasattr(node, "grpc"):
            await node.grpc.stop(0 if self._hurry.is_set() else CALL_GRACE_MS)
        if hasattr(node, "rocketmq"):
            await node.rocketmq.stop()
        if hasattr(node, "scrub"):
            await node.scrub.stop()
        if hasattr(node, "derived"):
            await node.derived.stop()
        if hasattr(node, "maintenance"):
            await node.maintenance.stop()
        if isinstance(node, RaftNode) and hasattr(node, "repair"):
            await node.repair.stop()
        if hasattr(node, "driver"):
            node.driver.stop()
        await node.lives.stop()
        if hasattr(node, "link"):
            await node.link.stop()
        if hasattr(node, "nameserver"):
            await node.nameserver.stop()
        if hasattr(node, "log"):
            await asyncio.to_thread(node.log.close)
        await asyncio.to_thread(node.sync_watch.stop)
        if hasattr(node, "http"):
            await node.http.stop()
        if node.peer_address:  # Else the file belongs to the process that locks the directory.
            remove_node_file(node.settings.directory)
        _log.info("stopped")

    async def _politely(self, work: Awaitable[None]) -> None:
        """Wait until `work` ends, the drain time-out passes or `hurry` is set; cancel the rest."""
        task = asyncio.ensure_future(work)
        hurry = asyncio.ensure_future(self._hurry.wait())
        timeout_s = self._node.settings.drain_timeout_ms / 1000
        try:
            await asyncio.wait(
                (task, hurry), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not task.done():
                _log.warning("stops without having drained")
        finally:
            task.cancel()
            hurry.cancel()
            await asyncio.gather(task, hurry, return_exceptions=True)

    async def _drain(self) -> None:
        """Refuse new appends, give leadership up, answer the pending appends."""
        node = self._node
        node.broker.set_draining(True)
        await node.drain(node.settings.drain_timeout_ms)
