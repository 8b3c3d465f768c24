"""What comes after a consumer starts is read from its first message, whatever the position."""

from pathlib import Path
from typing import Any

import pytest

import quorumlog
from tests.quorumlog.fake_groups import connect, fake_groups


def made(client: quorumlog.Client, kind: str, position: str | int, path: Path) -> Any:
    if kind == "pull":
        return client.pull_consumer("orders", position=position)
    if kind == "local":
        offsets = str(path / "offsets.json")
        return client.group_consumer(
            "b", "orders", position=position, mode="broadcasting", offsets_path=offsets
        )
    return client.group_consumer("g", "orders", position=position, auto_commit=kind == "group")


async def taken(consumer: Any, body: bytes, count: int) -> list[bytes]:
    """Read until so many bodies begin with `body`; return all of them."""
    bodies = list[bytes]()
    while sum(one.startswith(body) for one in bodies) < count:
        bodies.append((await anext(consumer)).body)
    return bodies


@pytest.mark.parametrize("position", ["end", "@4102444800000", 1])
@pytest.mark.parametrize("kind", ["pull", "group", "by hand", "local"])
@pytest.mark.usefixtures("be_quick")
async def test_what_comes_after_the_start_is_read_from_its_first_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, position: str | int
) -> None:
    monkeypatch.setattr("quorumlog.consume.consumer.LOOK_MS", 20)
    async with fake_groups("g0", "g1") as groups:
        groups["g0"].neighbours = groups["g1"].neighbours = []
        for group in groups.values():
            group.topics["orders"] = 2
        async with connect(groups, "g0") as client, connect(groups) as other:
            producer = other.producer()
            for queue in range(2):
                await producer.send("orders", b"old", queue_id=queue, broker_group="g0")
            consumer = made(client, kind, position, tmp_path)
            await consumer.start()
            for group in groups.values():  # The topic grows, and a broker group comes.
                group.topics["orders"] = 4
            wanted = [b"g0 2", b"g0 3", b"g1 0", b"g1 1", b"g1 2", b"g1 3"]
            for body in wanted:
                name, number = body.decode().split()
                await producer.send("orders", body, queue_id=int(number), broker_group=name)
            groups["g0"].neighbours = [groups["g1"]]
            assert sorted(await taken(consumer, b"g", 6)) == wanted
            await consumer.close()
            if kind == "pull":
                return
            for group in groups.values():  # And while no member runs.
                group.topics["orders"] = 5
                await producer.send("orders", b"later", queue_id=4, broker_group=group.group)
            async with made(client, kind, position, tmp_path) as consumer:
                assert b"old" not in await taken(consumer, b"later", 2)
