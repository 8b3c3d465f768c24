"""Pop: a look at queues is short, however long they are, and nothing that grew is overlooked."""

import asyncio
from dataclasses import replace

from node.broker.pop.take import EFFORT_MAX, WAITING_MAX
from node.config.limits import Limits
from store.record.message import encode_message
from tests.node.broker.pop.pop_calls import (
    GROUP,
    ack,
    ask,
    bodies,
    got,
    offset_of,
    parked,
    part,
    receive,
    send,
    window,
)
from tests.node.broker_fakes import Fixture, node_with

COUNT = 3 * EFFORT_MAX


async def _tagged(node: Fixture, *rows: tuple[str, str, int]) -> None:
    """One batch of (body, tag, queue id)."""
    await node.put(*(encode_message("orders", q, b.encode(), {"TAGS": t}) for b, t, q in rows))


@node_with(file_size_bytes=1024 * 1024)
async def test_an_expression_that_matches_little_is_looked_for_in_portions(node: Fixture) -> None:
    await _tagged(node, *(("no", "b", 0) for _ in range(COUNT)), ("yes", "a", 0))
    takes = node.driver.append_count
    assert bodies(await receive(node, 1, sql="TAGS = 'a'")) == ["yes"]
    assert node.driver.append_count - takes >= COUNT // EFFORT_MAX
    assert offset_of(node) == COUNT
    assert bodies(await receive(node, sql="TAGS = 'a'")) == []


@node_with(file_size_bytes=1024 * 1024)
async def test_of_an_expression_that_matches_much_nothing_is_passed_over(node: Fixture) -> None:
    await _tagged(node, *((f"{n}", "a" if n % 3 else "b", 0) for n in range(200)))
    taken: list[str] = []
    while some := await receive(node, 7, sql="TAGS = 'a'"):
        taken += bodies(some)
        await ack(node, *some)
    assert taken == [f"{n}" for n in range(200) if n % 3]
    assert offset_of(node) == 200


@node_with(file_size_bytes=8 * 1024 * 1024)
async def test_tags_that_are_rare_are_looked_for_in_portions(node: Fixture) -> None:
    record = encode_message("orders", 0, b"no", {"TAGS": "b"})
    for _ in range(5):
        await node.put(*[record] * 4_000)
    await _tagged(node, ("yes", "a", 0))
    takes = node.driver.append_count
    assert bodies(await receive(node, tags=["a"])) == ["yes"]
    assert node.driver.append_count - takes >= 2


@node_with(file_size_bytes=1024 * 1024)
async def test_the_second_read_for_a_tag_of_the_same_hash_counts_as_the_first(
    node: Fixture,
) -> None:
    await _tagged(node, *(("no", "BB", 0) for _ in range(COUNT)), ("yes", "Aa", 0))
    takes = node.driver.append_count
    assert bodies(await receive(node, 1, tags=["Aa"])) == ["yes"]
    assert node.driver.append_count - takes >= 2 * 4 * COUNT // EFFORT_MAX, "a read costs 4 or more"


@node_with(topics={"orders": 8}, file_size_bytes=1024 * 1024)
async def test_messages_of_a_busy_group_are_passed_over_in_portions(node: Fixture) -> None:
    for queue_id in range(8):
        await send(node, "a1", *["a2"] * 200, queue_id=queue_id)
        assert bodies(await receive(node, 1, queue_id=queue_id, is_fifo=True)) == ["a1"]
    takes = node.driver.append_count
    assert await receive(node, is_fifo=True) == []
    assert node.driver.append_count - takes >= 8 * 200 // EFFORT_MAX
    held = [len(w.items) for _, w in part(node).of_group(GROUP)]
    assert sum(held) == 8 * 201, "all of it was looked at"
    takes = node.driver.append_count
    await receive(node, is_fifo=True)
    assert node.driver.append_count == takes


@node_with(file_size_bytes=1024 * 1024)
async def test_of_a_queue_only_so_many_wait_for_their_message_group(node: Fixture) -> None:
    behind = WAITING_MAX + 100
    await send(node, "a1", *["a2"] * behind, "b1")
    (first,) = await receive(node, 1, is_fifo=True)
    response = await ask(node, is_fifo=True)
    assert (got(response), response.full_queue_count) == ([], 1)
    held = window(node)
    assert held is not None
    assert WAITING_MAX < len(held.items) <= WAITING_MAX + 64
    assert await ack(node, first) == 0
    taken: list[str] = []
    while some := await receive(node, is_fifo=True):
        taken += bodies(some)
        await ack(node, *some)
    assert taken == ["a2"] * behind + ["b1"]
    assert part(node).windows == {}


@node_with(topics={"orders": 32})
async def test_a_queue_that_grew_beside_others_with_nothing_to_take_is_not_overlooked(
    node: Fixture,
) -> None:
    waiting_task = await parked(node, tags=["a"])
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    await _tagged(node, *(("no", "b", q) for q in range(31)), ("yes", "a", 31))
    assert bodies(await waiting_task) == ["yes"]
    assert loop.time() - begun_s < 25, "it was woken, and not timed out"


@node_with(limits=replace(Limits(), pop_receive_count_max=EFFORT_MAX), file_size_bytes=1024 * 1024)
async def test_a_look_finds_as_many_small_messages_as_are_asked_for(node: Fixture) -> None:
    """Each read costs effort, so what lies together is read at once."""
    count = EFFORT_MAX // 2
    await _tagged(node, *((f"{n}", "a", 0) for n in range(count)))
    assert bodies(await receive(node, count)) == [f"{n}" for n in range(count)]


@node_with(limits=replace(Limits(), pull_size_bytes_max=1_000))
async def test_a_receive_ends_with_its_bytes_and_leaves_the_rest(node: Fixture) -> None:
    await _tagged(node, *((f"{n}" * 400, "a", 0) for n in range(9)))
    first = await receive(node)
    assert [body[0] for body in bodies(first)] == ["0", "1"]
    assert [body[0] for body in bodies(await receive(node))] == ["2", "3"]
