"""Commands that travel in one entry with a client's batch, because of what the batch means.

Owns one type. A feature that has a meaning for some batches (a delayed message, a transaction,
offsets that are stored with what was made of the messages) turns the client's request into the
records that go into the log, and attached commands: applied together with the records, or not at
all. `produce` carries them and must not know what they say.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from node.state.appends import Committed, Prepared
from quorumlog.pb.log_pb2 import AppendResponse
from store.record.stamp import QueueKey

OnDecided = Callable[[Committed | None], None]
"""Called once with what was committed, or with None if the batch is not known to be applied. The
feature releases here everything that it held for the batch."""


class AttachedCommands(NamedTuple):
    """The commands of a batch, the right to touch system queues, and the feature's callbacks."""

    commands: bytes = b""
    """Encoded command records, back to back."""
    command_count: int = 0
    system_queues: frozenset[QueueKey] = frozenset()
    """Reserved queues into which the broker itself has put messages of this batch."""
    check: Callable[[Prepared], OnDecided] = lambda _prepared: lambda _committed: None
    """Checks the batch when its place is known and nothing is written; raises to refuse it.

    Called in the order in which batches enter the log, so what it compares with the state and with
    what is under way holds when the batch is applied.
    """
    moves_stored: bool = False
    """Whether the records were stored before: they may have grown beyond what clients may send."""
    asked: bytes = b""
    """Digest (`repeats.asked_digest`) of what the call asks beside its messages, or names instead
    of them: what comes again under the number of the batch must ask the same."""
    describe: Callable[[AppendResponse, Committed], None] = lambda _response, _committed: None
    """Adds the feature's fields to the receipt."""


NOTHING_ATTACHED: Final = AttachedCommands()
"""Attached to an ordinary batch: nothing."""
