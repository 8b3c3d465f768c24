"""Dead letters that were sent again: runs of offsets of each group's dead-letter queue.

Owns the marks; must not know how a message is sent. A mark travels in one entry with the message it
is about, so each dead letter goes back at most once, under any leader. An offset that has expired
from the queue needs no mark, but expires for all replicas then: another one may have it still. Dead
letters of a deleted group need no marks either, though they may be in the log still: a new group of
that name has only those that lie behind the command that deleted the old one.
"""

from bisect import bisect_right
from typing import Any

from node.config.limits import Limits
from node.errors.common import LimitReachedError, NodeError
from node.state.tables.table import Core, Table, TableContent, TableImage
from quorumlog.pb.state_pb2 import Command
from store.files.meta_file import Json

Runs = list[tuple[int, int]]
"""Half-open, apart from each other, ascending."""


class DeadLettersTable(Table):
    """Group name to the runs of its resent dead letters. They outlive the topic: one that gets its
    name again continues the offsets."""

    name, file_name = "dead_letters", "deadLetters.json"
    commands = frozenset({"mark_resent"})

    def __init__(self, limits: Limits, image: TableImage) -> None:
        super().__init__(limits, image)
        table, deleted, expired = self._parts(image, resent={}, deleted=[], expired={})
        self._resent: dict[str, Runs] = {name: _runs(rows) for name, rows in table.items()}
        self._deleted: dict[str, int] = {str(name): int(position) for name, position in deleted}
        """Position of the deletion of each group that had dead letters; the oldest one first."""
        self._expired: dict[str, int] = {str(name): int(lo) for name, lo in expired.items()}
        """Offset of each group below which dead letters have no marks any more; 0 is left out."""
        self._frozen: dict[str, Json] = {}
        """Copies for images; a group whose marks changed since has none."""

    def begin_position(self, group: str) -> int:
        """Return the log position where this group's dead letters begin: before are another's."""
        return self._deleted.get(group, 0)

    def first_offset(self, group: str) -> int:
        """Return the offset below which dead letters count as expired on every replica."""
        return self._expired.get(group, 0)

    def is_resent(self, group: str, offset: int) -> bool:
        """Whether a dead letter was sent again."""
        runs = self._resent.get(group, [])
        at = bisect_right(runs, (offset, 1 << 63)) - 1
        return at >= 0 and runs[at][0] <= offset < runs[at][1]

    def runs_with(self, group: str, offsets: list[int], min_offset: int) -> Runs:
        """Return the runs that would be marked with these offsets added."""
        marks = [(offset, offset + 1) for offset in offsets]
        return _merged([*self._resent.get(group, []), *marks], min_offset)

    def apply(self, state: Core, command: Command, _position: int) -> NodeError | None:
        """Mark dead letters of a group."""
        mark = command.mark_resent
        runs = self.runs_with(mark.group, list(mark.offsets), mark.min_offset)
        limit = self._limits.resent_range_count_max
        if len(runs) > limit:
            return LimitReachedError("runs of resent dead letters", len(runs), limit)
        if mark.group not in state.groups:
            return None  # The group was deleted meanwhile, and its dead letters with it.
        self._resent[mark.group] = runs
        if mark.min_offset > self.first_offset(mark.group):
            self._expired[mark.group] = mark.min_offset
        self._frozen.pop(mark.group, None)
        self.version += 1
        return None

    def note_deleted(self, name: str, position: int) -> None:
        """Note the deletion of a group that had dead letters, by the command at a log position."""
        self._deleted.pop(name, None)
        self._deleted[name] = position
        if len(self._deleted) > self._limits.deleted_group_count_max:
            del self._deleted[next(iter(self._deleted))]
        self.version += 1

    def forget_group(self, name: str) -> None:
        """Forget the marks of a group; `note_deleted` keeps its dead letters from a later one."""
        self._frozen.pop(name, None)
        self._expired.pop(name, None)
        if self._resent.pop(name, None) is not None:
            self.version += 1

    def content(self) -> TableContent:
        """Return all marks; deleted groups and expired offsets only if there are any."""
        for name, runs in self._resent.items():
            if name not in self._frozen:
                self._frozen[name] = [list(run) for run in runs]
        content: TableContent = {"resent": dict(self._frozen)}
        if self._deleted:
            content["deleted"] = [list(row) for row in self._deleted.items()]
        if self._expired:
            content["expired"] = dict(self._expired)
        return content


def _runs(rows: Any) -> Runs:
    return [(int(lo), int(hi)) for lo, hi in rows]


def _merged(runs: Runs, min_offset: int) -> Runs:
    """Return the runs in order, neighbours as one, without offsets below a minimum."""
    merged: Runs = []
    for first, hi in sorted(runs):
        lo = max(first, min_offset)
        if merged and lo <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(hi, merged[-1][1]))
        elif lo < hi:
            merged.append((lo, hi))
    return merged
