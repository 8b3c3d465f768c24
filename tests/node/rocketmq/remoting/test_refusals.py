"""Refusals of what RocketMQ refuses: with its code, and words that a person can act on."""

from pathlib import Path
from typing import Any

import pytest

from node.rocketmq.remoting.protocol.codes import RequestCode
from store.errors import CorruptionError
from tests.node.rocketmq.remoting import codes
from tests.node.rocketmq.remoting.clients import client_at, send_fields
from tests.store.records import damage

INVALID, NO_GROUP = 29, 26
OF_PULL = {"consumerGroup": "r", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1"}
OF_PULL |= {"subscription": "*", "sysFlag": "4", "suspendTimeoutMillis": "0"}


@pytest.mark.parametrize("topic", ["a b!", "", "t" * 200, "caf\xe9"])
async def test_a_name_that_no_topic_has_is_refused_with_the_rule(
    tmp_path: Path, topic: str
) -> None:
    """Not as a topic that is only to be made: that fails as well."""
    async with client_at(tmp_path) as (_, client):
        fields_by_code: dict[int, Any] = {
            codes.SEND: send_fields(topic, 0, "g0-n1"),
            codes.BATCH: send_fields(topic, 0, "g0-n1"),
            codes.PULL: OF_PULL | {"topic": topic},
            codes.PUT_TOPIC: {"topic": topic, "readQueueNums": "1", "writeQueueNums": "1"},
            codes.ROUTE: {"topic": topic},
        }
        for code, ext in fields_by_code.items():
            heard = await client.ask(code, ext, b"x")
            assert heard.code == (17 if code == codes.ROUTE else INVALID), heard
            assert "use 1 to 127 of letters" in str(heard.remark)


async def test_what_is_not_there_is_not_made_by_a_mistake(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (gateway, client):
        moved = {"topic": "orders", "group": "mistyped", "timestamp": "0", "isForce": "true"}
        for code in (codes.RESET, codes.GROUP):
            for ext in (moved, moved | {"queueId": "0", "offset": "0"}):
                heard = await client.ask(code, ext)
                assert (heard.code, "'mistyped'" in str(heard.remark)) == (NO_GROUP, True)
        assert "mistyped" not in gateway.node.machine.state.groups
        heard = await client.send(topic="%RETRY%readers")
        assert (heard.code, "that the group reads" in str(heard.remark)) == (INVALID, True)
        for topic in ("TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_quorumlog"):
            for code, refusal in ((codes.DELETE_TOPIC, INVALID), (codes.ROUTE, 17)):
                heard = await client.ask(code, {"topic": topic})
                assert (heard.code, "belongs to the system" in str(heard.remark)) == (refusal, True)
        assert (await client.ask(codes.DELETE_TOPIC, {"topic": "%RETRY%gone"})).code == 0
        for code in (codes.LOCK, codes.UNLOCK, RequestCode.HEART_BEAT):
            for body in (b"", b"[]", b"{", b"7"):
                assert (await client.ask(code, body=body)).code == INVALID


@pytest.mark.parametrize(
    ("on_damage", "code"), [(CorruptionError.note_repair, 14), (lambda _: None, 1)]
)
async def test_damage_passes_while_the_node_takes_the_bytes_from_a_peer(
    tmp_path: Path, on_damage: Any, code: int
) -> None:
    async with client_at(tmp_path) as (gateway, client):
        gateway.calls.served._on_damage = on_damage
        sent = await client.send(b"body")
        store, log = gateway.node.log.store, gateway.node.log.store.log
        damage(tmp_path, store.reads.pull("orders", 0, 0).data)
        log.checked.distrust(0, log.max_position)
        position = str(int(sent.ext["msgId"][16:], 16))
        view = await client.ask(codes.VIEW, {"offset": position, "topic": "orders"})
        for heard in (await client.pull(0, 0), view):
            assert (heard.code, str(heard.remark)[:17]) == (code, "store.corruption:")
