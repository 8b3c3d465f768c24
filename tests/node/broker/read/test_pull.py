"""Reads through the broker: freshness, statuses, waiting, filters and tails."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.config.limits import Limits
from node.errors import common as errors
from node.errors.common import NodeError
from node.state.state import COMMAND_TOPIC, State
from node.state.tables.moved_offsets import MovedOffsetsTable
from quorumlog.pb import common_pb2, log_pb2
from quorumlog.pb.consumer_pb2 import FetchOffsetsRequest
from quorumlog.pb.log_pb2 import AppendRequest, PullRequest, PullResponse, QueryByKeyRequest
from store import format as fmt
from store.errors import CorruptionError
from store.record.message import encode_message, java_hash
from tests.node.broker_fakes import Fixture, expire_some, node_at, node_with, request
from tests.patience import PATIENCE_S, eventually
from tests.store.records import damage, messages, numbers

LOCAL = common_pb2.CONSISTENCY_LOCAL
LINEARIZABLE = common_pb2.CONSISTENCY_LINEARIZABLE
FOUND = log_pb2.PULL_STATUS_FOUND
NO_NEW = log_pb2.PULL_STATUS_NO_NEW_MESSAGE
NO_MATCHED = log_pb2.PULL_STATUS_NO_MATCHED_MESSAGE
TOO_SMALL = log_pb2.PULL_STATUS_OFFSET_TOO_SMALL
TOO_BIG = log_pb2.PULL_STATUS_OFFSET_TOO_BIG


async def pull(node: Fixture, offset: int = 0, **how: Any) -> PullResponse:
    return await node.broker.pull(PullRequest(**{"topic": "orders", "offset": offset, **how}))


def parked(node: Fixture, offset: int = 0, **how: Any) -> "asyncio.Task[PullResponse]":
    """Begin a pull that has nothing to return yet."""
    return asyncio.create_task(pull(node, offset, wait_ms=10_000, **how))


async def waiting(node: Fixture, count: int) -> None:
    await eventually(lambda: node.broker.parked.readers.used == count)


# --- Once ---


async def test_a_pull_tells_the_newest_move_of_any_group(node: Fixture) -> None:
    assert (await pull(node)).newest_move == 0
    await node.commit("g", ("orders", 1, 0))
    response = await node.broker.groups.fetch_offsets(FetchOffsetsRequest(group="g"))
    assert (await pull(node)).newest_move == response.offsets[0].move > 0
    by_key = QueryByKeyRequest(topic="orders", key="k")
    assert (await node.broker.queries.query_by_key(by_key)).newest_move > 0
    table = State(Limits(), node.machine.image()).table(MovedOffsetsTable)
    assert table.newest == response.offsets[0].move, "and after a restart"


async def test_a_reader_that_met_damage_has_the_node_check_it(
    tmp_path: Path, node: Fixture
) -> None:
    await node.append(0, 3)
    damage(tmp_path, (await pull(node, 1, max_count=1)).records)
    assert (await pull(node)).record_count == 3
    with pytest.raises(CorruptionError, match="body CRC"):
        await pull(node, verify=True)


async def test_a_pull_tells_of_which_entries_the_records_are_if_asked(node: Fixture) -> None:
    first = await node.append(0, 3)
    far = [await node.append(n, n + 1, queue_id=1) for n in range(20)]
    last = await node.append(3, 5)
    page = await pull(node, 1, with_entries=True)
    assert numbers(page.records) == [1, 2, 3, 4]
    assert list(page.entry_first_records) == [0, 2], "one run an entry"
    assert list(page.entry_indexes) == [first.index, last.index]
    assert list(page.entry_terms) == [first.term, last.term]
    other = await pull(node, queue_id=1, with_entries=True)
    assert list(other.entry_indexes) == [receipt.index for receipt in far]
    assert list(other.entry_first_records) == list(range(20))
    assert not (await pull(node)).entry_indexes, "nobody asked"
    assert not (await pull(node, 5, with_entries=True)).entry_indexes, "nothing is there"


async def test_a_pull_returns_records_and_where_to_go_on(node: Fixture) -> None:
    await node.append(0, 10)
    page = await pull(node, 2, max_count=3)
    assert numbers(page.records) == [2, 3, 4]
    assert (page.status, page.record_count, page.next_offset) == (FOUND, 3, 5)
    assert (page.min_offset, page.max_offset, page.node_id) == (0, 10, 1)
    assert page.applied_index == node.driver.applied_index
    small = await pull(node, 0, max_size_bytes=1)
    assert numbers(small.records) == [0], "one is returned whatever its size"
    commands = await node.broker.pull(PullRequest(topic=COMMAND_TOPIC))
    assert commands.record_count == 1, "system topics may be read"


@pytest.mark.parametrize(
    ("offset", "queue_id", "status", "next_offset"),
    [(5, 0, NO_NEW, 5), (6, 0, TOO_BIG, 5), (0, 1, NO_NEW, 0), (1, 1, TOO_BIG, 0)],
)
async def test_an_offset_at_or_behind_the_end(
    node: Fixture, offset: int, queue_id: int, status: int, next_offset: int
) -> None:
    await node.append(0, 5)
    page = await pull(node, offset, queue_id=queue_id)
    assert (page.status, page.next_offset) == (status, next_offset)
    assert page.records == b""


async def test_expired_offsets_say_where_to_go_on(node: Fixture) -> None:
    await expire_some(node)
    page = await pull(node, 0)
    assert page.status == TOO_SMALL
    assert page.next_offset == page.min_offset > 0
    assert (await pull(node, page.min_offset)).status == FOUND


async def test_bad_questions_are_refused(node: Fixture) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"topic": "nobody"}, "node.unknown_topic"),
        ({"queue_id": 4}, "node.unknown_queue"),
        ({"queue_id": -1}, "node.unknown_queue"),
        ({"offset": -1}, "node.bad_request"),
        ({"tags": [""]}, "node.bad_request"),
        ({"tags": ["x"] * 65}, "node.bad_request"),
        ({"tags": ["a", "b||c"]}, "node.bad_request"),
        ({"tags": ["*"]}, "node.bad_request"),
        ({"consistency": 9}, "node.bad_request"),
        ({"cluster_id": "other"}, "node.wrong_cluster"),
        ({"topic": "secret"}, "node.topic_not_readable"),
    ]
    await node.create_topic("secret", permission=2)
    for how, code in cases:
        with pytest.raises(NodeError) as caught:
            await pull(node, **how)
        assert caught.value.code == code, how


# --- How fresh ---


async def test_only_committed_messages_are_seen(node: Fixture) -> None:
    node.driver.is_holding = True
    future = node.broker.append_nowait(request(0, 3))
    for consistency in (0, LOCAL, LINEARIZABLE):
        page = await pull(node, consistency=consistency)
        assert page.status == NO_NEW
    node.driver.release()
    await future
    assert (await pull(node)).record_count == 3


async def test_a_follower_answers_local_reads_only(node: Fixture) -> None:
    await node.append(0, 3)
    node.driver.lose(2)
    assert (await pull(node, consistency=LOCAL)).record_count == 3
    for consistency in (0, common_pb2.CONSISTENCY_LEADER, LINEARIZABLE):
        with pytest.raises(errors.NotLeaderError) as caught:
            await pull(node, consistency=consistency)
        assert caught.value.leader_address == "host2:8082"


@node_with(limits=replace(Limits(), read_wait_ms_max=20))
async def test_a_linearizable_read_waits_for_a_quorum(node: Fixture) -> None:
    await node.append(0, 3)
    assert (await pull(node, consistency=LINEARIZABLE)).record_count == 3
    node.driver.is_cut_off = True
    with pytest.raises(errors.ReadTimeoutError, match="no quorum confirmed"):
        await pull(node, consistency=LINEARIZABLE)
    task = asyncio.create_task(pull(node, consistency=LINEARIZABLE))
    await eventually(lambda: len(node.driver.barriers) == 2)
    node.driver.lose(2)
    with pytest.raises(errors.ReadFailedError) as caught:
        await task
    assert caught.value.leader_address == "host2:8082"
    assert node.broker.parked.reads.used == 0


@node_with(limits=replace(Limits(), read_waiters_max=1))
async def test_reads_that_wait_are_bounded(node: Fixture) -> None:
    node.driver.is_cut_off = True
    task = asyncio.create_task(pull(node, consistency=LINEARIZABLE))
    await eventually(lambda: node.driver.barriers)
    for how in ({"consistency": LINEARIZABLE}, {"at_least_index": 99}):
        with pytest.raises(errors.BusyError, match="waiting reads"):
            await pull(node, **how)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert node.broker.parked.reads.used == 0


@pytest.mark.parametrize("consistency", [0, LOCAL])
async def test_a_read_waits_until_an_index_is_applied(node: Fixture, consistency: Any) -> None:
    node.driver.is_holding = True
    future = node.broker.append_nowait(request(0, 3))
    index = node.log.last_index
    task = asyncio.create_task(pull(node, at_least_index=index, consistency=consistency))
    later = asyncio.create_task(pull(node, at_least_index=index + 1, consistency=LOCAL))
    await eventually(lambda: node.broker.parked.reads.used == 2)
    node.driver.release()
    await future
    assert (await task).record_count == 3
    assert not later.done()
    await node.append(3, 4)
    assert (await later).record_count == 4


async def test_the_ends_of_queues_wait_for_an_index_too(node: Fixture) -> None:
    """Else a reader of a slow replica would stop before what it wants to read."""
    node.driver.is_holding = True
    future = node.broker.append_nowait(request(0, 3))
    query = log_pb2.QueueOffsetsRequest(
        queues=[common_pb2.QueueId(topic="orders", queue_id=0)],
        consistency=LOCAL,
        at_least_index=node.log.last_index,
    )
    task = asyncio.create_task(node.broker.queries.queue_offsets(query))
    await eventually(lambda: node.broker.parked.reads.used == 1)
    node.driver.release()
    await future
    assert (await task).queues[0].max_offset == 3


@node_with(limits=replace(Limits(), read_wait_ms_max=5))
async def test_an_index_that_does_not_come_is_a_timeout(node: Fixture) -> None:
    with pytest.raises(errors.ReadTimeoutError, match="entry 99 was not applied here"):
        await pull(node, at_least_index=99, consistency=LOCAL)


# --- Waiting ---


async def test_a_parked_pull_is_woken_by_its_queue_only(node: Fixture) -> None:
    task, other = parked(node), parked(node, queue_id=1)
    await waiting(node, 2)
    await node.append(0, 2)
    assert numbers((await task).records) == [0, 1]
    assert not other.done()
    other.cancel()
    await asyncio.gather(other, return_exceptions=True)
    assert node.broker.parked.readers.used == 0
    assert not node.broker.has_waiting_readers(), "a cancelled reader leaves nothing"


async def test_parked_readers_are_woken_at_once_and_not_only_when_their_time_is_over(
    node: Fixture,
) -> None:

    async def begun() -> "asyncio.Task[None]":
        task = asyncio.create_task(node.broker.parked.for_growth((b"orders", 0), 3_600))
        await asyncio.sleep(0)
        return task

    async def woken(*readers: "asyncio.Task[None]") -> list[bool]:
        for _ in range(8):  # No timer is due by then.
            await asyncio.sleep(0)
        return [reader.done() for reader in readers]

    first, second = await begun(), await begun()
    await node.append(0, 1)
    third = await begun()
    assert await woken(first, second, third) == [True, True, False]
    await node.append(1, 2)
    assert await woken(third) == [True]
    for change in (node.driver.lose, node.driver.lead):
        reader = await begun()
        change()
        assert await woken(reader) == [True]


async def test_a_parked_pull_ends_with_nothing_when_its_time_is_over(node: Fixture) -> None:
    await node.append(0, 2)
    page = await pull(node, 2, wait_ms=5)
    assert (page.status, page.next_offset) == (NO_NEW, 2)
    assert node.broker.parked.readers.used == 0


@node_with(limits=replace(Limits(), pull_waiters_max=2))
async def test_parked_pulls_are_bounded(node: Fixture) -> None:
    tasks = [parked(node) for _ in range(2)]
    await waiting(node, 2)
    with pytest.raises(errors.BusyError, match="waiting readers: 2 held"):
        await pull(node, wait_ms=10)
    await node.append(0, 1)
    assert [(await task).record_count for task in tasks] == [1, 1]


async def test_a_parked_reader_of_the_leader_learns_that_it_leads_no_more(node: Fixture) -> None:
    task, local = parked(node), parked(node, consistency=LOCAL)
    await waiting(node, 2)
    node.driver.lose(2)
    with pytest.raises(errors.NotLeaderError):
        await task
    await waiting(node, 1)
    node.driver.lead()
    await node.append(0, 1)
    assert (await local).record_count == 1, "any replica serves it"


async def test_a_local_reader_ahead_of_its_replica_waits_for_it(node: Fixture) -> None:
    await node.append(0, 2)
    node.driver.lose(2)
    task = parked(node, 3, consistency=LOCAL)
    await waiting(node, 1)
    node.driver.lead()
    await node.append(2, 3)
    await waiting(node, 1)
    await node.append(3, 5)
    page = await task
    assert numbers(page.records) == [3, 4]


async def test_a_deleted_topic_wakes_nobody_but_is_told_in_the_end(node: Fixture) -> None:
    task = asyncio.create_task(pull(node, wait_ms=30))
    await waiting(node, 1)
    await node.delete_topic("orders")
    with pytest.raises(errors.UnknownTopicError):
        await task


async def test_a_stop_wakes_everybody(node: Fixture) -> None:
    tasks = [
        parked(node),
        parked(node, consistency=LOCAL),
        asyncio.create_task(pull(node, at_least_index=99, consistency=LOCAL)),
    ]
    await waiting(node, 2)
    node.broker.stop()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in outcomes] == [errors.ShuttingDownError] * 3


# --- Tags ---


def tagged(tags: list[str], host: tuple[str, int] = ("127.0.0.1", 0)) -> AppendRequest:
    """One message a tag; the body is the tag. The tag is first, in the middle or alone."""
    rows = []
    for number, tag in enumerate(tags):
        properties = {"KEYS": "k", "TAGS": tag, "z": "1"} if number % 2 else {"TAGS": tag}
        rows.append(encode_message("orders", 0, tag.encode(), properties, store_host=host))
    return AppendRequest(records=b"".join(rows), record_count=len(rows))


@pytest.mark.parametrize("host", [("127.0.0.1", 8081), ("::1", 8081)])
async def test_a_filter_compares_the_tag_and_not_its_hash(
    tmp_path: Path, host: tuple[str, int]
) -> None:
    assert java_hash("Aa") == java_hash("BB"), "the example of two tags with one hash"

    async with node_at(tmp_path, store_host=host) as node:
        await node.broker.append(tagged(["Aa", "BB", "x", "Aa", "BB"], host))
        page = await pull(node, tags=["Aa"])
        assert [m.body for m in messages(page.records)] == [b"Aa", b"Aa"]
        assert (page.record_count, page.next_offset) == (2, 5)
        page = await pull(node, tags=["BB", "x"])
        assert [m.body for m in messages(page.records)] == [b"BB", b"x", b"BB"]
        page = await pull(node, tags=["BB"], max_count=1)
        assert (page.status, page.record_count, page.next_offset) == (NO_MATCHED, 0, 1)
        for wait_ms in (0, 5):
            page = await pull(node, tags=["other"], wait_ms=wait_ms)
            assert (page.status, page.next_offset) == (NO_MATCHED, 5)


@pytest.mark.parametrize(
    ("at", "how"),
    [
        (fmt.BODY_LENGTH_AT, {"tags": ["tag0"]}),
        (fmt.INT32.size, {"tags": ["tag0"]}),
        (-30, {"tags": ["tag0"]}),
        (fmt.INT32.size, {"sql": "TAGS = 'tag0'"}),
    ],
)
async def test_damage_that_a_filter_meets_is_no_missing_message(
    tmp_path: Path, node: Fixture, at: int, how: dict[str, Any]
) -> None:
    await node.append(0, 3)
    record = (await pull(node, max_count=1)).records
    damage(tmp_path, record, at if at >= 0 else record.index(b"tag0"))
    with pytest.raises(CorruptionError):
        await pull(node, **how)


async def test_a_message_without_a_tag_matches_none(node: Fixture) -> None:
    await node.put(encode_message("orders", 0, b"plain", {"A": "TAGS"}))
    assert (await pull(node, tags=["TAGS"])).status == NO_MATCHED


async def test_a_reader_that_waits_learns_what_its_filter_skipped(tmp_path: Path) -> None:
    """Long before its time is over: until then its group seems to lag."""
    hour_ms = 3_600_000
    async with node_at(tmp_path, limits=replace(Limits(), pull_wait_ms_max=hour_ms)) as node:
        await node.broker.append(tagged(["x", "x"]))
        async with asyncio.timeout(PATIENCE_S):
            page = await pull(node, wait_ms=hour_ms, tags=["y"])
        assert (page.record_count, page.next_offset) == (0, 2)
        task = asyncio.create_task(pull(node, 2, wait_ms=hour_ms, tags=["y"]))
        await waiting(node, 1)
        await node.broker.append(tagged(["x"]))
        async with asyncio.timeout(PATIENCE_S):
            assert (await task).next_offset == 3


@node_with(limits=replace(Limits(), pull_tag_count_max=2))
async def test_as_many_tags_may_be_asked_for_as_the_limit_says(node: Fixture) -> None:
    await node.append(0, 1)
    assert (await pull(node, tags=["a", "b"])).status == NO_MATCHED
    with pytest.raises(errors.BadRequestError, match="at most 2"):
        await pull(node, tags=["a", "b", "c"])


async def test_a_read_that_waits_to_be_confirmed_is_an_audience(node: Fixture) -> None:
    """The driver applies at once what somebody waits for."""
    assert not node.broker.has_waiting_readers()
    node.driver.is_cut_off = True
    reading = asyncio.create_task(pull(node, consistency=LINEARIZABLE))
    await eventually(lambda: len(node.driver.barriers) == 1)
    assert node.broker.has_waiting_readers()
    node.driver.barriers[0].set_result(node.driver.applied_index)
    await reading
    assert not node.broker.has_waiting_readers()
