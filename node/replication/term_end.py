"""What a start says of a term, or an epoch, that no elections explain.

Owns the error of a number at the end of its range and the warning of one that is just absurd;
must not know how such a number is kept out (`raft.ceiling` and `ha.core.ceiling` do it).
"""

from typing import Final

from node.config.limits import EPOCH_END
from node.errors.common import NodeError
from raft.ceiling import TERM_END, TERM_NOTABLE

EPOCH_NOTABLE: Final = 1 << 15
"""From here on an operator is warned: a promotion each hour would take four years."""


class TermEndError(NodeError):
    """The term or epoch on the disk is the end of its range: no node can be elected with it."""

    code, status = "node.term_end", "FAILED_PRECONDITION"

    def __init__(self, directory: str, what: str, number: int, do: str) -> None:
        super().__init__(directory, what, number, do)
        self.directory, self.what, self.number, self.do = directory, what, number, do

    def __str__(self) -> str:
        return (
            f"{self.directory}: {self.what} {self.number} is the end of its range, and no "
            f"elections explain it: it was forged; close the peer port to strangers, stop all "
            f"nodes of the group, and {self.do} (docs/operations.md)"
        )


def refuse_term_end(directory: str, term: int) -> None:
    """Raise TermEndError for a term above which a node has none to campaign for."""
    if term + 1 >= TERM_END:
        do = "begin a new cluster with 'qlog store restore' from the longest of their logs"
        raise TermEndError(directory, "term", term, do)


def refuse_epoch_end(directory: str, number: int) -> None:
    """Raise TermEndError for the last epoch of a master-slave group."""
    if number + 1 >= EPOCH_END:
        do = "put back a backup of all of them, or copy the messages into a new cluster"
        raise TermEndError(directory, "epoch", number, do)


def term_warnings(term: int) -> tuple[str, ...]:
    """Return warnings for the operator about a term that works but was not reached by elections."""
    return _warnings("term", term) if term >= TERM_NOTABLE else ()


def epoch_warnings(number: int) -> tuple[str, ...]:
    """Return the same warnings for an epoch of a master-slave group."""
    return _warnings("epoch", number) if number >= EPOCH_NOTABLE else ()


def _warnings(what: str, number: int) -> tuple[str, ...]:
    return (f"no elections explain {what} {number}: check which hosts can reach the peer port",)
