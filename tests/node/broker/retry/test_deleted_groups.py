"""A group that is deleted and made again: what came back to the old one is not the new one's."""

import asyncio
from pathlib import Path

import pytest

from node.config.limits import Limits
from node.errors.common import UnknownGroupError
from node.errors.groups import MessageExpiredError
from node.state.image import decode_image, encode_image
from node.state.state import State
from node.state.tables.dead_letters import DeadLettersTable
from quorumlog.pb.state_pb2 import Command
from store.errors import CorruptionError
from tests.node.broker.retry.test_retry import RETRY, deliver, given_back, listed, resend
from tests.node.broker_fakes import Fixture, hidden, node_at, node_with
from tests.node.checkpoints import reloaded
from tests.node.commands import commit, delete_group, put_topic, state_after


async def die(node: Fixture, *offsets: int) -> None:
    await node.broker.retry.retry_later(given_back(*offsets, is_dead=True))


async def test_a_new_group_has_no_dead_letters_of_the_old_one(node: Fixture) -> None:
    await node.append(0, 5)
    await die(node, 0, 1, 2)
    await resend(node, 0, 1)
    sent = written_count(node)
    await node.delete_group("readers")
    with pytest.raises(UnknownGroupError):
        await resend(node, 0)
    await die(node, 3, 4)
    listing = await listed(node)
    assert (listing.record_count, listing.min_offset, listing.max_offset) == (2, 3, 5)
    assert (listing.next_offset, list(listing.resent)) == (5, [])
    for old in (0, 2):
        with pytest.raises(MessageExpiredError, match=r"holds \[3, 5\)"):
            await resend(node, old, 3)
    assert written_count(node) == sent
    assert list((await resend(node, 3)).resent) == [3]
    assert list((await resend(node, 3, 4)).already_resent) == [3]
    assert list((await listed(node)).resent) == [3, 4]
    marks = node.machine.state.table(DeadLettersTable).content()
    assert marks["resent"] == {"readers": [[3, 5]]}


async def test_a_new_group_without_dead_letters_shows_none(node: Fixture) -> None:
    await node.append(0, 2)
    await die(node, 0)
    await node.delete_group("readers")
    await node.broker.retry.retry_later(given_back(1))
    listing = await listed(node)
    assert (listing.record_count, listing.min_offset, listing.next_offset) == (0, 1, 1)


@node_with(limits=Limits(in_flight_count_max=1))
async def test_a_resend_that_waits_behind_the_deletion_sends_nothing(node: Fixture) -> None:
    await node.append(0, 2)
    await die(node, 0)
    first = await node.written(node.append(2, 3))
    waits = asyncio.ensure_future(resend(node, 0))
    removed = asyncio.ensure_future(node.delete_group("readers"))
    for _ in range(5):
        await asyncio.sleep(0)
    node.driver.release()
    await asyncio.gather(first, removed)
    with pytest.raises(UnknownGroupError):
        await waits
    assert len(hidden(node, "orders")) == 3


