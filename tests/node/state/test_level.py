"""The level of a group: raised once for all, and never met by a build that does not have it."""

import pytest

from node.config.limits import Limits
from node.errors.common import NewerLevelError
from node.state.registry import check_tables
from node.state.state import State
from node.state.tables import level
from node.state.tables.level import LevelTable
from quorumlog.pb.state_pb2 import Command


def raised(state: State, number: int) -> None:
    assert state.apply_command(Command(raise_level=Command.RaiseLevel(level=number)), 0) is None


def test_a_raised_level_stays_and_leaves_no_trace_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A build before levels reads a state in which none was raised."""
    state = State(Limits())
    raised(state, level.FIRST_LEVEL)
    assert LevelTable.name not in state.image().tables
    with pytest.raises(NewerLevelError, match="start this node with the newer version"):
        raised(state, level.LEVEL + 1)
    newer = level.LEVEL + 1
    monkeypatch.setattr(level, "LEVEL", newer)
    raised(state, newer)
    raised(state, newer - 1)
    image = state.image()
    assert State(Limits(), image).table(LevelTable).level == newer
    monkeypatch.undo()
    with pytest.raises(NewerLevelError):
        check_tables(image.tables)
