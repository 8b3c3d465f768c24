"""Choice of the follower that a leader asks to take over when none was named.

Owns that one choice; must not know why the leader hands over, nor when.
"""

from raft.messages import NO_NODE, NodeId, Term
from raft.state.progress import ProgressState
from raft.state.state import RaftState


def best_follower(state: RaftState, *, asked_last: tuple[Term, NodeId]) -> NodeId:
    """Return the voter with most of the log, those that answer first; NO_NODE without one that
    counts.

    The node that was asked last in this term comes behind the others: it did not take over."""
    rows = [
        (
            state.has_contact(progress),
            progress.state is ProgressState.REPLICATE,
            (state.term, node) != asked_last,
            progress.match,
            -node,
            node,
        )
        for node, progress in state.progress.items()
        if node in state.voters and progress.is_counted
    ]
    return max(rows)[-1] if rows else NO_NODE
