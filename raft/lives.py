"""Lives of nodes: detection of a node that came back on an old copy of its own disk.

Owns a node's statement of itself, the others' memory of it, and the comparison of the two;
must not know files, frames or time. A copy (an earlier backup, a snapshot of a virtual machine)
starts like any disk and holds no sign of its age: only other nodes' memory of the node can show it.

A node raises the number of its life with every start and draws a random nonce for it. So a copy of
an earlier life starts a life that is over, or one with the number of the newest and another nonce;
when the copy was started more often, the lives that it remembers are not those in which the node
was seen. A copy of the newest life itself starts the next one, like a node that crashed. So the
others also remember the node's durable promises: the newest term it was seen in, how far it had
acked in which term, and how much of that is committed. Terms and votes are durable before they are
told and acks after a sync, so a node whose disk began with less has lost memory. Within its term an
acked prefix is never cut, and a committed one in no term; a later term may cut entries that were
merely acked.

A loss of memory that the node itself notices is another matter (raft.rules.recovery): the node
raises its incarnation, and its earlier acks are not expected any more. A node that was told it is
an old copy becomes JOINING under a new incarnation, which it tells as `joined`: higher than the
remembered one, this ends the case.

A new member has no memory of other nodes, so it believes a copy, and tells the others of it. Their
memories of the node are then of two disks, and neither memory shows which disk is the copy: a node
that was started again looks the same from outside. So memories of different lives are kept apart
until the node itself tells a life that fits all of them. One disk that was started again fits them
all; of two disks neither does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from raft.messages import NO_INDEX, NO_TERM, Index, NodeId, Standing, Term
from raft.state.progress import UNHEARD
from raft.state.state import RaftState
from raft.transitions import Role

PAST_MAX = 64
"""Lives whose nonces a node remembers. A node not seen for longer is judged by the number of its
life."""

APART_MAX = 8
"""Memories of one node that are kept apart, beside the known one.

Of a further one only the promises are kept, and those only if it is of the known incarnation: a
copy that nothing but the life of that memory shows is then believed by this node. The others still
compare it with what they know themselves. The known memory and those that are kept already are
never given up for one that is heard, so a peer that tells of many lives drives none of them out."""

NO_LIFE = 0
"""Life of a node that tells none: it is not part of a cluster yet."""


class ToldLife(NamedTuple):
    """Statement of a node on its own disk. All of it is durable there."""

    life: int
    """Number of starts of this disk, this one included."""
    nonce: int
    """Random number drawn at the start."""
    start_term: Term
    start_last_index: Index
    """Last index of the log at the start."""
    term: Term
    last_index: Index
    """Last index now; may be less than at the start after another leader's term began."""
    standing: Standing
    incarnation: int
    joined: int
    """Incarnation in which the node last began without memory; 0: never."""
    past: tuple[int, ...] = ()
    """Nonces of the earlier lives, the newest first; at most PAST_MAX."""


class Known(NamedTuple):
    """Memory that other nodes have of a node."""

    life: int = NO_LIFE
    nonce: int = 0
    incarnation: int = 0
    term: Term = NO_TERM
    """Newest term that the node was seen in."""
    acked_term: Term = NO_TERM
    acked: Index = NO_INDEX
    """Last entry that the node acked as durable in `acked_term`."""
    committed: Index = NO_INDEX
    """Last of the acked entries that is committed."""


UNKNOWN = Known()


