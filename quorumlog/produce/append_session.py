"""One stream of appends to one node, from its first batch until its end.

Owns the batches in flight on the stream and the reason for its end; must not know what is sent
afterwards.
"""

import time
from collections import deque
from typing import Any

from quorumlog.cluster.channels import NodeChannel
from quorumlog.errors import QuorumlogError
from quorumlog.produce.delivery import Batch


class AppendSession:
    """An append stream. Answers come in the order of the batches."""

    def __init__(self, node: NodeChannel) -> None:
        self.node = node
        self.call: Any = node.append_stream()
        self.in_flight: deque[Batch] = deque()
        self.refused: list[Batch] = []  # To be sent again, before those in flight.
        self.error: QuorumlogError | None = None  # The reason of its end; the first one counts.
        self.is_draining = False  # Send nothing more, but take the answers that are due.
        self.is_unsent = False  # There was no connection: nothing was sent.
        self.decided_count = 0  # Batches with a receipt or a final refusal.
        self.progress_s = time.monotonic()

    def end(self, error: QuorumlogError, *, drain: bool = False) -> None:
        """Begin to end the stream: at once, or after the answers that are due."""
        if self.error is None:
            self.error = error
        self.is_draining = True
        if not drain:
            self.call.cancel()
