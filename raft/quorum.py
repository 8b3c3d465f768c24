"""Majority arithmetic: pure functions over small lists, checked against brute force in the tests.

Knows nothing of roles or messages. Clusters have at most a handful of voters, so sorting is the
simplest sufficient method.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from raft.messages import NodeId


class VoteResult(IntEnum):
    PENDING = 0
    WON = 1
    LOST = 2


def quorum_size(count: int) -> int:
    """Return the smallest size at which any two sets of `count` voters share a member."""
    assert count > 0, "an empty configuration has no quorum"
    return count // 2 + 1


def quorum_value(values: list[int]) -> int:
    """Return the largest number that at least a majority of `values` reaches. May sort
    `values`."""
    assert values, "an empty configuration has no quorum"
    if len(values) == 3:  # The usual cluster: the middle one, without sorting.
        first, two, three = values
        if first > two:
            first, two = two, first
        return two if two <= three else three if three > first else first
    values.sort()
    return values[(len(values) - 1) // 2]


def vote_result(
    voters: tuple[NodeId, ...], votes: Mapping[NodeId, bool], *, unanimous: bool = False
) -> VoteResult:
    """Count the answers of `voters` only; with `unanimous` every one of them must agree."""
    needed = len(voters) if unanimous else quorum_size(len(voters))
    granted = refused = 0
    for voter in voters:
        answer = votes.get(voter)
        if answer is True:
            granted += 1
        elif answer is False:
            refused += 1
    if granted >= needed:
        return VoteResult.WON
    return VoteResult.LOST if len(voters) - refused < needed else VoteResult.PENDING
