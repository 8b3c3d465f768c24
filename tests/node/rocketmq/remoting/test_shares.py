"""Durable things of classic clients, over real connections from two addresses."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from node.config.settings import Settings
from node.rocketmq.remoting.protocol.codes import ResponseCode
from node.runtime.accounts import LIMITS, Kind, Limit
from tests.node.rocketmq.remoting import codes
from tests.node.rocketmq.remoting.clients import ClassicClient, Heard, gateway_at
from tests.node.rocketmq.remoting.test_features import HALF
from tests.node.rocketmq.remoting.test_pop import popped

_OFFSET = {"topic": "orders", "queueId": "0", "bname": "g0-n1", "commitOffset": "0"}

Made = Callable[[ClassicClient, str], Awaitable[Heard]]

THINGS: dict[str, tuple[Kind, Made]] = {
    "topics": (Kind.NAMES, lambda client, name: client.send(topic=name, UNIQ_KEY=name)),
    "groups": (
        Kind.NAMES,
        lambda client, name: client.ask(codes.COMMIT, _OFFSET | {"consumerGroup": name}),
    ),
    "half messages": (
        Kind.TRANSACTIONS,
        lambda client, name: client.send(
            sys_flag=HALF, TRAN_MSG="true", PGROUP="payers", UNIQ_KEY=name
        ),
    ),
    "delayed messages": (Kind.DELAYED, lambda client, name: client.send(DELAY="18", UNIQ_KEY=name)),
    "messages handed out": (
        Kind.DELIVERIES,
        lambda client, name: popped(client, consumerGroup=name, maxMsgNums="1"),
    ),
}


@pytest.mark.parametrize("name", THINGS)
async def test_clients_of_another_address_are_served(name: str, tmp_path: Path) -> None:
    kind, make = THINGS[name]
    held = {kind: Limit(LIMITS[kind].name, 8, connection_part=1)}
    settings = Settings(node_id=1, directory=tmp_path, rocketmq_auto_topics=True)
    async with gateway_at(tmp_path / "node", held=held, settings=settings) as gateway:
        stranger, user = await gateway.client(), await gateway.client("127.0.0.2")
        await user.send()
        answers = [await make(stranger, f"s{number}") for number in range(5)]
        assert [answer.code for answer in answers[:4]] == [0] * 4
        assert answers[4].code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert f"node.busy: {LIMITS[kind].name} of 127.0.0.1" in (answers[4].remark or "")
        assert (await make(user, "user")).code == 0
