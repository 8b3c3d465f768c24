"""Pop over the classic protocol: deliveries are named as clients build the names."""

import json
from pathlib import Path

from store.record.message import decode_message
from tests.node.rocketmq.remoting import codes
from tests.node.rocketmq.remoting.clients import ClassicClient, Heard, client_at

SUCCESS, NO_MESSAGE, TIMEOUT, INVALID = 0, 208, 210, 29
GROUP = {"consumerGroup": "readers", "topic": "orders"}


async def popped(client: ClassicClient, **ext: str) -> Heard:
    fields = GROUP | {
        "queueId": "-1",
        "maxMsgNums": "32",
        "invisibleTime": "60000",
        "pollTime": "0",
        "initMode": "0",
        "expType": "TAG",
        "exp": "*",
        "bname": "g0-n1",
    }
    return await client.ask(codes.POP, fields | ext)


def info_of(answer: Heard, at: int = 0) -> dict[str, str]:
    """Return the fields of an ack of a message, built as the Java client does."""
    _, queue, offsets = answer.ext["msgOffsetInfo"].split(";")[at].split(" ")
    starts = {
        one.split(" ")[1]: one.split(" ")[2] for one in answer.ext["startOffsetInfo"].split(";")
    }
    offset = offsets.split(",")[0]
    times = answer.ext
    info = (starts[queue], times["popTime"], times["invisibleTime"], times["reviveQid"], "0")
    return GROUP | {
        "queueId": queue,
        "offset": offset,
        "extraInfo": " ".join((*info, "g0-n1", queue, offset)),
    }


async def test_a_message_is_taken_and_acknowledged(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (gateway, client):
        assert (await popped(client)).code == TIMEOUT
        await client.send(b"one")
        taken = await popped(client)
        record = decode_message(taken.body)
        assert (record.body, record.queue_id, record.queue_offset) == (b"one", 0, 0)
        assert (await popped(client)).code == TIMEOUT
        assert (await client.ask(codes.ACK, info_of(taken))).code == SUCCESS
        pop = gateway.node.broker.pop
        assert pop.shared.table.in_flight_count == 0
        assert pop.settlement.acked_total == 1
        assert (await client.ask(codes.ACK, info_of(taken))).code == SUCCESS, "again"
        assert (
            await client.ask(codes.CHANGE, info_of(taken) | {"invisibleTime": "1"})
        ).code == NO_MESSAGE


async def test_another_invisible_time_gives_another_name(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (gateway, client):
        await client.send(b"one")
        taken = info_of(await popped(client))
        changed = await client.ask(codes.CHANGE, taken | {"invisibleTime": "90000"})
        assert (changed.code, changed.ext["invisibleTime"]) == (SUCCESS, "90000")
        times, offset = changed.ext, taken["offset"]
        info = (offset, times["popTime"], times["invisibleTime"], times["reviveQid"], "0")
        named = taken | {"extraInfo": " ".join((*info, "g0-n1", taken["queueId"], offset))}
        assert (await client.ask(codes.ACK, named)).code == SUCCESS
        assert gateway.node.broker.pop.shared.table.in_flight_count == 0


async def test_an_ack_of_an_earlier_delivery_changes_nothing(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (gateway, client):
        await client.send(b"one")
        first = info_of(await popped(client, invisibleTime="1000"))
        gateway.node.clock.now_ms += 2_000
        gateway.node.broker.pop.shared.deadlines.look()
        second = await popped(client)
        assert decode_message(second.body).body == b"one"
        assert (await client.ask(codes.ACK, first)).code == SUCCESS
        assert gateway.node.broker.pop.shared.table.in_flight_count == 1
        wrong = first | {"extraInfo": "1 2 3"}
        assert (await client.ask(codes.ACK, wrong)).code == INVALID


async def test_every_name_is_read_by_pop_and_the_retry_topic_by_one(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (_, client):
        await client.heartbeat("a@1")
        await client.heartbeat("b@1")

        async def assigned(topic: str, client_id: str) -> list[tuple[str, int, str]]:
            request = {"topic": topic, "consumerGroup": "readers", "clientId": client_id}
            body = (await client.ask(codes.ASSIGNMENT, body=request)).body
            return [
                (row["messageQueue"]["brokerName"], row["messageQueue"]["queueId"], row["mode"])
                for row in json.loads(body)["messageQueueAssignments"]
            ]

        every = [(f"g0-n{number}", -1, "POP") for number in (1, 2, 3)]
        assert await assigned("orders", "a@1") == await assigned("orders", "b@1") == every
        assert await assigned("%RETRY%readers", "a@1") == [("g0-n1", 0, "PULL")]
        assert await assigned("%RETRY%readers", "b@1") == []
        for mode, code in (("POP", SUCCESS), ("PULL", 16)):
            assert (await client.ask(codes.MODE, body={"mode": mode})).code == code
