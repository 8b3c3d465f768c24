"""Strangers beside callers that are checked: nothing is lost, and nothing stays behind."""

import asyncio
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from node.rocketmq.remoting.protocol.fields import INT32_MAX, INT64_MAX
from node.runtime.accounts import MIB, Kind, Limit
from quorumlog.pb.admin_pb2 import ListGroupsRequest
from store.record.message import parse_message_id
from tests import seeds
from tests.loopback import HOST
from tests.node.rocketmq.remoting import codes
from tests.node.rocketmq.remoting.clients import (
    ClassicClient,
    Gateway,
    client_at,
    gateway_at,
    send_fields,
)
from tests.patience import eventually
from tests.store.records import messages
from tests.strange_requests import TOPICS
from tests.strangers import COUNT, DURABLE, ENDING_COUNT, Stranger

TOPIC, GROUP, QUEUE_COUNT = "checked", "checkers", 6
CONNECTION_COUNT = 16
"""Of each stranger."""
MESSAGE_COUNT, TRANSACTION_COUNT = 60, 10
HALF, COMMIT, ROLLBACK = 4, "8", "12"
NOTHING_NEW = 19
ROOT: Final = Path(__file__).resolve().parents[4]
KEPT: Final = {"_meters", "_got", "_pending"}
"""Counters of topics that exist, and moves of offsets that no consumer has noticed."""
HELD: Final = {
    Kind.CALLS: Limit("calls under way", 128, 16 * MIB),
    Kind.DOCUMENTS: Limit("documents", size_bytes_max=4 * MIB, connection_part=8),
    Kind.ANSWERS: Limit("answers not taken", size_bytes_max=2 * MIB),
    Kind.MEMBERS: Limit("members of groups", 32),
    Kind.LOCKS: Limit("locks of queues", 64),
    Kind.ROWS: Limit("rows in memory", 64),
}
"""Small, so that strangers meet refusals."""


def tables(part: object, path: str, seen: set[int]) -> Iterator[tuple[str, int]]:
    """Yield the size of each table of a part of the node and of the parts in it, by its path."""
    if id(part) in seen:
        return
    seen.add(id(part))
    slots = [name for kind in type(part).__mro__ for name in getattr(kind, "__slots__", ())]
    fields = {name: getattr(part, name, None) for name in slots} | getattr(part, "__dict__", {})
    for name, value in fields.items():
        if isinstance(value, dict | set | list):
            yield f"{path}.{name}", len(value)
        elif type(value).__module__.startswith(("node.rocketmq", "node.framed")):
            yield from tables(value, f"{path}.{name}", seen)


