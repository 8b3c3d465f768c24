"""The table of classic clients: what is refused, or left, takes no place in it."""

from typing import Any
from unittest.mock import Mock

import pytest

from node.rocketmq.remoting import clients
from node.rocketmq.remoting.clients import Clients, ConsumerGroup, Member
from node.rocketmq.remoting.protocol.answers import RefusedError


def member(connection: Any, client_id: str = "a") -> Member:
    return Member(client_id, connection, "JAVA", 453, 0.0, 0)


def table() -> Clients:
    return Clients(Mock(), Mock(), monotonic_s=lambda: 0.0)


def test_refused_clients_leave_no_groups_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each refused heartbeat would have grown the table, above its limit and for ever."""
    monkeypatch.setattr(clients, "CLIENT_COUNT_MAX", 1)
    known = table()
    known.put_producer("first", member(Mock()))
    for number in range(3):
        with pytest.raises(RefusedError):
            known.put_producer(f"p{number}", member(Mock()))
        with pytest.raises(RefusedError):
            known.put_consumer(f"c{number}", member(Mock()), ConsumerGroup(), {})
    assert (list(known.producers), list(known.consumers)) == (["first"], [])


@pytest.mark.parametrize("is_consumer", [False, True])
def test_a_group_that_a_client_left_gives_its_place_back(
    monkeypatch: pytest.MonkeyPatch, is_consumer: bool
) -> None:
    monkeypatch.setattr(clients, "GROUPS_OF_CLIENT_MAX", 1)
    known, connection, other = table(), Mock(), Mock()

    def put(group: str, on: Mock) -> None:
        if is_consumer:
            known.put_consumer(group, member(on), ConsumerGroup(), {})
        else:
            known.put_producer(group, member(on))

    put("one", connection)
    with pytest.raises(RefusedError):
        put("two", connection)
    known.remove(is_consumer, "one", "a")
    put("two", connection)
    put("two", other)  # The client goes on over another connection.
    put("three", connection)
    assert known.count == 2
    known.on_closed(other)
    known.on_closed(connection)
    assert known.count == 0
