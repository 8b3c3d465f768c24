"""The seam between the driver and the state machine: types only."""

from typing import Protocol

from raft.messages import Index


class Applier(Protocol):
    """What committed entries are handed to, in order, on the loop's thread."""

    def apply(self, lo: Index, hi: Index) -> None:
        """The entries [lo, hi) are committed and in the queues: take their commands over."""
        ...

    def restore(self, state: bytes, index: Index) -> None:
        """Replace everything by the state that came with a snapshot; the log begins behind
        `index`."""
        ...

    def snapshot(self) -> bytes:
        """Return the state as of the last applied entry, for a follower or a checkpoint."""
        ...
