"""The names of batches: the id of a producer and the sequence number of each batch.

Owns the next name; must not know what is sent under it. A node remembers names, so the same batch
under the same name is stored once. Numbers begin at 0 and have no gap. A producer that the program
has given a name claims it once: its earlier holder is refused from then on, and so is this producer
after a later claim.
"""

import secrets

from quorumlog.cluster.calls import Calls
from quorumlog.cluster.retry import Deadline
from quorumlog.errors import Outcome, QuorumlogError
from quorumlog.pb import log_pb2


class ProducerIdentity:
    """The identity of one producer in one broker group. Id 0: repetitions are not recognised."""

    def __init__(self, *, is_idempotent: bool, name: str | None = None) -> None:
        self._is_idempotent = is_idempotent
        self._name = name
        self.incarnation: log_pb2.ProducerIncarnation | None = None
        """The claim of the name; None without a name, or before the claim."""
        self.fence = b""
        """A field of AppendRequest, serialised: the claim of the name; empty without a name."""
        self._producer_id = self._next_sequence = 0
        self._draw()

    def _draw(self) -> None:
        self._producer_id = secrets.randbits(64) | 1 if self._is_idempotent else 0
        self._next_sequence = 0

    def renew(self) -> None:
        """Continue under a new id: repetitions of earlier batches are not recognised any more."""
        self._draw()

    def next_name(self) -> tuple[int, int]:
        """Return the id, and a number that was not given to another batch."""
        sequence = self._next_sequence
        self._next_sequence += self._is_idempotent
        return self._producer_id, sequence

    def go_back(self, sequence: int) -> None:
        """Give this number and those after it again: no batch under them was applied."""
        assert sequence <= self._next_sequence, f"{sequence} was not given yet"
        self._next_sequence = sequence

    async def claim(self, calls: Calls, cluster_id: str, deadline: Deadline) -> None:
        """Claim the name, if there is one, on the first call. Raises the error of the leader.

        A repetition after a lost answer fences the first claim, under which no batch was sent.
        """
        if self._name is None or self.fence:
            return
        request = log_pb2.ClaimProducerRequest(name=self._name, cluster_id=cluster_id)
        try:
            answer = await calls.leader(request, deadline)
        except QuorumlogError as error:
            error.outcome = Outcome.NOT_APPLIED  # The outcome of the messages: none was sent yet.
            raise
        self.incarnation = log_pb2.ProducerIncarnation(name=self._name, number=answer.number)
        self.fence = log_pb2.AppendRequest(incarnation=self.incarnation).SerializeToString()
