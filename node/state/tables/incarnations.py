"""The last incarnation of each named producer.

Owns the numbers; must not know batches. A number only grows, so a later claim of a name has the
higher one, under any leader.
"""

from typing import Final

from node.config.limits import Limits
from node.errors.common import BadRequestError, LimitReachedError, NodeError
from node.state.tables.table import Core, Table, TableContent, TableImage
from quorumlog.pb.state_pb2 import Command


class IncarnationsTable(Table):
    """Name of a producer to the number of its last incarnation, from 1."""

    name, file_name = "producer_incarnations", "producerIncarnations.json"
    commands = frozenset({"claim_producer"})

    def __init__(self, limits: Limits, image: TableImage) -> None:
        super().__init__(limits, image)
        (table,) = self._parts(image, numbers={})
        self.numbers: Final[dict[str, int]] = {str(n): int(number) for n, number in table.items()}

    def apply(self, _state: Core, command: Command, _position: int) -> NodeError | None:
        """Give a name to an incarnation. The leader has made sure that it is the next one."""
        claim = command.claim_producer
        number, limit = self.numbers.get(claim.name, 0), self._limits.producer_name_count_max
        if claim.number <= number:
            return BadRequestError("number", f"more than {number}", str(claim.number))
        if not number and len(self.numbers) >= limit:
            return LimitReachedError("names of producers", len(self.numbers) + 1, limit)
        self.numbers[claim.name] = claim.number
        self._changed()
        return None

    def _copy(self) -> TableContent:
        return {"numbers": dict(self.numbers)}
