"""Strategies of RocketMQ: what they divide, and that all members agree."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog import errors
from quorumlog.consume.rebalance import (
    STRATEGIES,
    Strategy,
    assign,
    averagely,
    circle,
    strategy_name,
    strategy_of,
)

QUEUES = [("t", i) for i in range(8)]


def ids(queues: list[tuple[str, int]]) -> list[int]:
    return [queue_id for _, queue_id in queues]


def test_averagely_gives_runs_and_the_first_members_more() -> None:
    shares = [ids(averagely(c, QUEUES, ["a", "b", "c"])) for c in "abc"]
    assert shares == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert [ids(averagely(c, QUEUES[:2], ["a", "b", "c"])) for c in "abc"] == [[0], [1], []]


def test_circle_deals_one_by_one() -> None:
    shares = [ids(circle(c, QUEUES, ["a", "b", "c"])) for c in "abc"]
    assert shares == [[0, 3, 6], [1, 4, 7], [2, 5]]


@given(
    name=st.sampled_from(sorted(STRATEGIES)),
    counts=st.dictionaries(st.sampled_from("xyz"), st.integers(0, 20), max_size=3),
    members=st.sets(st.text("abcdef", min_size=1, max_size=4), min_size=1, max_size=6),
)
def test_every_queue_has_exactly_one_member(
    name: str, counts: dict[str, int], members: set[str]
) -> None:
    strategy = STRATEGIES[name]
    shares = [assign(strategy, member, counts, list(members)) for member in sorted(members)]
    dealt = sorted(queue for share in shares for queue in share)
    assert dealt == sorted((topic, i) for topic, count in counts.items() for i in range(count))
    assert assign(strategy, "a stranger", counts, list(members)) == []


def test_consistent_hash_moves_few_queues_when_a_member_leaves() -> None:
    strategy: Strategy = STRATEGIES["consistent_hash"]
    queues = [("t", i) for i in range(200)]
    members = [f"m{i}" for i in range(5)]
    before = {m: set(strategy(m, queues, members)) for m in members}
    after = {m: set(strategy(m, queues, members[:-1])) for m in members[:-1]}
    for member in members[:-1]:
        assert before[member] <= after[member]
    assert max(len(share) for share in before.values()) < 100


def test_strategies_have_names_that_tell_them_apart() -> None:
    def mine(_client_id: str, queues: Any, _client_ids: Any) -> Any:
        return list(queues)

    class Other:
        __call__ = staticmethod(mine)

    made: list[Strategy] = [*STRATEGIES.values(), mine, Other()]
    names = [strategy_name(one) for one in made]
    assert names[:3] == list(STRATEGIES)
    assert names[3].endswith(".mine"), "module and qualified name"
    assert names[4].endswith(".Other")
    assert len(set(names)) == 5
    assert max(map(len, names)) <= 64, "nodes refuse longer ones"


def test_a_strategy_is_a_name_or_a_function() -> None:
    assert strategy_of("circle") is circle
    assert strategy_of(averagely) is averagely
    with pytest.raises(errors.InvalidRequestError, match="averagely, circle, consistent_hash"):
        strategy_of("by_luck")


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("said", [[("t", 9)], [(["t"], 0)], [("t", 0), ("t", 0)], [5], None])
def test_a_bad_strategy_has_an_error_of_its_own(count: int, said: Any) -> None:
    with pytest.raises(errors.InvalidRequestError, match=r"the strategy .*; ") as caught:
        assign(lambda *_: said, "m", {"t": count}, ["m"])
    assert caught.value.code == "client.bad_strategy"
