"""The name of a queue: it unpacks into a pair, and compares by topic, number and group."""

import itertools
import operator
import pickle

from quorumlog import Queue

PAIR = ("orders", 3)
NAMES = (PAIR, Queue(*PAIR), Queue(*PAIR, "g0"), Queue(*PAIR, "g1"), ("orders", 4))
"""Names of which only the first two mean the same."""


def test_a_queue_unpacks_into_the_pair_of_topic_and_number() -> None:
    queue = Queue("orders", 3, "g1")
    topic, queue_id = queue
    assert (topic, queue_id, queue.topic, queue.queue_id) == ("orders", 3, "orders", 3)


def test_a_pair_equals_the_queue_without_a_group_only() -> None:
    pair = tuple(PAIR)
    assert [pair == name for name in NAMES] == [True, True, False, False, False]
    assert [name == PAIR for name in NAMES] == [True, True, False, False, False]
    assert [name != PAIR for name in NAMES] == [False, False, True, True, True]
    assert {PAIR: 7}[Queue(*PAIR)] == 7
    assert PAIR in {Queue(*PAIR)}
    assert Queue(*PAIR) != 3


def test_equality_is_an_equivalence_and_agrees_with_the_hash() -> None:
    for a, b, c in itertools.product(NAMES, repeat=3):
        assert (a == b) == (b == a)
        assert not (a == b and b == c) or a == c
        assert a != b or hash(a) == hash(b)


def test_queues_are_in_order_of_topic_group_and_number() -> None:
    queues = [Queue("b", 0, "g0"), Queue("a", 0, "g1"), Queue("a", 10, "g0"), Queue("a", 9, "g0")]
    in_order = [(q.topic, q.broker_group, q.queue_id) for q in sorted(queues)]
    assert in_order == [("a", "g0", 9), ("a", "g0", 10), ("a", "g1", 0), ("b", "g0", 0)]
    assert sorted([Queue("a", 2), Queue("a", 1)]) == [("a", 1), ("a", 2)]


def test_the_four_orders_agree_and_end_in_equality() -> None:
    names = (*NAMES, Queue("orders", 1, "g1"), Queue("orders", 9, "g0"), ("a", 9))
    for a, b in itertools.product(names, repeat=2):
        orders = operator.lt(a, b), operator.eq(a, b), operator.gt(a, b)
        assert sum(orders) == 1, (a, b)
        assert (a <= b, a >= b) == (not orders[2], not orders[0])
    assert max(Queue("a", 1, "g1"), Queue("a", 9, "g0")) == Queue("a", 1, "g1")


def test_a_queue_keeps_its_group_on_its_travels() -> None:
    queue = pickle.loads(pickle.dumps(Queue("orders", 0, "g1")))
    assert (queue, queue.broker_group) == (Queue("orders", 0, "g1"), "g1")
    assert str(queue) == "orders/0 of g1"
    assert str(Queue("orders", 0)) == "orders/0"
