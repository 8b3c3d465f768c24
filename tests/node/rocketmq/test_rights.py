"""Rights: each method and each code as no user, as the wrong one and as the right one."""

import json
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from google.protobuf.duration_pb2 import Duration

from node.config.settings import Settings
from node.peers.security.tls import client_port_context
from node.rocketmq.callers import CLIENT_HEADER, SERVICE, USER_HEADER
from node.rocketmq.needs import COMMAND_NEEDS, METHOD_NEEDS, open_to_all
from node.rocketmq.remoting.protocol.codes import RequestCode
from node.rocketmq.remoting.protocol.command import Command
from node.rocketmq.remoting.protocol.marks import FORWARDED, NAME, USER
from node.users.guard import Guard
from node.users.needs import signed_in
from node.users.rules import Action, Resource, ResourceKind, Rule
from qlog.server.authority import Authority
from quorumlog.pb import rocketmq_pb2 as pb
from quorumlog.pb.rocketmq_pb2 import ClientType, Code
from tests.node.rocketmq import test_service
from tests.node.rocketmq.guards import allow, forwarded, guard_of, headers, signed
from tests.node.rocketmq.remoting import codes
from tests.node.rocketmq.remoting.clients import (
    ClassicClient,
    Gateway,
    Heard,
    gateway_at,
    json_frame,
    send_fields,
)
from tests.node.rocketmq.test_service import CLIENT, HANDLE
from tests.patience import PATIENCE_S, eventually

ROLES = {
    "shop": ("producer-consumer:shop",),
    "hers": ("producer-consumer:hers",),
    "root": ("admin",),
}
TOPICS = {"shop": 1, "hers": 1}
DENIED = 16
FIELDS = {
    **dict.fromkeys(("topic", "b", "group", "groupName", "consumerGroup"), "shop"),
    **dict.fromkeys(("producerGroup", "srcGroup", "destGroup", "statsKey"), "shop"),
    "statsName": "TOPIC_PUT_NUMS",
}
SUBSCRIBED = [{"topic": "shop", "subString": "*"}]
BODIES: dict[int, dict[str, Any]] = {
    RequestCode.HEART_BEAT: {
        "clientID": "c",
        "consumerDataSet": [{"groupName": "mine", "subscriptionDataSet": SUBSCRIBED}],
    },
    RequestCode.LOCK_BATCH_MQ: {"consumerGroup": "shop", "clientId": "c"},
    RequestCode.UNLOCK_BATCH_MQ: {"consumerGroup": "shop", "clientId": "c"},
    RequestCode.QUERY_ASSIGNMENT: {"consumerGroup": "hers", "topic": "shop", "clientId": "c"},
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: {"topicConfigList": [{"topicName": "shop"}]},
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: {"groupName": "shop"},
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: {
        "groupConfigList": [{"groupName": "shop"}]
    },
}
"""Of commands whose body names what they touch."""


@asynccontextmanager
async def gateway_with_users(root: Path, **how: Any) -> AsyncIterator[tuple[Gateway, Guard, Any]]:
    """A gateway with TLS and users, its guard, and how clients trust it."""
    authority, guard = Authority(root), guard_of(ROLES)
    files = authority.files("node")._replace(ca=authority.path)
    tls = client_port_context(files, require_client_certificate=False)
    trusting = ssl.create_default_context(cafile=str(authority.path))
    async with gateway_at(root / "n", guard=guard, tls=tls, topics=TOPICS, **how) as gateway:
        yield gateway, guard, trusting


async def ask(
    client: ClassicClient, name: str, code: int, ext: dict[str, str], body: Any = b""
) -> Heard:
    data = body if isinstance(body, bytes) else json_frame(body)[8:]
    return await client.ask(code, signed(name, ext, data), data)


