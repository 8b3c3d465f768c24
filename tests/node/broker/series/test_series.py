"""Series of single topics and groups: what they say, and how many there may be."""

import asyncio
from typing import Any

import pytest

from node.broker.series.busiest_names import REST, BusiestNames
from node.broker.series.series import GroupSeries, Series
from quorumlog.pb.consumer_pb2 import HeartbeatRequest
from quorumlog.pb.log_pb2 import PullRequest
from quorumlog.pb.pop_pb2 import ReceiveRequest
from tests.node.broker_fakes import Fixture, node_with


async def groups_of(series: Series) -> GroupSeries | None:
    await series.look()
    return series.groups()


@node_with(topics={"orders": 2})
async def test_lag_is_what_a_group_has_not_consumed_and_how_old_it_is(node: Fixture) -> None:
    series = Series(node.broker, 10)
    await node.append(0, 10)
    await node.append(0, 3, queue_id=1)
    stored_ms = node.broker.context.stored_ms("orders", 0, 4)
    assert stored_ms is not None
    node.clock.now_ms = stored_ms + 5_000
    await node.commit("g", ("orders", 0, 4), ("orders", 1, 3))
    groups = await groups_of(series)
    assert groups is not None
    assert (groups.lag_counts, groups.lag_s) == ({("g", "orders"): 6}, {("g", "orders"): 5.0})
    await node.commit("g", ("orders", 0, 10))
    groups = await groups_of(series)
    assert groups is not None
    assert (groups.lag_counts, groups.lag_s) == ({("g", "orders"): 0}, {("g", "orders"): 0.0})
    await node.broker.groups.heartbeat(
        HeartbeatRequest(group="new", client_id="c", topics=["orders"])
    )
    await node.commit("new", ("orders", 0, 10))
    groups = await groups_of(series)
    assert groups is not None
    assert groups.lag_counts["new", "orders"] == 3, "of a queue without a stored offset, too"
    node.driver.lose()
    assert series.groups() is None, "the next leader tells"


@node_with(topics={"orders": 2})
async def test_topics_tell_what_came_in_and_went_out_by_pull_and_pop(node: Fixture) -> None:
    series = Series(node.broker, 10)
    await node.append(0, 10)
    size_bytes = node.broker.produce.size_bytes_total
    pull = PullRequest(topic="orders", queue_id=0, max_count=4)
    pulled = await node.broker.pull(pull)
    receive = ReceiveRequest(topic="orders", group="p", client_id="c", max_count=6)
    received = await node.broker.pop.receive(receive)
    assert (pulled.record_count, len(received.deliveries)) == (4, 6)
    topics, groups = series.topics(), await groups_of(series)
    assert topics is not None
    assert groups is not None
    ((name, row),) = topics.counters.items()
    assert (name, row[:3]) == ("orders", (10, size_bytes, 10))
    assert size_bytes - 10 <= row[3] <= size_bytes + 10
    assert topics.end_offsets == {("orders", "0"): 10, ("orders", "1"): 0}
    assert (groups.in_flight_counts, groups.member_counts) == ({"p": 6}, {"p": 1})


@node_with(topics={f"t{n}": 20 for n in range(9)})
async def test_series_are_bounded_and_the_busiest_have_them(node: Fixture) -> None:
    series = Series(node.broker, 3)
    for n in range(9):
        await node.append(0, 10 * (n + 1), topic=f"t{n}", queue_id=19)
        await node.commit(f"g{n}", (f"t{n}", 19, 0))
        await node.broker.groups.heartbeat(
            HeartbeatRequest(group=f"g{n}", client_id="c", topics=[f"t{n}"])
        )
    topics, groups = series.topics(), await groups_of(series)
    assert topics is not None
    assert groups is not None
    counts = {name: row[0] for name, row in topics.counters.items()}
    assert counts == {"t6": 70, "t7": 80, "t8": 90, REST: 10 + 20 + 30 + 40 + 50 + 60}
    assert topics.end_offsets["t8", REST] == 90
    assert len(topics.end_offsets) == 3 * 17
    assert groups.lag_counts == {
        ("g6", "t6"): 70, ("g7", "t7"): 80, ("g8", "t8"): 90, (REST, REST): 210
    }  # fmt: skip
    assert groups.member_counts == {"g6": 1, "g7": 1, "g8": 1, REST: 6}
    assert Series(node.broker, 0).topics() is None


@node_with(topics={"orders": 4})
async def test_a_page_looks_at_a_bounded_count_of_queues(
    node: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.broker.series.series._ROW_COUNT_MAX", 8)
    rows, looked = node.broker.groups.read_rows, list[str]()

    def read_rows(group: str, now_ms: int) -> Any:
        looked.append(group)
        return rows(group, now_ms)

    monkeypatch.setattr(node.broker.groups, "read_rows", read_rows)
    await node.append(0, 5)
    for n in range(6):
        await node.commit(f"g{n}", *(("orders", queue, 0) for queue in range(4)))
    series = Series(node.broker, 10)
    found = [await groups_of(series) for _ in range(4)]
    assert [looked[n : n + 2] for n in range(0, 8, 2)] == [
        ["g0", "g1"], ["g2", "g3"], ["g4", "g5"], ["g0", "g1"]
    ]  # fmt: skip
    assert found[-1] is not None
    assert found[-1].lag_counts == {(f"g{n}", "orders"): 5 for n in range(6)}


@node_with(topics={"orders": 1})
async def test_the_loop_runs_between_slices_of_4000_groups(
    node: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock on which a question about a queue or the members of a group takes 50 us."""
    context = node.broker.context
    held, longest, asked = 0, 0, 0

    def question(function: Any) -> Any:
        def ask(*arguments: Any) -> Any:
            nonlocal held, asked
            held, asked = held + 1, asked + 1
            return function(*arguments)

        return ask

    async def turns_of_loop() -> None:
        nonlocal held, longest
        while True:
            held, longest = 0, max(held, longest)
            await asyncio.sleep(0)

    await node.append(0, 5)
    for n in range(4_000):
        context.state.groups[f"g{n}"] = {"orders": {0: 0}}
    members = node.broker.group_members
    monkeypatch.setattr(members, "clients_of", question(members.clients_of))
    monkeypatch.setattr(context.store, "queue_range", question(context.store.queue_range))
    monkeypatch.setattr(context.turn, "_monotonic_s", lambda: asked * 50e-6)
    series, turns = Series(node.broker, 10), asyncio.create_task(turns_of_loop())
    for n in range(1, 5):
        await series.look()
        assert asked <= n * 5_100, "1,000 groups: members, two queues; and 2,000 times"
    turns.cancel()
    assert 0 < longest <= 2_000 / 50 + 3, "a slice and one step"
    groups = series.groups()
    assert groups is not None
    assert groups.lag_counts[REST, REST] == 5 * 3_990
    assert len(groups.lag_counts) == len(groups.member_counts) == 11


def test_the_rest_never_shrinks_when_a_name_becomes_busy() -> None:
    """A counter that went back would look to Prometheus like a restart, and like as much again."""
    names = BusiestNames(1)
    assert names.counters({"a": (5,), "b": (4,)}) == {"a": (5,), REST: (4,)}
    assert names.counters({"a": (5,), "b": (6,)}) == {"a": (5,), REST: (6,)}
    assert names.counters({"a": (5,), "b": (106,)}) == {"b": (106,), REST: (6,)}
    assert names.counters({"a": (7,), "b": (106,)}) == {"b": (106,), REST: (8,)}
    assert names.counters({"a": (2,), "b": (106,)}) == {"b": (106,), REST: (10,)}, "made anew"