def memory_lost(known: Known, statement: ToldLife) -> str:
    """Return in what respect a node's disk is older than the memory of it; empty if in none."""
    if statement.life == NO_LIFE or statement.joined > known.incarnation:
        return ""
    if statement.nonce == known.nonce:
        # Not a copy of its disk; but the memory of a whole machine can be restored as well.
        term, last = statement.term, statement.last_index
    elif statement.life < known.life:
        return f"it began life {statement.life}, and was seen in life {known.life}"
    elif statement.life == known.life:
        return f"it began life {statement.life} a second time"
    elif not _has_lived(statement, known):
        return f"the life {known.life} in which it was seen was none of its own"
    else:
        term, last = statement.start_term, statement.start_last_index
    if statement.incarnation < known.incarnation:
        return f"it is of incarnation {statement.incarnation}, and was of {known.incarnation}"
    if term < known.term:
        return f"its term was {term}, and it had been in {known.term}"
    if statement.incarnation > known.incarnation:
        return ""  # The node itself told that acked entries may be missing.
    if last < known.committed:
        return f"its log ended at {last}, and it had acked {known.committed}, which is committed"
    if term == known.acked_term and last < known.acked:
        return f"its log ended at {last}, and it had acked {known.acked} in the same term"
    return ""


def _has_lived(statement: ToldLife, known: Known) -> bool:
    """Whether the life in which a node was seen is one of its own, as far as it still knows.

    A copy that was started often enough has a number above all seen ones."""
    back = statement.life - known.life - 1
    return (
        known.life == NO_LIFE or back >= len(statement.past) or statement.past[back] == known.nonce
    )


def learned(known: Known, statement: ToldLife) -> Known:
    """Return the memory of a node after this node believed its statement."""
    if statement.life == NO_LIFE:
        return known
    if statement.joined > known.incarnation:
        return Known(statement.life, statement.nonce, statement.incarnation, statement.term)
    if statement.incarnation > known.incarnation:
        known = known._replace(acked_term=NO_TERM, acked=NO_INDEX, committed=NO_INDEX)
    return known._replace(
        life=statement.life,
        nonce=statement.nonce,
        incarnation=statement.incarnation,
        term=max(known.term, statement.term),
    )


def merged(known: Known, other: Known) -> Known:
    """Return the union of two memories of one node. One of an older incarnation is ignored."""
    if (known.incarnation, known.life) < (other.incarnation, other.life):
        known, other = other, known
    return _with_promises(known, other)


def _with_promises(known: Known, other: Known) -> Known:
    """Return the memory of a node with the promises of another memory, if of one incarnation."""
    if other.incarnation != known.incarnation:
        return known
    acked_term, acked = max((known.acked_term, known.acked), (other.acked_term, other.acked))
    return known._replace(
        term=max(known.term, other.term),
        acked_term=acked_term,
        acked=acked,
        committed=max(known.committed, other.committed),
    )


