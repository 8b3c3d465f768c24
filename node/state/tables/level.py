"""The level at which a group works: what all of its members write and send (docs/upgrading.md).

Owns the number of this build and the level that was agreed on. A build works at each level up to
its own, so old and new builds form one group at the lower level. An operator raises the level once
all members have the new build; until then any of them may go back. A change of commands, frames or
files that an older build cannot read gets a level of its own here, and is written at that level or
above only.
"""

from typing import Final

from node.config.limits import Limits
from node.errors.common import NewerLevelError, NodeError
from node.state.tables.table import Core, Table, TableContent, TableImage
from quorumlog.pb.state_pb2 import Command

LEVEL: Final = 1
"""The highest level of this build. 1: everything in version 0.1.0."""
FIRST_LEVEL: Final = 1
"""Of a group in which none was raised: the table is empty then, and no older build meets it."""


class LevelTable(Table):
    """The level of the group."""

    name, commands = "level", frozenset({"raise_level"})
    file_name = "level.json"

    def __init__(self, limits: Limits, image: TableImage) -> None:
        """Raises NewerLevelError, ValueError for an image of another form."""
        super().__init__(limits, image)
        (level,) = self._parts(image, level=FIRST_LEVEL)
        self.level: int = level
        """Never above `LEVEL`."""
        _check(level)

    def apply(self, _state: Core, command: Command, _position: int) -> NodeError | None:
        """Raise the level; a lower one changes nothing. Raises NewerLevelError: the node must
        stop."""
        level = command.raise_level.level
        _check(level)
        if level > self.level:
            self.level = level
            self._changed()
        return None

    def _copy(self) -> TableContent:
        return {"level": self.level}


def _check(level: int) -> None:
    if level > LEVEL:
        raise NewerLevelError(level, LEVEL)
