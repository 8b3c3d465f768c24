"""Signatures: those of RocketMQ's own client are taken, and no command without one."""

import ssl
from pathlib import Path

from node.framed.connection import SHARED_PORT
from node.peers.security.tls import client_port_context
from node.rocketmq.remoting.access import signer
from node.rocketmq.remoting.protocol.command import decode
from node.rocketmq.remoting.protocol.marks import FORWARDED, NAME
from qlog.server.authority import Authority
from tests.node.rocketmq.guards import KEY, guard_of, signed
from tests.node.rocketmq.remoting import codes
from tests.node.rocketmq.remoting.clients import Gateway, client_at, gateway_at
from tests.node.rocketmq.remoting.test_command import FRAMES, parts_of

DENIED = 16


def test_a_command_that_the_java_client_signed_is_taken() -> None:
    guard = guard_of({KEY: ("admin",)})
    assert signer(guard, decode(*parts_of(FRAMES["105 request, signed"]))).name == KEY
    send = decode(*parts_of(FRAMES["310 request, JSON"]))
    send.ext["AccessKey"] = "rocketmq2"
    send.ext["Signature"] = "vAlTTA0fFHKRi/jdCUwL2W7Gcko="
    assert signer(guard, send).name == KEY
    send.ext["Signature"] = send.ext["Signature"].lower()
    assert not signer(guard, send).name


async def test_commands_without_a_fitting_signature_are_refused(tmp_path: Path) -> None:
    async with client_at(tmp_path, guard=guard_of({KEY: ("admin",)})) as (gateway, client):
        fields = {"topic": "orders", "queueId": "0"}
        route = await client.ask(codes.ROUTE, fields)
        assert route.code == 0, "a client that has no route says that the topic is missing"
        assert (await client.ask(codes.MAX, fields)).code == DENIED
        assert (await client.ask(codes.MAX, fields | {"AccessKey": "other"})).code == DENIED
        wrong = fields | {"AccessKey": "rocketmq2", "Signature": "AAAA"}
        assert (await client.ask(codes.MAX, wrong)).code == DENIED
        assert (await client.ask(codes.HEARTBEAT, body=b"{}")).code == DENIED
        assert gateway.remoting.groups.clients.count == 0

        signed_fields = signed(KEY, fields)
        assert (await client.ask(codes.MAX, signed_fields)).code == 0
        assert (await client.ask(codes.MAX, signed_fields | {"topic": "other"})).code == DENIED
        assert (await client.ask(codes.MAX, signed_fields, b"more")).code == DENIED


async def test_the_port_of_the_sdk_administers_nothing(tmp_path: Path) -> None:
    async with client_at(tmp_path, port_number=SHARED_PORT) as (gateway, client):
        for code in administration(gateway):
            answer = await client.ask(code, {"topic": "orders", "groupName": "readers"}, b"{}")
            assert answer.code == DENIED
        assert "orders" in gateway.node.broker.context.state.topics
        assert (await client.send()).code == 0


async def test_signed_administration_is_taken_over_tls_only(tmp_path: Path) -> None:
    """A signature of a route is as good for a deletion, also under other names of fields."""
    authority = Authority(tmp_path)
    files = authority.files("node")._replace(ca=authority.path)
    tls = client_port_context(files, require_client_certificate=False)
    guard = guard_of({KEY: ("admin",)})
    trusting = ssl.create_default_context(cafile=str(authority.path))
    async with gateway_at(tmp_path / "n", guard=guard, tls=tls, is_permissive=True) as gateway:
        plain, private = await gateway.client(), await gateway.client(tls=trusting)
        overheard = signed(KEY, {"topic": "orders"})
        assert (await plain.ask(codes.ROUTE, overheard)).code == 0
        forwarded = overheard | {FORWARDED: "127.0.0.1:1", NAME: "0"}
        for code in administration(gateway):
            for ext in (overheard, forwarded):
                answer = await plain.ask(code, ext)
                assert answer.code == DENIED
                assert answer.remark is not None
                assert ("TLS" if ext is overheard else FORWARDED) in answer.remark
        assert "orders" in gateway.node.broker.context.state.topics
        assert (await private.ask(codes.DELETE_TOPIC, {"topic": "orders"})).code == DENIED
        assert (await private.ask(codes.DELETE_TOPIC, overheard)).code == 0
        assert "orders" not in gateway.node.broker.context.state.topics


def administration(gateway: Gateway) -> list[int]:
    rows = gateway.remoting.handlers().items()
    return [code for code, served in rows if served.is_administration]


async def test_a_command_that_is_sent_again_as_another_has_the_rights_of_its_user(
    tmp_path: Path,
) -> None:
    async with client_at(tmp_path, guard=guard_of({"eve": ("reader",)})) as (_, client):
        names = {"topic": "orders", "b": "orders", "consumerGroup": "readers", "queueId": "0"}
        overheard = signed("eve", names | {"commitOffset": "0"})
        assert (await client.ask(codes.MAX, overheard)).code == 0
        for code in (codes.SEND, codes.COMMIT, codes.POP, codes.UNREGISTER, codes.DELETE_TOPIC):
            heard = await client.ask(code, overheard)
            assert (heard.code, "user 'eve' lacks" in str(heard.remark)) == (DENIED, True)
