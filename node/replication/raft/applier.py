"""The port between the driver and the state machine: types only."""

from typing import Protocol

from raft.messages import Index


class Applier(Protocol):
    """Receives committed entries, in order, on the loop's thread."""

    def apply(self, lo: Index, hi: Index) -> None:
        """Apply the commands of the entries [lo, hi), which are committed and in the queues."""
        ...

    def restore(self, state: bytes, index: Index) -> None:
        """Replace the whole state by that of a snapshot; the log begins behind `index`."""
        ...

    def snapshot(self) -> bytes:
        """Return the state as of the last applied entry, for a follower or a checkpoint."""
        ...