async def test_each_code_as_no_user_the_wrong_one_and_the_right_one(tmp_path: Path) -> None:
    async with gateway_with_users(tmp_path) as (gateway, guard, trusting):
        client = await gateway.client(tls=trusting)
        assert gateway.calls.handlers.keys() == COMMAND_NEEDS.keys()
        for code, row in COMMAND_NEEDS.items():
            if code < 0:
                continue
            document = BODIES.get(code, {})
            heard = await client.ask(code, FIELDS, document)
            is_refused = "node.unauthenticated: the call shows no" in str(heard.remark)
            assert (heard.code == DENIED and is_refused) is (row is not open_to_all), heard
            needs = list(row(Command(code, ext=FIELDS)) or ())
            heard = await ask(client, "hers", code, FIELDS, document)
            is_refused = "node.forbidden: user 'hers' lacks " in str(heard.remark)
            assert (heard.code == DENIED and is_refused) is bool(needs or document), heard
            if needs:
                assert any(f"'hers' lacks {need};" in str(heard.remark) for need in needs)
            heard = await ask(client, "root", code, FIELDS, document)
            assert "node.forbidden" not in str(heard.remark), heard
            assert "node.unauthenticated" not in str(heard.remark), heard
        assert guard.refused["forbidden"] > 50


async def test_lists_have_what_their_caller_may_see(tmp_path: Path) -> None:
    async with gateway_with_users(tmp_path) as (gateway, _, trusting):
        client = await gateway.client(tls=trusting)
        names = ("shop", "hers")
        producers = [{"groupName": name} for name in names]
        beat = {"clientID": "c", "producerDataSet": producers}
        assert (await ask(client, "root", codes.HEARTBEAT, {}, beat)).code == 0
        for group in names:
            for topic in names:
                ext = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "0"}
                assert (await ask(client, "root", codes.COMMIT, ext)).code == 0
        of_shop = {"group": "shop", "consumerGroup": "shop", "isOrder": "false"}
        for code, ext in {
            codes.TOPICS: {},
            RequestCode.GET_TOPICS_BY_CLUSTER: {},
            codes.ALL_TOPICS: {},
            codes.ALL_GROUPS: {},
            RequestCode.GET_ALL_PRODUCER_INFO: {},
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: {"topic": "shop"},
            RequestCode.QUERY_TOPICS_BY_CONSUMER: of_shop,
            codes.PROGRESS: of_shop,
            RequestCode.GET_BROKER_CONSUME_STATS: of_shop,
        }.items():
            asked = [client.begin(code, signed(name, ext)) for name in ("root", "shop", "root")]
            bodies = [(await one).body for one in asked]  # All are under way at once.
            assert [(b"shop" in one, b"hers" in one) for one in bodies] == [
                (True, True), (True, False), (True, True)
            ], (code, bodies)  # fmt: skip


async def test_a_pull_that_waits_ends_with_the_right_to_it(tmp_path: Path) -> None:
    async with gateway_with_users(tmp_path) as (gateway, guard, trusting):
        client = await gateway.client(tls=trusting)
        fields = {
            "consumerGroup": "shop", "topic": "shop", "queueId": "0", "queueOffset": "0",
            "maxMsgNums": "1", "sysFlag": "6", "suspendTimeoutMillis": "20000",
            "subscription": "*", "subVersion": "1",
        }  # fmt: skip
        waiting = client.begin(codes.PULL, signed("shop", fields))
        assert (await ask(client, "hers", codes.PULL, fields)).code == DENIED
        assert not waiting.done()
        allow(guard, ROLES | {"shop": ("reader",)})
        heard = await waiting
        assert "user 'shop' lacks Sub on Group:shop;" in str(heard.remark)
        sent = await ask(client, "shop", codes.SEND, send_fields("shop", 0, "g0-n1"), b"x")
        assert "user 'shop' lacks Pub on Topic:shop;" in str(sent.remark)
        allow(guard, {})
        sent = await ask(client, "shop", codes.SEND, send_fields("shop", 0, "g0-n1"), b"x")
        assert "node.unauthenticated" in str(sent.remark)


async def test_a_send_makes_a_topic_with_the_right_to_create_it(tmp_path: Path) -> None:
    settings = Settings(node_id=1, directory=tmp_path, rocketmq_auto_topics=True)
    async with gateway_with_users(tmp_path, settings=settings) as (gateway, guard, trusting):
        client = await gateway.client(tls=trusting)
        fields = send_fields("shop-new", 0, "g0-n1")
        heard = await ask(client, "shop", codes.SEND, fields, b"x")
        assert "user 'shop' lacks Create on Topic:shop-new;" in str(heard.remark)
        create = Rule(Resource(ResourceKind.TOPIC, "shop", True), frozenset({Action.CREATE}))
        allow(guard, {"shop": (*ROLES["shop"], "maker")}, {"maker": (create,)})
        assert (await ask(client, "shop", codes.SEND, fields, b"x")).code == 0


