"""A queue that passes from one member to another: the one goes on where the other has stopped."""

from asyncio import Event
from pathlib import Path
from typing import Any

import pytest

from node.rocketmq.remoting import known_offsets
from quorumlog.pb.consumer_pb2 import CommitOffsetsRequest, CommitOffsetsResponse
from tests.node.rocketmq.remoting import codes
from tests.node.rocketmq.remoting.clients import ONEWAY, ClassicClient, Gateway, gateway_at
from tests.patience import PATIENCE_S

GROUP = "readers"
QUEUE = {"consumerGroup": GROUP, "topic": "orders", "queueId": "0", "bname": "g0-n1"}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that is held waits for its event."""
    monkeypatch.setattr(known_offsets, "HANDOVER_S", 10 * PATIENCE_S)
    monkeypatch.setattr(known_offsets, "CHANGED_S", 10 * PATIENCE_S)


async def reader_of(gateway: Gateway, client_id: str) -> ClassicClient:
    client = await gateway.client()
    await client.heartbeat(client_id)
    assert (await client.ask(codes.GET_OFFSET, QUEUE)).ext["offset"] == "0"
    return client


async def commit(client: ClassicClient, offset: int, **more: Any) -> None:
    client.begin(codes.COMMIT, QUEUE | {"commitOffset": str(offset)}, **more)
    await client.ask(codes.MAX, QUEUE)  # It is there by now.


async def test_the_last_offset_of_the_reader_is_waited_for(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        old, new = await reader_of(gateway, "old"), await gateway.client()
        for _ in range(3):
            await old.send()
        await commit(old, 1)
        await new.heartbeat("new")
        answer = new.begin(codes.GET_OFFSET, QUEUE)
        await new.ask(codes.MAX, QUEUE)
        assert not answer.done()
        await commit(old, 3, flag=ONEWAY)
        assert (await answer).ext["offset"] == "3"


async def test_an_offset_under_way_is_waited_for_though_its_member_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway_at(tmp_path) as gateway:
        old, new, may_store = await reader_of(gateway, "old"), await gateway.client(), Event()
        groups = gateway.node.broker.groups
        store = groups.commit_offsets

        async def store_later(request: CommitOffsetsRequest) -> CommitOffsetsResponse:
            await may_store.wait()
            return await store(request)

        monkeypatch.setattr(groups, "commit_offsets", store_later)
        await old.send()
        await commit(old, 1, flag=ONEWAY)
        await old.ask(codes.UNREGISTER, {"clientID": "old", "consumerGroup": GROUP})
        await new.heartbeat("new")
        answer = new.begin(codes.GET_OFFSET, QUEUE)
        await new.ask(codes.MAX, QUEUE)
        assert not answer.done()
        may_store.set()
        assert (await answer).ext["offset"] == "1"


@pytest.mark.parametrize("way", ["none", "left", "closed", "tool", "again", "silent"])
async def test_nobody_is_waited_for_who_gives_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    async with gateway_at(tmp_path) as gateway:
        old, new = await gateway.client(), await gateway.client()
        if way != "none":
            old = await reader_of(gateway, "old")
        if way != "tool":
            await new.heartbeat("old" if way == "again" else "new")
        if way == "left":
            await old.ask(codes.UNREGISTER, {"clientID": "old", "consumerGroup": GROUP})
        if way == "closed":
            await old.close()
        if way == "silent":
            monkeypatch.setattr(known_offsets, "HANDOVER_S", 0.001)
        assert (await new.ask(codes.GET_OFFSET, QUEUE)).ext["offset"] == "0"
