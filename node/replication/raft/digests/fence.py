"""The fence of a node whose replicated state differs from that of a majority.

Owns whether it stands, and its place on disk, the meta file `raft`. Behind the fence a node answers
no read, and does not lead; it still names the leader. It continues to vote and to ack: votes and
acks promise the log, which its chain of checksums proves, and never the state.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import structlog

from node.errors.common import StateDivergedError
from node.replication.raft.storage.hard_state import NodeFile
from raft.messages import NO_INDEX
from store.errors import FileSystemError, LimitExceededError, StoreFullError

_log: Final = structlog.get_logger(component="digests")
_HELP: Final = 'see operations.md, "A state that differs"'


class StateFence:
    """The fence of one node. Belongs to the loop's thread."""

    def __init__(self, node_file: NodeFile, on_change: Callable[[bool], None]) -> None:
        """`on_change` gets whether the fence stands, at each change and now."""
        self._file, self._on_change = node_file, on_change
        self.reason: str = node_file.record.state_fence
        """Tables that differ, and where that was found; empty: there is no fence."""
        on_change(bool(self.reason))

    @property
    def problem(self) -> str:
        """The reason to avoid this node, for an operator; empty: none."""
        if not self.reason:
            return ""
        return f"its replicated state differs from that of a majority: {self.reason}; {_HELP}"

    def error(self) -> StateDivergedError | None:
        """Return the error of a call that would be answered from the state; None: answer it."""
        return StateDivergedError(self.reason) if self.reason else None

    def close(self, tables: str, position: int) -> None:
        """Put the fence up: tables differ behind a digest point. Raises SyncFailedError (stop)."""
        if self.reason:
            return
        reason = f"{tables} behind log position {position}"
        _log.error("the replicated state differs; this node no longer serves or leads", what=reason)
        self._set(reason, position)

    def lift(self, position: int) -> None:
        """Take the fence away if the state equals that of a majority behind a later point: a
        rebuilt state passes the earlier ones again. Raises SyncFailedError (stop)."""
        if self.reason and position > self._file.record.state_fence_position:
            _log.warning("the replicated state is that of a majority again", was=self.reason)
            self._set("", NO_INDEX)

    def _set(self, reason: str, position: int) -> None:
        self.reason = reason
        self._on_change(bool(reason))
        try:
            record = self._file.record
            self._file.save(replace(record, state_fence=reason, state_fence_position=position))
        except (StoreFullError, FileSystemError, LimitExceededError) as error:
            # It holds for this life; in the next one the digests are compared again.
            _log.error("the fence is not on disk", reason=reason, error=str(error))
