"""The fast formulas against brute force."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raft.quorum import VoteResult, quorum_size, quorum_value, vote_result
from tests.seeds import examples

MATCHES = st.lists(st.integers(-1, 12), min_size=1, max_size=7)


@given(MATCHES)
@settings(max_examples=examples(300), deadline=None)
def test_quorum_value_equals_brute_force(values: list[int]) -> None:
    needed = len(values) // 2 + 1
    reached = [low for low in range(-1, 13) if sum(value >= low for value in values) >= needed]
    assert quorum_value(list(values)) == max(reached)


@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=7, unique=True),
    st.dictionaries(st.integers(1, 9), st.booleans(), max_size=9),
    st.booleans(),
)
@settings(max_examples=examples(300), deadline=None)
def test_vote_result_equals_brute_force(
    voters: list[int], votes: dict[int, bool], unanimous: bool
) -> None:
    """Won: every way the open votes fall wins. Lost: none does."""
    needed = len(voters) if unanimous else len(voters) // 2 + 1
    missing = [voter for voter in voters if voter not in votes]
    already = sum(votes.get(voter, False) for voter in voters)
    outcomes = {
        already + len(chosen) >= needed
        for size in range(len(missing) + 1)
        for chosen in combinations(missing, size)
    }
    expected = VoteResult.PENDING
    if outcomes == {True} or already >= needed:
        expected = VoteResult.WON
    elif outcomes == {False}:
        expected = VoteResult.LOST
    assert vote_result(tuple(voters), votes, unanimous=unanimous) is expected


@pytest.mark.parametrize("count", range(1, 10))
def test_any_two_quorums_meet(count: int) -> None:
    assert 2 * quorum_size(count) > count
    assert 2 * (quorum_size(count) - 1) <= count


def test_no_voters_no_quorum() -> None:
    with pytest.raises(AssertionError):
        quorum_size(0)
    with pytest.raises(AssertionError):
        quorum_value([])
