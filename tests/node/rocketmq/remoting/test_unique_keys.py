"""A send that comes again is stored once, within the window that is set."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import Mock

import pytest

from node.config.limits import Limits
from node.config.settings import Settings
from node.errors.common import NodeError
from node.rocketmq.remoting.calls import unique_keys
from node.rocketmq.remoting.calls.unique_keys import Pending, UniqueKeys
from node.runtime.turn import Turn
from store.errors import Outcome, StoreError
from tests.node.rocketmq.remoting import codes
from tests.node.rocketmq.remoting.clients import ClassicClient, client_at, gateway_at, send_fields
from tests.patience import eventually

if TYPE_CHECKING:
    from node.broker.core.context import Context


def settings(root: Path) -> Settings:
    return Settings(node_id=1, directory=root, rocketmq_unique_ms=60_000, rocketmq_auto_topics=True)


async def stored(client: ClassicClient) -> int:
    """Return the messages in the first queue of each name."""
    counts = []
    for name in ("g0-n1", "g0-n2", "g0-n3"):
        answer = await client.pull(0, 0, ext={"bname": name})
        counts.append(int(answer.ext["maxOffset"]))
    return sum(counts)


async def test_a_send_that_comes_again_is_stored_once_at_any_name_and_leader(
    tmp_path: Path,
) -> None:
    async with client_at(tmp_path, settings=settings(tmp_path)) as (gateway, client):
        first = await client.send(b"x", UNIQ_KEY="A")
        again = [await client.send(b"x", name="g0-n2", UNIQ_KEY="A")]
        await client.send(b"x", name="g0-n2", UNIQ_KEY="B")
        gateway.node.driver.lose()
        gateway.node.driver.lead()
        again.append(await client.send(b"x", UNIQ_KEY="A"))
        assert [(answer.code, answer.ext["msgId"]) for answer in again] == [
            (0, first.ext["msgId"])
        ] * 2
        assert again[1].ext["queueOffset"] == first.ext["queueOffset"] == "0"
        assert await stored(client) == 2


@pytest.mark.parametrize("knows", ["the table", "the index", "a send under way"])
async def test_a_key_of_a_deleted_topic_is_new_in_the_next_one_of_its_name(
    tmp_path: Path, knows: str
) -> None:
    async with client_at(tmp_path, settings=settings(tmp_path)) as (gateway, client):
        driver = gateway.node.driver
        driver.is_holding = knows == "a send under way"
        old = asyncio.create_task(client.send(b"old", UNIQ_KEY="A"))
        if driver.is_holding:
            await eventually(lambda: driver.pending, "the send")
            driver.release()
        first = await old
        await gateway.node.delete_topic("orders")
        await gateway.node.create_topic("orders", queue_count=4)
        if knows == "the index":
            driver.lose()
            driver.lead()
        answers = [await client.send(b"new", UNIQ_KEY="A") for _ in range(2)]
        ids = {answer.ext["msgId"] for answer in answers}
        assert len(ids) == 1, "stored once in the new topic"
        assert first.ext["msgId"] not in ids
        lo, hi = gateway.node.log.store.reads.queue_range("orders", 0)
        assert hi - lo == 1


async def test_a_send_under_way_is_waited_for_and_one_that_failed_is_new(tmp_path: Path) -> None:
    async with gateway_at(tmp_path, settings=settings(tmp_path)) as gateway:
        client, driver = await gateway.client(), gateway.node.driver
        driver.is_holding = True
        sends = [asyncio.create_task(client.send(b"x", UNIQ_KEY="A")) for _ in range(3)]
        await eventually(lambda: gateway.call_count == 3, "the sends")
        assert len(driver.pending) == 1
        driver.is_holding = False
        driver.commit()
        ids = {(await send).ext["msgId"] for send in sends}
        assert len(ids) == 1

        driver.is_holding = True
        failed = asyncio.create_task(client.send(b"x", UNIQ_KEY="B"))
        await eventually(lambda: driver.pending, "the send")
        driver.decide(0)  # Nothing was stored, so it is appended again.
        await eventually(lambda: driver.pending, "the send again")
        driver.release()
        assert (await failed).code == 0
        assert await stored(client) == 2


@pytest.mark.parametrize("is_late", [True, False])
@pytest.mark.parametrize("topic", ["orders", "fresh"])
async def test_no_caller_decides_for_the_others_of_its_send(
    tmp_path: Path, topic: str, is_late: bool
) -> None:
    """The time of the first one is over, or its connection."""
    limits = Limits(append_timeout_ms=100 if is_late else 60_000)
    async with gateway_at(tmp_path, settings=settings(tmp_path), limits=limits) as gateway:
        first, second, driver = await gateway.client(), await gateway.client(), gateway.node.driver
        driver.is_holding, count, begun = True, driver.append_count, []
        for key in ("A", "B"):  # Alone, and joined with others that wait.
            begun.append(
                first.begin(codes.SEND, send_fields(topic, 0, "g0-n1", UNIQ_KEY=key), b"x")
            )
            if topic == "fresh" and key == "A":
                await eventually(lambda: driver.pending, "the topic")
                driver.commit()
            await eventually(lambda: len(driver.pending) == len(begun), "the message")
        if is_late:
            assert [(await one).code for one in begun] == [14, 14]
            setattr(gateway.node.broker.context, "limits", Limits())  # noqa: B010 - it is Final.
        again = []
        for key in "AB":
            fields = send_fields(topic, 0, "g0-n2", UNIQ_KEY=key)
            again.append(second.begin(codes.SEND, fields, b"x"))
        await eventually(lambda: gateway.call_count == 2 * (2 - is_late), "the sends again")
        await first.close()
        await eventually(lambda: gateway.call_count == 2, "the first client is gone")
        driver.release()
        assert [(await one).code for one in again] == [0, 0]
        assert driver.append_count == count + 2 + (topic == "fresh")


async def test_a_key_is_new_again_only_after_what_stored_nothing() -> None:
    kinds: list[Any] = [NodeError, StoreError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    store = Mock()
    store.newest_by_key.return_value = ()
    context = SimpleNamespace(store=store, origin=lambda _topic: 0)
    keys = UniqueKeys(cast("Context", context), 60_000, lambda: 90_000)
    for kind in kinds:
        store.reset_mock()
        keys.begin()
        keys._began_ms = 0
        future = asyncio.get_running_loop().create_future()
        keys.note("t", "A", "10.0.0.1", Pending(future, 0, "", [1], ("127.0.0.1", 1)))
        future.set_exception(kind.__new__(kind))
        await asyncio.sleep(0)
        assert keys.send_of("t", "A") is None
        keys.stored("t", "A", "10.0.0.1")
        assert store.newest_by_key.called is (kind.outcome is not Outcome.NOT_APPLIED), kind


async def test_without_a_window_every_send_is_stored(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (_, client):
        for _ in range(2):
            await client.send(b"x", UNIQ_KEY="A")
        assert await stored(client) == 2


async def test_the_table_costs_as_much_for_many_addresses_as_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unique_keys, "KEY_COUNT_MAX", 1_000)
    now_ms = 1_000_000
    look = Mock(side_effect=lambda sender: len(sender.names))
    monkeypatch.setattr(unique_keys, "_key_count", look)
    context = SimpleNamespace(origin=lambda _topic: 0)
    keys = UniqueKeys(cast("Context", context), 60_000, lambda: now_ms)
    future = asyncio.get_running_loop().create_future()
    pending = Pending(future, 0, "", [1], ("127.0.0.1", 1))
    for number in range(1_000):
        host = number % 400 if number < 400 else 400
        keys.note("t", f"{number}", f"10.0.0.{host}", pending)
    walked_all = 0
    for number in range(500):  # Then 300 new ones: the flood makes room for all.
        look.reset_mock()
        keys.note("t", f"new {number}", f"10.0.1.{number % 300}", pending)
        walked_all += look.call_count > 10
    assert walked_all == 1, "the first time that the table is full"
    assert len(keys._sends) == 1_000
    assert all(keys.send_of("t", str(number)) for number in range(400))
    monkeypatch.setattr(unique_keys, "_EXPIRED_COUNT", 1)
    now_ms += 60_001
    turns = 0

    async def counted() -> None:
        nonlocal turns
        turns += 1
        if turns == 100:
            keys.end()  # Another leadership.

    turn = Turn(lambda: 0.0)
    monkeypatch.setattr(turn, "next", counted)
    await keys.expire(turn)
    assert (turns, len(keys._sends)) == (len({*range(401)}) + 300, 0)
