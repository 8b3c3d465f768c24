"""What travels in one entry with a client's batch, because of what the batch means.

Owns one type. A feature that has a meaning for some batches (a delayed message, a transaction,
offsets that are stored with what was made of the messages) turns the client's request into the
records that go into the log, and a rider: commands that are applied together with them, or not at
all. `produce` carries it and must not know what it says.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from node.broker.core.ports import Committed, Prepared
from quorumlog.pb.log_pb2 import AppendResponse

QueueKey = tuple[bytes, int]


def _accept(_prepared: Prepared) -> None:
    """There is nothing to look at."""


def _ignore(_committed: Committed | None) -> None:
    """There is nobody to tell."""


def _add_nothing(_response: AppendResponse, _committed: Committed) -> None:
    """The receipt says everything."""


class Rider(NamedTuple):
    """The commands of a batch and the right to touch system queues."""

    commands: bytes = b""
    """Encoded command records, back to back."""
    command_count: int = 0
    system_queues: frozenset[QueueKey] = frozenset()
    """Reserved queues into which the broker itself has put messages of this batch."""
    check: Callable[[Prepared], None] = _accept
    """A last look when the place of the batch is known and nothing is written: raise to refuse.

    It is called in the order in which batches enter the log, so what it compares with the state
    and with what is under way holds when the batch is applied.
    """
    on_decided: Callable[[Committed | None], None] = _ignore
    """Called once after a `check` that passed: with None if the batch is not known to be applied.

    Everything that was held for the batch is let go here.
    """
    moves_stored: bool = False
    """The records were stored before, by whoever: they may have grown beyond what clients send."""
    describe: Callable[[AppendResponse, Committed], None] = _add_nothing
    """Adds to the receipt what is special about the batch."""


NO_RIDER: Final = Rider()
"""Of an ordinary batch."""
