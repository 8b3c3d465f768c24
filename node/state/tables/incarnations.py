"""The last incarnation of each named producer.

Owns the numbers; must not know batches. A number only grows, so a later claim of a name has the
higher one, under any leader.
"""

from typing import Any, Final

from node.config.limits import Limits
from node.errors.common import BadRequestError, LimitReachedError, NodeError
from node.state.tables.table import Core, TableContent, TableImage
from quorumlog.pb.state_pb2 import Command

NAME: Final = "producer_incarnations"
FILE_NAME: Final = "producerIncarnations.json"
COMMANDS: Final = frozenset({"claim_producer"})


class IncarnationsTable:
    """Name of a producer to the number of its last incarnation, from 1."""

    def __init__(self, limits: Limits, image: TableImage) -> None:
        """Read an image. Raises ValueError for one of another form."""
        self._limits = limits
        self.version = image.version
        table: Any = image.content.get("numbers", {})
        if set(image.content) - {"numbers"} or not isinstance(table, dict):
            raise ValueError(f"incarnations of an unknown form: {sorted(image.content)}")
        self.numbers: Final[dict[str, int]] = {str(n): int(number) for n, number in table.items()}

    def apply(self, _state: Core, command: Command, _position: int) -> NodeError | None:
        """Give a name to an incarnation. The leader has made sure that it is the next one."""
        claim = command.claim_producer
        found, limit = self.numbers.get(claim.name, 0), self._limits.producer_name_count_max
        if claim.number <= found:
            return BadRequestError("number", f"more than {found}", str(claim.number))
        if not found and len(self.numbers) >= limit:
            return LimitReachedError("names of producers", len(self.numbers) + 1, limit)
        self.numbers[claim.name] = claim.number
        self.version += 1
        return None

    def forget_topic(self, name: str) -> None:
        """Do nothing: names of producers are not names of topics."""

    def forget_group(self, name: str) -> None:
        """Do nothing: names of producers are not names of consumer groups."""

    def content(self) -> TableContent:
        """Return all numbers."""
        return {"numbers": dict(self.numbers)}