async def test_transactions_are_those_of_users_that_publish_to_their_topics(tmp_path: Path) -> None:
    async with gateway_with_users(tmp_path) as (gateway, guard, trusting):
        first, second = await gateway.client(tls=trusting), await gateway.client(tls=trusting)
        for client, name in ((first, "hers"), (second, "shop")):
            beat = {"clientID": name, "producerDataSet": [{"groupName": "producers"}]}
            assert (await ask(client, name, codes.HEARTBEAT, {}, beat)).code == 0
        half = {"TRAN_MSG": "true", "PGROUP": "producers"}
        fields = send_fields("shop", 0, "g0-n1", **half) | {"f": "4"}
        sent = await ask(second, "shop", codes.SEND, fields, b"secret")
        position = str(int(sent.ext["msgId"][16:], 16))
        end = {"producerGroup": "producers", "commitLogOffset": position, "commitOrRollback": "8"}
        heard = await ask(first, "hers", codes.END, end)
        unknown = end | {"commitLogOffset": str(1 << 40)}
        other = await ask(first, "hers", codes.END, unknown)
        text = str(heard.remark).replace(position, str(1 << 40))
        assert (heard.code, text) == (other.code, str(other.remark)), "an id tells nothing"
        checks = gateway.node.broker.transactions.checks
        await eventually(lambda: checks.producers.is_there("producers"), "the producers")
        for _ in range(2):
            gateway.node.clock.now_ms += 600_000
            await checks.round()
            assert (await second.hear()).code == codes.CHECK
        assert first.told.empty()
        for client, name in ((second, "shop"), (second, "shop"), (first, "hers")):
            heard = await ask(client, name, codes.END, end)
            assert (heard.code == 0) is (name == "shop"), heard
        assert "node.unknown_transaction" in str(heard.remark)
        refused_count, strange = guard.refused["forbidden"], 1 << 40
        back = {"group": "hers", "delayLevel": "0"}
        for code in (codes.VIEW, codes.SEND_BACK):
            said = set()
            for at in (int(position), strange):
                heard = await ask(first, "hers", code, back | {"offset": str(at)})
                said.add((heard.code, re.sub("[0-9A-F]{32}", "", str(heard.remark))))
            assert len(said) == 1, "whether another user has it is not told"
        assert "node.message_not_found" in str(heard.remark)
        assert guard.refused["forbidden"] == refused_count + 2, "refusals all the same"


async def test_a_client_id_is_that_of_one_user_of_an_address(tmp_path: Path) -> None:
    async with gateway_with_users(tmp_path) as (gateway, _, trusting):
        own, other = await gateway.client(tls=trusting), await gateway.client(tls=trusting)
        known, leaving = gateway.remoting.groups.clients, {"clientID": "c", "producerGroup": "p"}
        beats = [
            {"clientID": "c", "producerDataSet": [{"groupName": group}]}
            for group in ("p", "q")  # Replies name no group.
        ]
        assert (await ask(own, "shop", codes.HEARTBEAT, {}, beats[0])).code == 0
        for client, beat in product((own, other), beats):
            heard = await ask(client, "hers", codes.HEARTBEAT, {}, beat)
            assert "is that of a client of another user; use" in str(heard.remark)
        assert (await ask(own, "hers", RequestCode.UNREGISTER_CLIENT, leaving)).code == DENIED
        assert known.producer("c")
        await own.close()
        await eventually(lambda: not known.count, "the end of its connection")
        for beat in beats:
            assert (await ask(other, "hers", codes.HEARTBEAT, {}, beat)).code == DENIED
        assert (await ask(other, "shop", codes.HEARTBEAT, {}, beats[0])).code == 0
        assert (await ask(other, "shop", RequestCode.UNREGISTER_CLIENT, leaving)).code == 0
        assert (await ask(other, "hers", codes.HEARTBEAT, {}, beats[0])).code == 0


