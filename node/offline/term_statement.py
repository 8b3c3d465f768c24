"""The statement of a sealed directory, for the change of terms of the whole group.

Owns the statement, its form as a file, and the one decision: to which term the group goes, or why
not. Must not open a directory (`term_change` does).

Why a term may be lowered at all, and only like this. A term on a disk is a promise: "I obey no
leader of an older term, and gave my one vote of this term to that node". A node that alone forgets
its promise could elect a second leader of a term that has one, or follow an older leader and lose
committed entries. But a promise protects only while the leader or candidate that got it lives, or
while an entry that this leader wrote exists. If all members are stopped at one moment, no leader or
candidate is left; and the entries of leaders are in the logs, with their terms. Let M be the
highest term of an entry in any of those logs: of terms above M there is no trace on any disk. All
members go to M + 1, with no vote given in it. Not to M: votes were given in M, and they are
forgotten. The moment is made by seals: no node starts between its statement and its change. Only
the statements of all members prove this, learners included: a log that is not looked at could hold
a term above M, and the same index and term would later mean two entries.

A master-slave group has epochs instead of terms and bindings instead of votes, and a master notes
its epoch in its own log before it serves; the same argument holds.
"""

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Final

from node.errors.common import NodeError

STATEMENT_SIZE_BYTES_MAX: Final = 64 << 10
"""Holds 256 members and some room."""
MEMBERS_MAX: Final = 256


class TermChangeRefusedError(NodeError):
    """Terms were not changed, since it would be unsafe or useless. Nothing changed."""

    code, status = "node.term_change_refused", "FAILED_PRECONDITION"

    def __init__(self, what: str, do: str) -> None:
        super().__init__(what, do)
        self.what, self.do = what, do

    def __str__(self) -> str:
        return f"{self.what}; {self.do}"


@dataclass(frozen=True, slots=True)
class Statement:
    """The state of one stopped and sealed directory."""

    seal: str
    kind: str
    """`raft`, or `ha` for a master-slave group."""
    cluster_id: str
    group: str
    node_id: int
    term: int
    """Term of the hard state; an epoch in a master-slave group."""
    vote: int
    """The node that got the vote of that term, 0 for none; in a master-slave group the master, or
    -1."""
    last_index: int
    """Last index of the log; in a master-slave group the position of its end."""
    last_term: int
    """The highest term of an entry that is or was in the log."""
    members: tuple[int, ...]
    """All members according to the log: voters and learners."""

    def to_json(self) -> str:
        """Return the statement as the text of a file."""
        body = asdict(self) | {"members": list(self.members)}
        return json.dumps({"statement": body, "crc": _crc(body)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, name: str, data: bytes) -> "Statement":
        """Return the statement in a file. Raises TermChangeRefusedError naming the file."""
        do = "take the file that 'qlog term seal' wrote, unchanged"
        if len(data) > STATEMENT_SIZE_BYTES_MAX:
            raise TermChangeRefusedError(f"{name} has {len(data)} bytes and is no statement", do)
        try:
            found = json.loads(data)
            body, crc = found["statement"], found["crc"]
            kinds = {field.name: type(body[field.name]) for field in fields(cls)}
        except (ValueError, KeyError, TypeError, RecursionError):
            raise TermChangeRefusedError(f"{name} is no statement", do) from None
        texts = {name for name, kind in kinds.items() if kind is str}
        numbers = {name for name, kind in kinds.items() if kind is int}
        is_whole = texts == _TEXTS and numbers == _NUMBERS and set(body) == set(kinds)
        members = body["members"]
        is_list = isinstance(members, list) and len(members) <= MEMBERS_MAX
        if not is_whole or not is_list or not all(type(member) is int for member in members):
            raise TermChangeRefusedError(f"{name} is no statement", do)
        if crc != _crc(body):
            raise TermChangeRefusedError(f"{name} was changed: its checksum is wrong", do)
        return cls(**body | {"members": tuple(members)})


_TEXTS: Final = {"seal", "kind", "cluster_id", "group"}
_NUMBERS: Final = {"node_id", "term", "vote", "last_index", "last_term"}


def _crc(body: dict[str, object]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())


def target_term(statements: Sequence[Statement], *, end: int) -> int:
    """Return the term that every member goes to. Raises TermChangeRefusedError.

    The same statements give the same answer on every node, in whatever order they come.
    """
    assert statements, "a node states at least itself"
    _refuse_strangers(statements)
    _refuse_missing(statements)
    target = max(one.last_term for one in statements) + 1
    if target + 1 >= end:
        last = max(statements, key=lambda statement: statement.last_term)
        raise TermChangeRefusedError(
            f"the log of node {last.node_id} holds entries of {target - 1}, which is the "
            f"end itself",
            "export the messages, and found a new cluster with them",
        )
    if all(one.term <= target for one in statements):
        raise TermChangeRefusedError(
            f"no node has a term above {target}, which the logs explain", "there is nothing to do"
        )
    return target


def _refuse_strangers(statements: Iterable[Statement]) -> None:
    seen: dict[int, Statement] = {}
    first: Statement | None = None
    for one in statements:
        first = first or one
        for what in ("kind", "cluster_id", "group"):
            if getattr(one, what) != getattr(first, what):
                raise TermChangeRefusedError(
                    f"node {one.node_id} is of {what} {getattr(one, what)!r}, node "
                    f"{first.node_id} of {getattr(first, what)!r}",
                    "give the statements of one group",
                )
        known = seen.setdefault(one.node_id, one)
        if known != one:
            raise TermChangeRefusedError(
                f"there are two statements of node {one.node_id} that differ",
                "remove the older one",
            )


def _refuse_missing(statements: Sequence[Statement]) -> None:
    """Raise TermChangeRefusedError unless every member that a log names has a statement."""
    have = {one.node_id for one in statements}
    missing = sorted({member for one in statements for member in one.members} - have)
    if missing:
        raise TermChangeRefusedError(
            f"members {missing} of the group are missing: a log that is not looked at may hold "
            f"what a forgotten vote protects",
            "seal them, too, and give all statements at once",
        )


def after(statement: Statement, *, term: int, vote: int) -> Statement:
    """Return the statement of the directory once lowered, to recognize a repeated change."""
    return replace(statement, term=term, vote=vote)