class Checked:
    """A producer, a consumer and a transaction at an address of their own, and what they found."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.read: dict[int, list[bytes]] = {0: [], 1: []}
        """Bodies by queue."""

    async def client(self) -> ClassicClient:
        port, local = self._gateway.port, (HOST, 0)
        return ClassicClient(*await asyncio.open_connection("127.0.0.1", port, local_addr=local))

    async def produce(self) -> None:
        client = await self.client()
        for number in range(MESSAGE_COUNT):
            sent = await client.send(b"%d" % number, TOPIC, UNIQ_KEY=f"{number:032X}")
            assert (sent.code, sent.ext["queueOffset"]) == (0, str(number)), sent
        await client.close()

    async def decide(self) -> None:
        """Commit every other transaction, and roll the others back."""
        client = await self.client()
        await client.produce_for("p@1", "payers")
        for number in range(TRANSACTION_COUNT):
            how = {"TRAN_MSG": "true", "PGROUP": "payers", "UNIQ_KEY": f"{number:032X}"}
            half = await client.send(b"%d" % number, TOPIC, 1, sys_flag=HALF, **how)
            assert half.code == 0, half
            end = {
                "producerGroup": "payers",
                "tranStateTableOffset": half.ext["queueOffset"],
                "commitLogOffset": str(parse_message_id(half.ext["msgId"])[1]),
                "commitOrRollback": ROLLBACK if number % 2 else COMMIT,
            }
            assert (await client.ask(codes.END, end)).code == 0
        await client.close()

    async def consume(self, queue_id: int, count: int) -> None:
        """Read a queue until so many messages came, and store each offset."""
        client, bodies = await self.client(), self.read[queue_id]
        assert (await client.heartbeat(f"checker@{queue_id}", GROUP, TOPIC)).code == 0
        fields = {"consumerGroup": GROUP, "topic": TOPIC}
        while len(bodies) < count:
            pulled = await client.pull(queue_id, len(bodies), 15_000, fields)
            assert pulled.code in (0, NOTHING_NEW), pulled
            records = messages(pulled.body)
            assert [one.queue_offset for one in records] == [
                len(bodies) + n for n in range(len(records))
            ]
            bodies += [one.body for one in records]
            offset = {"queueId": str(queue_id), "commitOffset": str(len(bodies))}
            assert (await client.ask(codes.COMMIT, fields | offset | {"bname": "g0-n1"})).code == 0
        await client.close()

    async def prove(self) -> None:
        """Each message once and in order, for the consumer and from the start."""
        paid = [b"%d" % number for number in range(0, TRANSACTION_COUNT, 2)]
        assert self.read == {0: [b"%d" % number for number in range(MESSAGE_COUNT)], 1: paid}
        client = await self.client()
        fields = {"consumerGroup": GROUP, "topic": TOPIC, "bname": "g0-n1"}
        for queue_id, bodies in self.read.items():
            response = await client.ask(codes.GET_OFFSET, fields | {"queueId": str(queue_id)})
            assert response.ext["offset"] == str(len(bodies))
            again = messages((await client.pull(queue_id, 0, 0, fields)).body)
            assert [one.body for one in again] == bodies[: len(again)] != []
            assert (await client.pull(queue_id, len(bodies), 0, fields)).body == b""
        await client.close()


@pytest.mark.parametrize("seed", [1, 2, seeds.FRESH])
async def test_strangers_cost_the_checked_nothing_and_leave_nothing(
    tmp_path: Path, seed: int | str
) -> None:
    drawn = seeds.chosen(seed, f"--all {Path(__file__).relative_to(ROOT)} -k fresh")
    async with gateway_at(tmp_path, held=HELD) as gateway:
        gateway.server.calls.open(gateway.node.broker)
        for topic in (TOPIC, *TOPICS):
            await gateway.node.create_topic(topic, queue_count=QUEUE_COUNT)
        before, checked = dict(tables(gateway, "gateway", set())), Checked(gateway)
        strangers = [Stranger(drawn * COUNT + n, is_ending=n < ENDING_COUNT) for n in range(COUNT)]

        async def live(stranger: Stranger) -> None:
            for _ in range(CONNECTION_COUNT if isinstance(seed, int) else 50 * CONNECTION_COUNT):
                await stranger.connect(gateway.port)

        await asyncio.gather(
            *map(live, strangers),
            checked.produce(),
            checked.decide(),
            checked.consume(0, MESSAGE_COUNT),
            checked.consume(1, TRANSACTION_COUNT // 2),
        )
        await checked.prove()
        await eventually(lambda: not gateway.server.connections.count, "the end of connections")
        await eventually(lambda: not gateway.call_count, "the end of calls")
        counters, accounts = gateway.calls.served.counters, gateway.calls.accounts
        unforeseen = {key: n for key, n in counters.failed.items() if key[1] == "node.internal"}
        assert not unforeseen
        assert accounts.refused.total(), "no limit was met"
        accounts.settle()
        gateway.remoting.transactions.look()
        reserved = gateway.remoting.groups.clients._reserved
        reserved._monotonic_s = lambda: math.inf
        reserved.expire()
        gateway.node.clock.now_ms += 120_000  # The longest session: of one that takes by pop.
        await gateway.node.broker.groups.list_groups(ListGroupsRequest())  # Drops silent members.
        held = {kind.name: accounts.held(kind) for kind in Kind if kind not in DURABLE}
        assert not {name: one for name, one in held.items() if any(one)}

        def grown() -> list[str]:
            """Return the tables that are larger than before."""
            after = tables(gateway, "gateway", set())
            paths = [path for path, size in after if size > before.get(path, 0)]
            return [path for path in paths if path.rpartition(".")[2] not in KEPT]

        # Members are told of a change a while later.
        await eventually(lambda: not gateway.remoting.groups._to_tell, "the last notices")
        assert not grown()


HALF_OF_A_PAIR: Final = "\ud800"
_QUEUE: Final = {"topic": "orders", "consumerGroup": "readers", "queueId": "0", "bname": "g0-n1"}
_PULL: Final = _QUEUE | {"queueOffset": "0", "sysFlag": "4", "subscription": HALF_OF_A_PAIR}
_POP: Final = _QUEUE | {"maxMsgNums": "1", "invisibleTime": "60000"}


_FOUND: Final[list[tuple[int, dict[str, str], bytes]]] = [
    *((code, _QUEUE | {"queueId": str(INT32_MAX)}, b"") for code in (11, 14, 15, 29, 30, 31, 32)),
    (codes.BY_TIME, _QUEUE | {"timestamp": str(INT64_MAX), "boundaryType": "UPPER"}, b""),
    (codes.PULL, _PULL, b""),
    (codes.POP, _POP | {"attemptId": HALF_OF_A_PAIR}, b""),
    (codes.POP, _POP | {"exp": HALF_OF_A_PAIR}, b""),
    (codes.SEND, send_fields("orders", 0, "g0-n1") | {"a": HALF_OF_A_PAIR, "f": "4"}, b""),
    (codes.PUT_GROUP, {}, json.dumps({"groupName": HALF_OF_A_PAIR}).encode()),
]
"""Requests of strangers that were answered with an error that nobody foresaw."""


async def test_a_value_at_its_border_is_refused_or_served(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (gateway, client):
        await client.send()
        for code, ext, body in _FOUND:
            more = {"queueOffset": "0", "commitOffset": "0", "timestamp": "0"}
            await client.ask(code, (more if ext else {}) | ext, body)
        failed = gateway.calls.served.counters.failed
        assert not {key for key in failed if key[1] == "node.internal"}