async def test_a_lock_is_that_of_one_user_of_an_address(tmp_path: Path) -> None:
    async with gateway_with_users(tmp_path) as (gateway, guard, trusting):
        own, other = await gateway.client(tls=trusting), await gateway.client(tls=trusting)
        sub = frozenset({Action.SUB})
        resources = Resource(ResourceKind.TOPIC, "shop-o"), Resource(ResourceKind.GROUP, "shop")
        reads = {"reads": tuple(Rule(resource, sub) for resource in resources)}
        allow(guard, ROLES | {"hers": ("reads",)}, reads)
        queue = {"topic": "shop-o", "brokerName": "g0-n1", "queueId": 0}
        body = {"consumerGroup": "shop", "clientId": "c", "mqSet": [queue]}
        for client, user, locked in (
            *((own, "shop", [queue]), (other, "hers", []), (own, "hers", [])),
            (other, "shop", [queue]),  # It has connected again.
        ):
            heard = await ask(client, user, codes.LOCK, {}, body)
            assert json.loads(heard.body) == {"lockOKMQSet": locked}
            assert (await ask(client, "hers", RequestCode.UNLOCK_BATCH_MQ, {}, body)).code == 0


async def test_a_reply_reaches_users_that_may_take_replies(tmp_path: Path) -> None:
    async with gateway_with_users(tmp_path) as (gateway, guard, trusting):
        asker, replier = await gateway.client(tls=trusting), await gateway.client(tls=trusting)
        topic = f"{gateway.node.broker.context.identity.cluster_id}_REPLY_TOPIC"
        resource = Resource(ResourceKind.TOPIC, topic)
        own = {str(action): (Rule(resource, frozenset({action})),) for action in Action}
        allow(guard, ROLES | {"hers": ("Pub",)}, own)
        beat = {"clientID": "asker", "producerDataSet": [{"groupName": "shop"}]}
        assert (await ask(asker, "shop", codes.HEARTBEAT, {}, beat)).code == 0
        fields = send_fields(topic, 0, "g0-n1", REPLY_TO_CLIENT="asker")
        for name in ("asker", "nobody"):
            to = send_fields(topic, 0, "g0-n1", REPLY_TO_CLIENT=name)
            heard = await ask(replier, "hers", codes.REPLY, to, b"answer")
            assert heard.remark == (
                f"the requester '{name}' is not connected to this node, or its user lacks Sub on "
                f"Topic:{topic}"
            )
        allow(guard, ROLES | {"hers": ("Pub",), "shop": (*ROLES["shop"], "Sub")}, own)
        reply = replier.begin(codes.REPLY, signed("hers", fields, b"answer"), b"answer")
        asker.answer(await asker.hear())
        assert (await reply).code == 0
        vars(guard)["mode"] = "prepare"
        assert (await asker.produce_for("another", "hers")).code == 0
        fields = send_fields(topic, 0, "g0-n1", REPLY_TO_CLIENT="another")
        reply = replier.begin(codes.REPLY, fields, b"answer")
        asker.answer(await asker.hear())
        assert (await reply).code == 0


def requests(name: str) -> dict[str, Any]:
    """Return a request of each unary method about a topic and a group of this name."""
    topic = group = pb.Resource(name=name)
    both: dict[str, Any] = {"topic": topic, "group": group}
    taken = both | {"receipt_handle": HANDLE}
    return {
        "QueryRoute": pb.QueryRouteRequest(topic=topic),
        "QueryAssignment": pb.QueryAssignmentRequest(**both),
        "Heartbeat": pb.HeartbeatRequest(client_type=ClientType.PUSH_CONSUMER, group=group),
        "SendMessage": test_service.send(topic=name),
        "AckMessage": pb.AckMessageRequest(**both),
        "ForwardMessageToDeadLetterQueue": pb.ForwardMessageToDeadLetterQueueRequest(**taken),
        "ChangeInvisibleDuration": pb.ChangeInvisibleDurationRequest(**taken),
        "EndTransaction": pb.EndTransactionRequest(topic=topic, transaction_id=HANDLE),
        "RecallMessage": pb.RecallMessageRequest(topic=topic, recall_handle=HANDLE),
        "NotifyClientTermination": pb.NotifyClientTerminationRequest(group=group),
    }


