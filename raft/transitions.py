"""Permitted changes of role and their reasons: a table for the core and for the diagram.

Only data may live here. `state.set_role` asserts that each change it makes is in the table, so the
diagram in ARCHITECTURE.md (`python -m raft.transitions`) cannot show less than the core does.
"""

from __future__ import annotations

from enum import IntEnum


class Role(IntEnum):
    """Activity of a replica. Learner and recovering are not roles: such a node is a follower."""

    FOLLOWER = 0
    PRE_CANDIDATE = 1
    CANDIDATE = 2
    LEADER = 3


TRANSITIONS: dict[tuple[Role, Role], tuple[str, ...]] = {
    (Role.FOLLOWER, Role.FOLLOWER): ("higher term seen", "two leaders in one term"),
    (Role.FOLLOWER, Role.PRE_CANDIDATE): ("election timeout",),
    (Role.FOLLOWER, Role.CANDIDATE): ("asked to take over",),
    (Role.PRE_CANDIDATE, Role.FOLLOWER): (
        "higher term seen",
        "vote granted",
        "leader of this term seen",
        "refused by a quorum",
        "no longer entitled to campaign",
        "memory lost",
    ),
    (Role.PRE_CANDIDATE, Role.PRE_CANDIDATE): ("election timeout",),
    (Role.PRE_CANDIDATE, Role.CANDIDATE): ("pre-vote quorum", "asked to take over"),
    (Role.CANDIDATE, Role.FOLLOWER): (
        "higher term seen",
        "leader of this term seen",
        "refused by a quorum",
        "no longer entitled to campaign",
        "memory lost",
    ),
    (Role.CANDIDATE, Role.PRE_CANDIDATE): ("election timeout",),
    (Role.CANDIDATE, Role.LEADER): ("vote quorum",),
    (Role.LEADER, Role.FOLLOWER): (
        "higher term seen",
        "no contact with a quorum",
        "own removal committed",
        "memory lost",
        "two leaders in one term",
    ),
}


def mermaid() -> str:
    """Return the table as a mermaid state diagram, one edge per pair with its reasons."""
    lines = ["stateDiagram-v2", "    [*] --> follower"]
    for (old, new), reasons in TRANSITIONS.items():
        lines.append(f"    {old.name.lower()} --> {new.name.lower()}: {', '.join(reasons)}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(mermaid())
