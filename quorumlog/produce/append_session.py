"""One stream of appends to one node, from its first batch until its end.

Owns what is under way on it and why it ends; must not know what is sent after it.
"""

import time
from collections import deque
from typing import Any

from quorumlog.cluster.channels import Node
from quorumlog.errors import QuorumlogError
from quorumlog.produce.delivery import Batch


class Session:
    """A stream. Answers come in the order of the batches."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.call: Any = node.append_stream()
        self.in_flight: deque[Batch] = deque()
        self.refused: list[Batch] = []  # To be sent again; they come before those in flight.
        self.error: QuorumlogError | None = None  # Why it ends; the first reason counts.
        self.is_draining = False  # Send nothing more; take the answers that are due.
        self.is_unsent = False  # There was no connection, so nothing has left.
        self.decided_count = 0  # Batches that got their receipt, or were refused for good.
        self.progress_s = time.monotonic()

    def end(self, error: QuorumlogError, *, drain: bool = False) -> None:
        """Begin to end it: at once, or after the answers that are due."""
        if self.error is None:
            self.error = error
        self.is_draining = True
        if not drain:
            self.call.cancel()
