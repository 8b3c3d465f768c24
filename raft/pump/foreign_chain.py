"""Entries that do not fit behind those that are here: changed on the way, or never alike.

Owns how the two are told apart: what was changed on the way comes right the next time, and what is
refused twice in the very same way is another history under the same indexes and terms. That takes
two leaders of one term, so a voter that voted twice (raft.rules.divergence). The core compares
terms only, so here is where such a history is seen.
"""

from raft.errors import ForeignChainError
from raft.messages import Index, NodeId


class ForeignChains:
    """Remembers the last refusal."""

    def __init__(self) -> None:
        self._last: tuple[object, ...] = ()

    def is_again(self, error: ForeignChainError) -> bool:
        """Return whether the same was refused before, and remember this one."""
        seen = (error.peer, error.index, error.found)
        was, self._last = self._last, seen
        return was == seen


def check_alike(peer: NodeId, index: Index, here: int, there: int) -> None:
    """Raise ForeignChainError unless the chains through an entry of one term are the same."""
    if here != there:
        detail = f"the log through entry {index} is {there:08X} there and {here:08X} here"
        raise ForeignChainError(peer, detail, index, there)