async def test_where_a_group_was_deleted_outlives_a_restart(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node:
        await node.append(0, 2)
        await die(node, 0)
        await node.delete_group("readers")
        await die(node, 1)
        before = node.machine.image()
    async with node_at(tmp_path, topics={}) as node:  # All commands are applied again.
        assert node.machine.image().tables == before.tables
        assert (await listed(node)).record_count == 1


async def test_a_new_group_does_not_get_what_came_back_to_the_old_one(node: Fixture) -> None:
    await node.append(0, 3)
    groups = node.machine.state.groups
    for offset in (0, 1):
        await node.broker.retry.retry_later(given_back(offset))
        await deliver(node, 3)
    assert RETRY not in groups["readers"], "it begins at the first one"
    await node.delete_group("readers")
    await node.broker.retry.retry_later(given_back(2))
    await deliver(node, 3)
    assert node.log.store.reads.queue_range(RETRY, 0) == (2, 3)
    assert node.machine.state.refused_count == 0


def resent(*offsets: int, lo: int) -> Command:
    return Command(mark_resent=Command.MarkResent(group="readers", offsets=offsets, min_offset=lo))


async def test_expired_dead_letters_are_not_resent_by_another_leader(node: Fixture) -> None:
    await node.append(0, 8)
    await die(node, *range(8))
    await resend(node, 2, 6)
    before = written_count(node)
    # A leader that has less of the log sends one again: here all of it is still there.
    await node.broker.own_appends.write(b"", [resent(7, lo=5)])
    listing = await listed(node)
    assert (listing.min_offset, listing.max_offset, listing.record_count) == (5, 8, 3)
    assert list(listing.resent) == [6, 7]
    for offset in (2, 3):
        with pytest.raises(MessageExpiredError, match=r"holds \[5, 8\)"):
            await resend(node, offset)
    assert list((await resend(node, 5)).resent) == [5]
    assert written_count(node) == before + 1
    await node.delete_group("readers")
    await node.append(8, 9)
    await die(node, 8)
    assert (await listed(node)).min_offset == 8, "of the new group"


def written_count(node: Fixture) -> int:
    return len(hidden(node, "orders", 0)) + len(hidden(node, "orders", 1))


def test_expired_resends_are_in_image_and_checkpoint(tmp_path: Path) -> None:
    state = state_after(commit("readers"), resent(2, lo=0), limits=Limits())
    assert state.image().tables["dead_letters"].content == {"resent": {"readers": [[2, 3]]}}
    for command, first in ((resent(8, lo=5), 5), (resent(9, lo=4), 5), (resent(10, lo=6), 6)):
        assert state.apply_command(command, 1) is None
        part = state.table(DeadLettersTable)
        assert part.first_offset("readers") == first
        assert part.is_resent("readers", 2) or first > 2
    image = state.image()
    assert decode_image(encode_image(image)) == image
    loaded = reloaded(tmp_path, image)
    assert loaded == image
    again = State(Limits(), loaded)
    assert again.table(DeadLettersTable).first_offset("readers") == 6
    assert again.apply_command(delete_group("readers"), 2) is None
    assert again.table(DeadLettersTable).first_offset("readers") == 0
    wrong = image.tables["dead_letters"]._replace(content={"resent": {}, "expired": [1]})
    with pytest.raises(CorruptionError):
        decode_image(encode_image(image._replace(tables={"dead_letters": wrong})))


def deleted(*names: str) -> State:
    """A state of groups that had dead letters and were deleted, each at its own place."""
    state = State(Limits(deleted_group_count_max=2))
    for place, name in enumerate(names, 1):
        for command in (commit(name), put_topic(f"%DLQ%{name}", 1), delete_group(name)):
            assert state.apply_command(command, 100 * place) is None
    return state


def test_image_and_checkpoint_keep_the_order_of_the_deleted(tmp_path: Path) -> None:
    image = deleted("b", "a").image()
    assert image.tables["dead_letters"].content == {
        "resent": {},
        "deleted": [["b", 100], ["a", 200]],
    }
    assert decode_image(encode_image(image)) == image
    assert reloaded(tmp_path, image) == image
    wrong = image.tables["dead_letters"]._replace(content={"resent": {}, "deleted": [["b", "?"]]})
    with pytest.raises(CorruptionError):
        decode_image(encode_image(image._replace(tables={"dead_letters": wrong})))


def test_no_more_deleted_groups_are_remembered_than_the_limit_says() -> None:
    part = deleted("a", "b", "a", "c").table(DeadLettersTable)
    assert [part.begin_position(name) for name in "abc"] == [300, 0, 400]


def test_a_group_without_dead_letters_leaves_nothing() -> None:
    state = state_after(commit("readers"), delete_group("readers"), limits=Limits())
    assert "dead_letters" not in state.image().tables
