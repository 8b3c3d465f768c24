"""The name of a queue: a pair where one group is enough, and more than that where it is not."""

import pickle

from quorumlog import Queue


def test_a_queue_is_the_pair_that_programs_know() -> None:
    queue = Queue("orders", 3, "g1")
    topic, queue_id = queue
    assert (topic, queue_id, queue.topic, queue.queue_id) == ("orders", 3, "orders", 3)
    assert queue == ("orders", 3)
    pair = ("orders", 3)
    assert pair == queue
    assert queue != ("orders", 4)
    assert queue != 3
    assert {pair: 7}[queue] == 7
    assert {queue: 7}.get(pair) == 7  # type: ignore[call-overload]
    assert ("orders", 3) in {queue}


def test_queues_of_two_groups_are_two() -> None:
    first, second = Queue("orders", 0, "g0"), Queue("orders", 0, "g1")
    assert first != second
    assert not first == second  # noqa: SIM201 - both operators are ours.
    assert len({first, second, Queue("orders", 0, "g1")}) == 2


def test_queues_are_in_order_of_topic_group_and_number() -> None:
    queues = [Queue("b", 0, "g0"), Queue("a", 0, "g1"), Queue("a", 10, "g0"), Queue("a", 9, "g0")]
    in_order = [(q.topic, q.group, q.queue_id) for q in sorted(queues)]
    assert in_order == [("a", "g0", 9), ("a", "g0", 10), ("a", "g1", 0), ("b", "g0", 0)]
    assert sorted([Queue("a", 2), Queue("a", 1)]) == [("a", 1), ("a", 2)]


def test_a_queue_keeps_its_group_on_its_travels() -> None:
    queue = pickle.loads(pickle.dumps(Queue("orders", 0, "g1")))
    assert (queue, queue.group) == (Queue("orders", 0, "g1"), "g1")
    assert str(queue) == "orders/0 of g1"
    assert str(Queue("orders", 0)) == "orders/0"
