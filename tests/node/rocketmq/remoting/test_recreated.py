"""What clients hear of a topic that was deleted and made again: nothing of the one before."""

from pathlib import Path

import pytest

from tests.node.broker_fakes import expire_some
from tests.node.rocketmq.remoting import codes
from tests.node.rocketmq.remoting.clients import gateway_at
from tests.node.rocketmq.remoting.test_admin import by_queue, document
from tests.node.rocketmq.remoting.test_counters import sums

QUEUE = {"topic": "orders", "queueId": "0", "bname": "g0-n1"}
ORDERS = {"topic": "orders", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
NOT_FOUND = 22


@pytest.mark.parametrize("is_by_tool", [True, False])
async def test_a_topic_that_was_made_again_is_read_from_its_first_message(
    tmp_path: Path, is_by_tool: bool
) -> None:
    async with gateway_at(tmp_path) as gateway:
        client = await gateway.client()
        reader = {"consumerGroup": "readers"}
        await client.heartbeat("a@1")
        for count in (6, 2, 4):
            assert {(await client.send()).code for _ in range(count)} == {0}
            lo, hi = [
                int((await client.ask(c, QUEUE)).ext["offset"]) for c in (codes.MIN, codes.MAX)
            ]
            assert hi - lo == count
            for group in ("readers", f"new{count}"):
                query = QUEUE | {"consumerGroup": group}
                begin = await client.ask(codes.GET_OFFSET, query)
                assert (begin.code, begin.ext) == (0, {"offset": str(lo)})
                response = await client.ask(codes.PROGRESS, query)
                row = by_queue(document(response.body)["offsetTable"])["g0-n1", 0]
                assert row["brokerOffset"] - row["consumerOffset"] == count
            assert (await client.pull(0, lo)).code == 0
            assert (await sums(client, "orders"))[0] == count
            assert (await sums(client, "orders@readers", "GROUP_GET_NUMS"))[0] == count
            await client.ask(codes.COMMIT, QUEUE | reader | {"commitOffset": str(hi)})
            if is_by_tool:
                assert (await client.ask(codes.DELETE_TOPIC, {"topic": "orders"})).code == 0
            else:
                await gateway.node.delete_topic("orders")
            assert (await client.ask(codes.PUT_TOPIC, ORDERS)).code == 0
            at_end = await client.ask(codes.BY_TIME, QUEUE | {"timestamp": "0"})
            assert at_end.ext == {"offset": str(hi)}, "not 0, which is of the deleted topic"
        await client.send()
        await expire_some(gateway.node)
        late = await client.ask(codes.GET_OFFSET, QUEUE | {"consumerGroup": "late"})
        assert late.code == NOT_FOUND, "messages of this topic are gone"
