"""A send that comes again is stored once, within the window that is set."""

import asyncio
from pathlib import Path

from node.config.settings import Settings
from tests.node.rocketmq.remoting.clients import ClassicClient, gateway_at
from tests.patience import eventually


def settings(root: Path) -> Settings:
    return Settings(node_id=1, directory=root, rocketmq_unique_ms=60_000)


async def stored(client: ClassicClient) -> int:
    """Return the messages in the first queue of each name."""
    counts = []
    for name in ("g0.n1", "g0.n2", "g0.n3"):
        answer = await client.pull(0, 0, ext={"bname": name})
        counts.append(int(answer.ext["maxOffset"]))
    return sum(counts)


async def test_a_send_that_comes_again_at_another_name_is_stored_once(tmp_path: Path) -> None:
    async with gateway_at(tmp_path, settings=settings(tmp_path)) as gateway:
        client = await gateway.client()
        first = await client.send(b"x", UNIQ_KEY="A")
        again = await client.send(b"x", name="g0.n2", UNIQ_KEY="A")
        assert (again.code, again.ext["msgId"]) == (0, first.ext["msgId"])
        await client.send(b"x", name="g0.n2", UNIQ_KEY="B")
        assert await stored(client) == 2


async def test_the_next_leader_knows_what_was_stored(tmp_path: Path) -> None:
    async with gateway_at(tmp_path, settings=settings(tmp_path)) as gateway:
        client = await gateway.client()
        first = await client.send(b"x", UNIQ_KEY="A")
        gateway.node.driver.lose()
        gateway.node.driver.lead()
        again = await client.send(b"x", UNIQ_KEY="A")
        assert again.ext["msgId"] == first.ext["msgId"]
        assert again.ext["queueOffset"] == first.ext["queueOffset"] == "0"
        assert await stored(client) == 1


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
        driver.decide(0)
        assert (await failed).code != 0
        driver.is_holding = False
        if not driver.is_ready:
            driver.lead()
        assert (await client.send(b"x", UNIQ_KEY="B")).code == 0


async def test_without_a_window_every_send_is_stored(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        client = await gateway.client()
        for _ in range(2):
            await client.send(b"x", UNIQ_KEY="A")
        assert await stored(client) == 2
