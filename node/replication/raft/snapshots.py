"""Snapshots of this node: built beside the loop, sent when its core says so, taken when whole.

Owns the way between the core's request and the transfer: the state is copied on the loop, encoded
on the maintenance thread (never beside a deletion, which has the same thread), and sent at the
transfer's pace. Must not know frames or files.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

import structlog

from node.errors.common import NodeError
from node.peers.frames import FrameKind
from node.peers.link import PeerLink
from node.replication.maintenance import MaintenanceThread
from node.replication.raft.driver import RaftDriver
from node.replication.raft.snapshot_transfer import SnapshotReceiver, SnapshotSender
from node.replication.raft.storage.log import LedgerLog
from node.replication.raft.storage.snapshot import (
    SnapshotFormatError,
    build_snapshot,
    decode_snapshot,
    encode_snapshot,
)
from node.state.image import encode_image
from node.state.machine import StateMachine
from raft.core import check_term
from raft.errors import PeerProtocolError
from raft.messages import InstallSnapshot, NodeId
from raft.ready import RoleChange
from raft.state.progress import ProgressState
from raft.transitions import Role
from store.errors import FileSystemError, StoreError, StoreFullError

PUMP_MS: Final = 10
"""Pause between two sends: a megabyte each makes 100 MB/s."""
_log: Final = structlog.get_logger(component="snapshots")


class Snapshots:
    """Both directions. Belongs to the loop."""

    def __init__(self, log: LedgerLog, machine: StateMachine, link: PeerLink, group: str) -> None:
        self._log, self._machine = log, machine
        self._sender = SnapshotSender(link, self._on_failed)
        self._receiver = SnapshotReceiver(
            group, link.identity.node_id, self._on_received, check=self._check
        )
        self._loop = asyncio.get_running_loop()
        self._is_pumping = False
        self._driver: RaftDriver
        self._thread: MaintenanceThread
        self._spawn: Callable[[object], None]

    def attach(
        self, driver: RaftDriver, thread: MaintenanceThread, spawn: Callable[[object], None]
    ) -> None:
        """Give the parts that need this one to be built; call it before any event."""
        self._driver, self._thread, self._spawn = driver, thread, spawn
        driver.add_role_listener(self._on_role)

    # --- Sending ---

    def begin(self, message: InstallSnapshot) -> None:
        """Build the snapshot for the log up to `message.meta.index`, and send it.

        A leader behind its state fence sends none: its state is not that of the majority. The core
        asks again after its deadline, and the fence takes the leadership away meanwhile."""
        self._spawn(self._send(message))

    async def _send(self, message: InstallSnapshot) -> None:
        if self._is_refused(message):
            return
        meta, image = message.meta, self._machine.image()

        def build() -> bytes:
            state = encode_image(image)
            return encode_snapshot(
                build_snapshot(self._log.store, meta, state, image.applied_index)
            )

        try:
            data = await self._thread.on_thread(build)
        except (StoreError, NodeError) as error:
            self._on_failed(message.to, f"it cannot be built: {error}")
            return
        if self._is_refused(message):
            return
        if self._driver.role is not Role.LEADER or self._driver.term != message.term:
            return
        self._sender.begin(message, data)
        _log.info("sends a snapshot", to=message.to, index=meta.index, size_bytes=len(data))
        if not self._is_pumping:
            self._is_pumping = True
            self._pump()

    def _is_refused(self, message: InstallSnapshot) -> bool:
        """Whether the state must not leave this node."""
        if self._driver.is_fenced:
            _log.error("sends no snapshot: this state is not the majority's", to=message.to)
        return self._driver.is_fenced

    def _pump(self) -> None:
        replica = self._driver.replica
        followers = replica.core.state.progress
        for node in self._sender.delivered():
            follower = followers.get(node)
            if follower is None or follower.state is not ProgressState.SNAPSHOT:
                self._sender.forget(node)
        for node in self._sender.pump(time.monotonic_ns() // 1_000_000):
            replica.core.report_snapshot_moved(node)
        self._is_pumping = bool(self._sender.transfers)
        if self._is_pumping:
            self._loop.call_later(PUMP_MS / 1000, self._pump)

    def _on_failed(self, node: NodeId, reason: str) -> None:
        _log.warning("a snapshot did not arrive", to=node, reason=reason)
        self._driver.on_snapshot_failed(node)

    def _on_role(self, change: RoleChange) -> None:
        if change.role is not Role.LEADER:
            self._sender.cancel()

    # --- Receiving ---

    def on_frame(self, node: NodeId, kind: FrameKind, header: bytes, payload: memoryview) -> None:
        """Take a part of a snapshot. Raises PeerProtocolError: drop the connection."""
        self._receiver.on_frame(node, kind, header, payload)

    def _check(self, message: InstallSnapshot) -> None:
        check_term(self._driver.replica.core.state, message)

    def _on_received(self, message: InstallSnapshot, data: bytes) -> None:
        try:
            snapshot = decode_snapshot(data)
        except SnapshotFormatError as error:
            raise PeerProtocolError(message.sender, str(error)) from error
        if snapshot.meta != message.meta:
            problem = f"a snapshot of {snapshot.meta}, announced was {message.meta}"
            raise PeerProtocolError(message.sender, problem)
        try:
            self._log.received.write(data)
        except (StoreFullError, FileSystemError) as error:
            # Neither taken nor acked: the leader gives this transfer up and begins another one.
            _log.warning("a snapshot is not taken", index=message.meta.index, error=str(error))
            return
        _log.info("received a snapshot", index=message.meta.index, size_bytes=len(data))
        self._driver.install_snapshot(message, data)

    # --- Connections ---

    def on_disconnected(self, node: NodeId) -> None:
        """Give up the transfers from and to this peer."""
        self._receiver.on_disconnected(node)
        self._sender.on_disconnected(node)