class Lives:
    """Memory that one node has of the others. Not thread-safe."""

    def __init__(
        self,
        known: Mapping[NodeId, Known] | None = None,
        apart: Mapping[NodeId, tuple[Known, ...]] | None = None,
    ) -> None:
        self.known: dict[NodeId, Known] = dict(known or {})
        """Memory by node; for the disk and for other nodes."""
        self.apart: dict[NodeId, tuple[Known, ...]] = dict(apart or {})
        """Memories by node that the node's next statement has to fit, too; for the disk. They are
        of other lives than the one in `known`, and maybe of another disk."""
        self.statements: dict[NodeId, ToldLife] = {}
        """Last statement of each node, of those believed since the start."""
        self.dropped_count = 0
        """Memories heard of whose lives were dropped, since APART_MAX were kept; a memory that is
        heard again is counted again."""

    def of(self, node: NodeId) -> Known:
        """Return the memory of a node; UNKNOWN if there is none."""
        return self.known.get(node, UNKNOWN)

    def judge(self, node: NodeId, statement: ToldLife, *, asked: Known | None = None) -> str:
        """Return in what respect the node lacks memory, or believe it and return an empty text.

        `asked`: the memory at the time of the question, if acks may have come since then."""
        own_view = self.of(node)
        is_of_now = statement.nonce == own_view.nonce or own_view.life == NO_LIFE
        was = asked if asked is not None and is_of_now else own_view
        lost = memory_lost(was, statement) or self._lost_apart(node, statement)
        if not lost and statement.life != NO_LIFE:
            self.known[node] = learned(own_view, statement)
            self.statements[node] = statement
            self.apart.pop(node, None)
        return lost

    def _lost_apart(self, node: NodeId, statement: ToldLife) -> str:
        """Compare a statement with the memories that are kept apart, as `memory_lost` does.

        The memory that the statement does not fit becomes the one that the node receives."""
        apart = self.apart.get(node, ())
        for at, one in enumerate(apart):
            # The promises of the life that the node tells are in the known memory as well, and
            # are compared there, since they may be younger than the statement.
            lost = memory_lost(one, statement) if one.nonce != statement.nonce else ""
            if lost:
                view = self.known[node]
                self.known[node] = _with_promises(one, view)
                self.apart[node] = (*apart[:at], view, *apart[at + 1 :])
                return lost
        return ""

    def hear(self, node: NodeId, other: Known) -> str:
        """Take over another node's memory of `node`.

        Return in what respect `node` lacks memory, if its statement was believed here and does not
        fit; empty if it fits. The node may also have started again since: ask it for a new
        statement, which is judged by both memories."""
        view, statement = self.of(node), self.statements.get(node)
        if statement is not None and other.nonce != statement.nonce:
            lost = memory_lost(other, statement)
            if lost:
                del self.statements[node]
                # The own memory may be of the copy, so the node receives the other one.
                self.known[node] = _with_promises(other, view)
                self._keep_apart(node, view)
                return lost
        both = merged(view, other)
        if (
            statement is None
            and NO_LIFE not in (view.life, other.life)
            and view.nonce != other.nonce
        ):
            apart = self.apart.get(node, ())
            is_kept = any(one.nonce == other.nonce for one in apart)
            if is_kept or len(apart) >= APART_MAX:
                # It was set apart for the known one, else the two would take turns; or there is no
                # room to set the known one apart for it.
                both = _with_promises(view, other)
            if is_kept or len(apart) < APART_MAX:
                self._keep_apart(node, other if both.nonce == view.nonce else view)
            else:
                self.dropped_count += 1
        self.known[node] = both
        return ""

    def _keep_apart(self, node: NodeId, memory: Known) -> None:
        """Keep a memory that no statement has shown to be of the same disk as the known one."""
        apart = self.apart.get(node, ())
        for at, one in enumerate(apart):
            if one.nonce == memory.nonce:
                self.apart[node] = (*apart[:at], merged(one, memory), *apart[at + 1 :])
                return
        assert len(apart) < APART_MAX, "a memory too many, which the disk would refuse"
        self.apart[node] = (*apart, memory)

    def note(self, node: NodeId, promises: Known) -> None:
        """Take over observed promises of a node; its life is not in them.

        Ignored for an incarnation that the node has not told."""
        view = self.of(node)
        if view.life == NO_LIFE or promises.incarnation == view.incarnation:
            self.known[node] = merged(view, promises)

    def note_term(self, node: NodeId, term: Term) -> None:
        """Note that a node was seen in a term."""
        view = self.of(node)
        self.known[node] = view._replace(term=max(view.term, term))

    def look(self, state: RaftState) -> None:
        """Take over everything the own replica has learned since the last call."""
        for node, found in _seen(state):
            self.note(node, found)
        for node, term in state.terms_seen.items():
            self.note_term(node, term)
        state.terms_seen.clear()

    def forget(self, node: NodeId) -> None:
        """Forget a node whose number is no longer in use."""
        self.known.pop(node, None)
        self.apart.pop(node, None)
        self.statements.pop(node, None)


def _seen(state: RaftState) -> Iterator[tuple[NodeId, Known]]:
    """Yield how far the followers acked to this replica, if it leads. Not for the hot path."""
    if state.role is not Role.LEADER:
        return
    for node, progress in state.progress.items():
        if progress.incarnation != UNHEARD:
            acked, term = progress.match, state.term
            committed = min(acked, state.commit)
            yield node, Known(NO_LIFE, 0, progress.incarnation, term, term, acked, committed)
