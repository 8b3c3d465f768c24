"""No way to store an offset moves it from where others put it, or behind a newer own one."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from quorumlog import errors
from quorumlog.cluster.retry import Deadline
from quorumlog.consume.group import GroupConsumer
from quorumlog.consume.local_offsets import LocalOffsets
from quorumlog.pb import common_pb2
from quorumlog.pb.consumer_pb2 import CommitOffsetsRequest
from quorumlog.records.queues import Queue
from tests.patience import eventually
from tests.quorumlog.consume.test_group import one_queue, take
from tests.quorumlog.fake_cluster import Node, abort, error

KEY = "g", "orders", 0


async def in_background(consumer: GroupConsumer) -> None:
    """Wait until the member goes on at an offset that it did not store."""
    (queue,) = consumer.assignment()
    handed_out = consumer.offsets()[queue]
    await eventually(
        lambda: consumer.offsets().get(queue, handed_out) != handed_out, "it goes on elsewhere"
    )


async def queue_lost(consumer: GroupConsumer) -> None:
    (group,) = consumer._groups.all
    await consumer._share(group, [], Deadline(30_000))


WAYS: dict[str, Callable[[GroupConsumer], Awaitable[None]]] = {
    "commit": GroupConsumer.commit,
    "commit_offsets": lambda consumer: consumer.commit_offsets({("orders", 0): 3}),
    "in background": in_background,
    "queue lost": queue_lost,
    "close": GroupConsumer.close,
}


@pytest.mark.parametrize("moved_to", [8, 1])
@pytest.mark.parametrize("way", WAYS)
async def test_a_member_that_was_away_stores_nothing_over_what_others_stored(
    way: str, moved_to: int
) -> None:
    interval_ms = 10 if way == "in background" else 60_000
    async with one_queue(commit_interval_ms=interval_ms) as (cluster, consumer):
        await take(consumer, 4)
        if way == "in background":
            await eventually(lambda: cluster.offsets.get(KEY) == 3, "it is stored")
        else:
            await consumer.commit()
        await take(consumer, 1)
        cluster.offsets[KEY] = moved_to  # By the member that had the queue, or by a reset.
        if way.startswith("commit"):
            with pytest.raises(errors.ConflictError):
                await WAYS[way](consumer)
        else:
            await WAYS[way](consumer)
        assert cluster.offsets[KEY] == moved_to
        if way not in ("queue lost", "close"):
            assert [one.queue_offset for one in await take(consumer, 2)] == [moved_to, moved_to + 1]
            for _ in range(2):  # Of messages from before, whoever has heard of it.
                with pytest.raises(errors.ConflictError):
                    await consumer.commit_offsets({("orders", 0): 5})
            await consumer.commit_offsets({("orders", 0): 2})  # Its own it may set back.
            assert cluster.offsets[KEY] == 2


@pytest.mark.parametrize("way", WAYS)
async def test_a_move_to_the_offset_that_is_stored_is_followed_as_well(way: str) -> None:
    async with one_queue(commit_interval_ms=60_000) as (cluster, consumer):
        await take(consumer, 3)
        await consumer.commit()
        await take(consumer, 3)
        for move in (7, 8):  # The second one after it has followed one.
            cluster.moved[KEY[1:]] = move
            if way == "commit_offsets":
                with pytest.raises(errors.ConflictError):
                    await consumer.commit_offsets({("orders", 0): 5})
            elif way != "in background":
                with suppress(errors.ConflictError):
                    await WAYS[way](consumer)
            assert cluster.offsets[KEY] == 3
            if way in ("queue lost", "close"):
                return
            await eventually(lambda: [*consumer.offsets().values()] == [3], "it goes back")
            assert [one.queue_offset for one in await take(consumer, 2)] == [3, 4]
        await consumer.commit()
        assert cluster.offsets[KEY] == 5


async def test_a_member_without_new_messages_hears_of_a_reset_with_its_heartbeat() -> None:
    async with one_queue(commit_interval_ms=60_000) as (cluster, consumer):
        await take(consumer, 10)
        await consumer.commit()
        cluster.offsets[KEY] = 1
        cluster.moved[KEY[1:]] = 7
        await eventually(lambda: [*consumer.offsets().values()] == [1], "it is told")
        for _ in range(2):  # Of the messages from before.
            with pytest.raises(errors.ConflictError):
                await consumer.commit_offsets({("orders", 0): 9})
        await consumer.commit()  # The program had nothing in hand.
        assert cluster.offsets[KEY] == 1
        assert [one.queue_offset for one in await take(consumer, 2)] == [1, 2]
        await consumer.commit_offsets({("orders", 0): 2})
        assert cluster.offsets[KEY] == 2


@pytest.mark.parametrize("is_filtered", [False, True])
async def test_a_program_hears_of_a_move_once_and_of_nothing_else(is_filtered: bool) -> None:
    async with one_queue(commit_interval_ms=60_000) as (cluster, consumer):
        await take(consumer, 2)
        await consumer.commit()
        await take(consumer, 3)
        cluster.moved[KEY[1:]] = 7
        await eventually(lambda: [*consumer.offsets().values()] == [2], "it goes back")
        if is_filtered:  # It has one from after the move, and those behind match no filter.
            await take(consumer, 1)
            (fetcher,) = consumer._fetchers.values()
            fetcher._skipped = (3, 5)
        else:
            with pytest.raises(errors.ConflictError):
                await consumer.commit()
        await consumer.commit()
        assert cluster.offsets[KEY] == (5 if is_filtered else 2)


async def test_a_queue_that_was_lost_meanwhile_begins_anew() -> None:
    async with one_queue(commit_interval_ms=60_000) as (cluster, consumer):
        await take(consumer, 9)
        cluster.offsets[KEY] = 5
        cluster.moved[KEY[1:]] = 7
        await eventually(lambda: [*consumer.offsets().values()] == [5], "it goes there")
        await queue_lost(consumer)
        cluster.offsets[KEY] = 0
        await eventually(consumer.assignment, "it has the queue again")
        await take(consumer, 3)
        await consumer.commit()
        assert cluster.offsets[KEY] == 3


async def test_a_member_stores_its_offsets_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with one_queue(commit_interval_ms=60_000) as (cluster, consumer):
        gate, offsets, commit = asyncio.Event(), list[int](), Node.CommitOffsets

        async def late(node: Any, request: CommitOffsetsRequest, context: Any) -> Any:
            offsets.append(request.offsets[0].offset)
            if len(offsets) == 1:
                await gate.wait()
            return await commit(node, request, context)

        monkeypatch.setattr(Node, "CommitOffsets", late)
        calls = []
        for _ in range(3):
            await take(consumer, 2)
            calls.append(asyncio.create_task(consumer.commit()))
            await eventually(lambda: offsets, "the first is under way")
            await asyncio.sleep(0)
        assert offsets == [2]
        gate.set()
        await asyncio.gather(*calls)
        assert offsets == [2, 6], "each stores what is handed out when it has its turn"
        assert cluster.offsets[KEY] == 6


@pytest.mark.parametrize("then", [2, 5, 8, 9])
@pytest.mark.parametrize("lost", [[3], [10], [3, 9]])
@pytest.mark.parametrize("stored", ["by the call", "as before", "by others"])
async def test_after_a_call_without_an_answer_the_next_offset_is_stored_unless_others_moved_it(
    stored: str, lost: list[int], then: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unanswered(node: Node, request: CommitOffsetsRequest, context: Any) -> None:
        if stored == "by the call":
            await commit(node, request, context)
        await abort(context, error("node.x", outcome=common_pb2.OUTCOME_UNKNOWN))

    async with one_queue(commit_interval_ms=60_000) as (cluster, consumer):
        await take(consumer, 10)
        await consumer.commit_offsets({("orders", 0): 8})
        commit = Node.CommitOffsets
        monkeypatch.setattr(Node, "CommitOffsets", unanswered)
        for offset in lost:
            with pytest.raises(errors.QuorumlogError):
                await consumer.commit_offsets({("orders", 0): offset})
        monkeypatch.setattr(Node, "CommitOffsets", commit)
        if stored == "by others":
            cluster.offsets[KEY], then = 1, 1
        with pytest.raises(errors.ConflictError) if then == 1 else nullcontext():
            await consumer.commit_offsets({("orders", 0): max(then, 2)})
        assert cluster.offsets[KEY] == then


def test_a_file_of_offsets_is_durable_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, fsync = list[list[str]](), os.fsync

    def noted(fd: int) -> None:
        assert os.readlink(f"/proc/self/fd/{fd}") == str(tmp_path)
        done.append(os.listdir(fd))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    LocalOffsets(str(tmp_path / "offsets")).store({Queue("orders", 0): 7})
    assert done == [["offsets"]], "renamed before"
    assert LocalOffsets(str(tmp_path / "offsets")).offsets[Queue("orders", 0)] == 7