async def test_each_method_as_no_user_the_wrong_one_and_the_right_one(tmp_path: Path) -> None:
    refusals = (Code.UNAUTHORIZED, Code.FORBIDDEN)
    async with test_service.gateway_at(tmp_path, guard_of(ROLES)) as gateway:
        await gateway.node.create_topic("shop", queue_count=1)
        calls = requests("shop")
        assert {*calls, "ReceiveMessage", "Telemetry"} == METHOD_NEEDS.keys()
        users = {
            name: (("x-mq-client-id", name), *headers(name).items()) for name in ROLES
        }  # A client is of one user.
        for name, request in calls.items():
            answer = await gateway.call(name, request)
            assert answer.status.code == Code.UNAUTHORIZED, name
            answer = await gateway.call(name, request, users["hers"])
            is_free = METHOD_NEEDS[name] is signed_in
            assert (answer.status.code == Code.FORBIDDEN) is not is_free, name
            if not is_free:
                assert "user 'hers' lacks" in answer.status.message
            answer = await gateway.call(name, request, users["shop"])
            assert answer.status.code not in refusals, answer
        shop = pb.Resource(name="shop")
        queue = pb.MessageQueue(topic=shop)
        for metadata, code in (
            (CLIENT, Code.UNAUTHORIZED),
            (users["hers"], Code.FORBIDDEN),
            (users["shop"], Code.OK),
        ):
            (first, *_) = await gateway.receive(
                metadata=metadata, group=shop, message_queue=queue,
                invisible_duration=Duration(seconds=30),
            )  # fmt: skip
            assert first.status.code == code, first


async def test_a_producer_hears_of_transactions_of_topics_that_it_may_send_to(
    tmp_path: Path,
) -> None:
    async with test_service.gateway_at(tmp_path, guard_of(ROLES)) as gateway:
        shop = pb.Resource(name="shop")
        entry = pb.SubscriptionEntry(topic=shop)
        reads = pb.Subscription(group=pb.Resource(name="hers"), subscriptions=[entry])
        for name, count in (("hers", 0), ("shop", 1)):
            metadata = (("x-mq-client-id", name), *headers(name).items())
            method = gateway.channel.stream_stream(f"/{SERVICE}/Telemetry")
            stream: Any = method(metadata=metadata, timeout=PATIENCE_S)
            for settings, code in (
                (pb.Settings(subscription=reads), Code.FORBIDDEN),
                (pb.Settings(publishing=pb.Publishing(topics=[shop])), Code.OK),
            ):
                await stream.write(pb.TelemetryCommand(settings=settings).SerializeToString())
                answer = pb.TelemetryCommand.FromString(await stream.read())
                assert answer.status.code == code, answer
            assert len(list(gateway.rocketmq.clients.producers_of("shop"))) == count
        assert not gateway.rocketmq.clients.consumers


async def test_a_node_tells_the_leader_whose_call_it_is(tmp_path: Path) -> None:
    sent = send_fields("shop", 0, "g0-n1")
    mark = {FORWARDED: "127.0.0.1:1", NAME: "0"}
    async with gateway_with_users(tmp_path) as (gateway, _, trusting):
        node = await gateway.client(tls=trusting)
        await node.become_node()
        for user, said in (("shop", None), ("hers", "lacks"), ("", "shows no credential")):
            heard = await node.ask(codes.SEND, sent | mark | {USER: user}, b"x")
            assert (heard.code == 0) is (said is None), heard
            assert (said or "") in str(heard.remark or "")
        told = signed("hers", sent, b"x") | mark | {USER: "shop"}
        assert (await node.ask(codes.SEND, told, b"x")).code == DENIED, "it is the signer's"
    async with test_service.gateway_at(tmp_path / "n2", guard_of(ROLES)) as grpc_gateway:
        await grpc_gateway.node.create_topic("shop", queue_count=1)
        request, named = test_service.send(topic="shop"), (*CLIENT, (CLIENT_HEADER, "10.0.0.1:1"))
        shown = partial(forwarded, "SendMessage", request, *named)
        overheard = shown((USER_HEADER, "shop"))
        for metadata, code in (
            (overheard, Code.OK),
            (overheard, Code.UNAUTHORIZED),
            (shown((USER_HEADER, "hers")), Code.FORBIDDEN),
            (shown((USER_HEADER, "shop"), *headers("hers").items()), Code.FORBIDDEN),
            (shown(), Code.UNAUTHORIZED),
            ((*named, (USER_HEADER, "shop"), shown()[-1]), Code.UNAUTHORIZED),
            ((*named, (USER_HEADER, "root")), Code.UNAUTHORIZED),
        ):
            answer = await grpc_gateway.call("SendMessage", request, metadata)
            assert answer.status.code == code, answer
        forged, fresh = test_service.send(b"forged", topic="shop"), shown((USER_HEADER, "shop"))
        answer = await grpc_gateway.call("SendMessage", forged, fresh)
        assert answer.status.code == Code.UNAUTHORIZED, "the body is another one"
