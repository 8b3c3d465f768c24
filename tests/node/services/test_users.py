"""Every method of every service as nobody, as a user without the right, and as the right one."""

import asyncio
import base64
import hmac
import itertools
import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from node.config.settings import Settings
from node.rocketmq.remoting.access import signature
from node.rocketmq.remoting.protocol.codes import RequestCode, ResponseCode
from node.rocketmq.remoting.protocol.command import Command
from node.runtime.clock import unix_ms
from node.services.methods import SERVICES
from node.users.credentials import digest_of
from node.users.needs import NEEDS, appends, of_nodes, signed_in
from node.users.node_proofs import NodeProofs, signed_form
from quorumlog.pb import (
    admin_pb2,
    delay_pb2,
    log_pb2,
    lookup_pb2,
    retry_pb2,
    transaction_pb2,
    users_pb2,
)
from store.record.message import encode_message
from tests.fuzz.rights import admin
from tests.node.framed.clients import APPEND, AUTHENTICATE, FramedClient
from tests.node.monitoring.test_http_users import answer
from tests.node.processes import SingleNode, typed_error
from tests.node.rocketmq.remoting.clients import ClassicClient
from tests.node.users_files import ADMIN_TOKEN, user_settings
from tests.patience import PATIENCE_S, wait_for
from tests.store.records import messages

METHODS = [(service, method) for service in SERVICES for method in service.methods]
BY_NAME = {method.name: (service, method) for service, method in METHODS}
REQUESTS = {
    "Drain": admin_pb2.DrainRequest(undo=True),
    "Route": log_pb2.RouteRequest(topics=["orders"]),
    "GetMessage": log_pb2.GetMessageRequest(message_id="0" * 32),
}
"""Where an empty request would do something, or nothing."""
REFUSED = {"node.unauthenticated", "node.forbidden"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SingleNode]:
    root = tmp_path_factory.mktemp("users")
    with SingleNode(root / "n1", **user_settings(root)) as node:
        yield node


def code(
    node: SingleNode, token: str, service: Any, method: Any, given: Any = None, shown: Any = ()
) -> str:
    """Code of the error of a call, or the name of gRPC's status; empty: it was answered."""
    kind = GetMessageClass(method.input_type)
    request = given or REQUESTS.get(method.name) or kind()
    metadata = [("authorization", f"Bearer {token}")] if token else shown
    with grpc.insecure_channel(node.node_json()["address"]) as channel:
        shape = [
            "stream" if is_stream else "unary"
            for is_stream in (method.client_streaming, method.server_streaming)
        ]
        call = getattr(channel, "_".join(shape))(
            f"/{service.full_name}/{method.name}",
            kind.SerializeToString,
            GetMessageClass(method.output_type).FromString,
        )
        timeout = 1 if method.name == "CheckTransactions" and token else PATIENCE_S
        try:
            given = iter([request]) if method.client_streaming else request
            answer = call(given, metadata=metadata, timeout=timeout)
            if method.server_streaming:
                answer = next(answer)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return "waits"
            return typed_error(error).code
        return str((getattr(answer, "error", None) and answer.error.code) or "")


def admin_call(node: SingleNode, name: str, request: Any) -> None:
    (found,) = [row for row in METHODS if row[1].name == name]
    assert code(node, ADMIN_TOKEN, *found, request) == ""


def with_user(node: SingleNode, name: str, *roles: str) -> str:
    """Make a user; return its token."""
    token = users_pb2.Credential(id="t", token_sha256=digest_of(f"qlt_{name}"))
    admin_call(
        node,
        "PutUser",
        users_pb2.PutUserRequest(
            name=name, roles=users_pb2.RoleNames(roles=roles), add_credentials=[token]
        ),
    )
    return f"qlt_{name}"


def test_every_method_has_a_row() -> None:
    names = {f"{service.name}/{method.name}" for service, method in METHODS}
    assert names == NEEDS.keys()


def test_nobody_may_call_what_users_may(node: SingleNode) -> None:
    for token in ("", "qlt_unknown"):
        codes = {m.name: code(node, token, s, m) for s, m in METHODS}
        assert set(codes.values()) == {"node.unauthenticated"}, codes


def test_a_user_without_a_role_may_call_nothing_of_others(node: SingleNode) -> None:
    token = with_user(node, "nothing")
    # An empty request of these names nothing, or what it names is checked inside.
    others = {"LogService/Route", "LogService/QueueOffsets"}
    for service, method in METHODS:
        name = f"{service.name}/{method.name}"
        may_be_open = NEEDS[name] in (appends, of_nodes, signed_in) or name in others
        found = code(node, token, service, method)
        assert may_be_open or found == "node.forbidden", (name, found)


def test_an_admin_may_call_everything_but_what_nodes_alone_may(node: SingleNode) -> None:
    codes = {m.name: code(node, ADMIN_TOKEN, s, m) for s, m in METHODS}
    assert codes.pop("HandAudit") == codes.pop("Report") == "node.unauthenticated"
    assert not REFUSED & set(codes.values()), codes


def appended(topic: str, **how: Any) -> log_pb2.AppendRequest:
    properties = {"DELAY": "5"} if how.get("has_delayed") else {}
    record = encode_message(topic, 0, b"body", properties)
    return log_pb2.AppendRequest(records=record, record_count=1, **how)


def test_a_user_of_a_prefix_reaches_its_topics_and_no_others(node: SingleNode) -> None:
    for topic in ("shop-a", "other"):
        admin_call(node, "CreateTopic", admin_pb2.CreateTopicRequest(topic=topic))
    token = with_user(node, "shop", "producer-consumer:shop-")
    by_name = {m.name: (s, m) for s, m in METHODS}
    attached: tuple[dict[str, Any], ...] = (
        {},
        {"has_delayed": True},
        {"transaction": {"producer_group": "shop-p"}},
        {"consumed": {"group": "shop-g"}},
    )
    may_not: tuple[dict[str, Any], ...] = (
        {"transaction": {"producer_group": "other"}},
        {"consumed": {"group": "other"}},
        {"incarnation": {"name": "other", "number": 1}},
    )
    for method, how in itertools.product(("Append", "AppendStream"), attached):
        row = by_name[method]
        assert code(node, token, *row, appended("other", **how)) == "node.forbidden", (method, how)
        assert code(node, token, *row, appended("shop-a", **how)) not in REFUSED, (method, how)
        for asked in may_not:
            assert code(node, token, *row, appended("shop-a", **asked)) == "node.forbidden"
    both = encode_message("shop-a", 0, b"", {}) + encode_message("other", 0, b"", {})
    mixed = log_pb2.AppendRequest(records=both, record_count=2)
    assert code(node, token, *by_name["Append"], mixed) == "node.forbidden"
    pull = by_name["Pull"]
    assert code(node, token, *pull, log_pb2.PullRequest(topic="shop-a")) == ""
    assert code(node, token, *pull, log_pb2.PullRequest(topic="other")) == "node.forbidden"
    # A copy of a message that is given back would be the user's.
    moved = [retry_pb2.RetryMessage(topic="other", is_dead=True)]
    later = retry_pb2.RetryLaterRequest(group="shop-g", messages=moved)
    assert code(node, token, *by_name["RetryLater"], later) == "node.forbidden"
    end = transaction_pb2.EndTransactionRequest(producer_group="shop-p", producer_name="other")
    assert code(node, token, *by_name["EndTransaction"], end) == "node.forbidden"


def test_topics_that_hold_messages_of_others_are_read_by_an_admin(node: SingleNode) -> None:
    pull = next(row for row in METHODS if row[1].name == "Pull")
    token = with_user(node, "peeks", "reader")
    for topic in ("rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX", "rmq_sys_undeliverable"):
        request = log_pb2.PullRequest(topic=topic)
        assert code(node, token, *pull, request) == "node.forbidden"
        assert code(node, ADMIN_TOKEN, *pull, request) not in REFUSED


def test_a_denial_keeps_a_user_from_the_log_and_an_admin_may_delete_its_own_user(
    node: SingleNode,
) -> None:
    by_name = {m.name: (s, m) for s, m in METHODS}
    deny = users_pb2.Rule(deny=True, resource="Topic:secret", actions=["Sub"])
    admin_call(node, "PutRole", users_pb2.PutRoleRequest(name="no-secret", rules=[deny]))
    token = with_user(node, "second", "admin", "no-secret")
    read = admin_pb2.ReadLogRequest()
    assert code(node, token, *by_name["ReadLog"], read) == "node.forbidden"
    with grpc.insecure_channel(node.node_json()["address"]) as channel:
        for resource, expected in (("Topic:*", False), ("Topic:sec*", False), ("Topic:a*", True)):
            explain = users_pb2.ExplainRequest(user="second", action="Sub", resource=resource)
            assert admin(channel).Explain(explain).is_allowed is expected, resource
    own = users_pb2.DeleteUserRequest(name="second")
    assert code(node, token, *by_name["DeleteUser"], own) == ""
    assert code(node, token, *by_name["WhoAmI"]) == "node.unauthenticated"


def classic(node: SingleNode, request_code: RequestCode, topic: str, *properties: str) -> int:
    """Send a message that was tried too often, as the user `copies`; return the code of the
    answer."""
    ext = {"topic": topic, "queueId": "0", "properties": "\x01".join(properties) + "\x02"}
    ext |= {"reconsumeTimes": "9", "maxReconsumeTimes": "1", "producerGroup": "shop-g"}
    ext |= {"AccessKey": "copies", "bornTimestamp": "1", "sysFlag": "0", "flag": "0"}
    command = Command(request_code, ext=ext, body=b"forged", version=479)
    ext["Signature"] = base64.b64encode(signature(command, b"secret of copies")).decode()

    async def ask() -> int:
        port = int(node.node_json()["framed_address"].rpartition(":")[2])
        client = await ClassicClient.connect(port)
        answer = await client.ask(command.code, ext, b"forged")
        await client.close()
        return answer.code

    return asyncio.run(ask())


def test_dead_letters_and_half_messages_reach_no_topic_without_pub(node: SingleNode) -> None:
    for topic in ("shop-r", "taken", "unread"):
        admin_call(node, "CreateTopic", admin_pb2.CreateTopicRequest(topic=topic))
    rules = [
        users_pb2.Rule(resource="Topic:taken", actions=["Sub"]),
        users_pb2.Rule(resource="Group:shop-g", actions=["Sub", "Update"]),
    ]
    admin_call(node, "PutRole", users_pb2.PutRoleRequest(name="takes", rules=rules))
    roles = users_pb2.RoleNames(roles=["takes", "producer-consumer:shop-"])
    key = [users_pb2.Credential(id="copies")]
    put = users_pb2.PutUserRequest(
        name="copies", roles=roles, add_credentials=key, secrets=[b"secret of copies"]
    )
    admin_call(node, "PutUser", put)
    token, by_name = with_user(node, "copies", *roles.roles), {m.name: (s, m) for s, m in METHODS}
    admin_call(node, "Append", appended("taken"))
    dead = retry_pb2.RetryMessage(topic="taken", is_dead=True)
    later = retry_pb2.RetryLaterRequest(group="shop-g", messages=[dead])
    assert code(node, token, *by_name["RetryLater"], later) == ""
    copy = RequestCode.SEND_MESSAGE, "%RETRY%shop-g", "RETRY_TOPIC"
    found = [classic(node, *copy, topic) for topic in ("unread", "taken", "shop-r")]
    assert found == [ResponseCode.NO_PERMISSION, ResponseCode.SUCCESS, ResponseCode.SUCCESS]
    reply = RequestCode.SEND_REPLY_MESSAGE, "shop-r", "REPLY_TO_CLIENT", "another"
    assert classic(node, *reply) == ResponseCode.NO_PERMISSION, "a reply is not of any topic"
    operator = with_user(node, "resends", "operator")
    for offset, who, expected in (
        *((0, token, "node.forbidden"), (0, operator, ""), (1, token, "node.bad_request")),
        *((1, operator, "node.bad_request"), (1, ADMIN_TOKEN, "node.bad_request")),
        (2, token, ""),
    ):
        resend = retry_pb2.ResendDeadLettersRequest(group="shop-g", offsets=[offset])
        assert code(node, who, *by_name["ResendDeadLetters"], resend) == expected, (offset, who)
    with grpc.insecure_channel(node.node_json()["address"]) as channel:
        half = appended("taken", transaction={"producer_group": "shop-p"})
        begun = admin(channel).Append(half).position
    end = transaction_pb2.EndTransactionRequest(transaction_id=begun, producer_group="shop-p")
    for outcome, expected in ((1, "node.forbidden"), (2, "")):
        end.outcome = outcome  # type: ignore[assignment]  # Committed, rolled back.
        assert code(node, token, *by_name["EndTransaction"], end) == expected
    assert code(node, token, *by_name["EndTransaction"], end) == "", "the same answer again"
    other, end.producer_group = with_user(node, "others", "producer-consumer:oth-"), "oth-p"
    assert code(node, other, *by_name["EndTransaction"], end) == "node.unknown_transaction"


def test_single_messages_and_lists_show_what_their_user_may_see(node: SingleNode) -> None:
    for topic in ("tea-a", "coffee"):
        admin_call(node, "CreateTopic", admin_pb2.CreateTopicRequest(topic=topic))
    token = with_user(node, "tea", "producer-consumer:tea-")
    with grpc.insecure_channel(node.node_json()["address"]) as channel:

        def call(service: str, name: str, request: Any, kind: Any, token: str) -> Any:
            function = channel.unary_unary(f"/quorumlog.v1.{service}/{name}", None, kind.FromString)
            metadata = [("authorization", f"Bearer {token}")]
            return function(request.SerializeToString(), metadata=metadata, timeout=PATIENCE_S)

        def stored(topic: str) -> log_pb2.GetMessageRequest:
            request = appended(topic)
            receipt = call("LogService", "Append", request, log_pb2.AppendResponse, ADMIN_TOKEN)
            message_id = f"{receipt.store_host.hex()}{receipt.position:016X}".upper()
            return log_pb2.GetMessageRequest(message_id=message_id)

        own, other = stored("tea-a"), stored("coffee")
        found = call("LogService", "GetMessage", own, log_pb2.RecordsResponse, token)
        assert found.record_count == 1
        trace, cancel = lookup_pb2.TraceMessageRequest, delay_pb2.CancelDelayedRequest
        for service, name, kind, answer in (
            ("LogService", "GetMessage", log_pb2.GetMessageRequest, log_pb2.RecordsResponse),
            ("LookupService", "TraceMessage", trace, lookup_pb2.TraceMessageResponse),
            ("DelayService", "CancelDelayed", cancel, delay_pb2.CancelDelayedResponse),
        ):
            said = set()
            for message_id in (other.message_id.lower(), f"{other.message_id[:-16]}{1 << 40:016X}"):
                with pytest.raises(grpc.RpcError) as refused:
                    call(service, name, kind(message_id=message_id), answer, token)
                error = typed_error(refused.value)
                assert error.code == "node.message_not_found"
                said.add(str(error).replace(message_id, ""))
            assert len(said) == 1, "whether another user has it is not told"
        topics = call(
            "AdminService",
            "ListTopics",
            admin_pb2.ListTopicsRequest(with_system=True),
            admin_pb2.ListTopicsResponse,
            token,
        )
        assert [one.topic for one in topics.topics] == ["tea-a"]
        assert (topics.matched_count, topics.topic_count) == (1, 1)


def test_the_audit_has_who_did_what_and_is_read_by_who_may_look_at_users(node: SingleNode) -> None:
    by_name = {m.name: (s, m) for s, m in METHODS}
    tokens = {
        "root": ADMIN_TOKEN,
        "reader": with_user(node, "reads", "reader"),
        "operator": with_user(node, "operates", "operator"),
    }
    create = admin_pb2.CreateTopicRequest(topic="audited")
    assert code(node, tokens["reader"], *by_name["CreateTopic"], create) == "node.forbidden"
    audit = log_pb2.PullRequest(topic="rmq_sys_audit", max_count=2_048)
    commands = log_pb2.PullRequest(topic="rmq_sys_quorumlog")
    shown = [("authorization", f"Bearer {tokens['reader']}")]
    with grpc.insecure_channel(node.node_json()["address"]) as channel:
        pull = channel.unary_unary("/quorumlog.v1.LogService/Pull")
        with pytest.raises(grpc.RpcError, match="'reads' lacks Get on Cluster:users; no rule"):
            pull(audit.SerializeToString(), metadata=shown)
    for request in (audit, commands):
        for name, expected in {
            "root": "",
            "reader": "node.forbidden",
            "operator": "node.forbidden",
        }.items():
            assert code(node, tokens[name], *by_name["Pull"], request) == expected, name
    forged = users_pb2.HandAuditRequest(rows=[b"{}"])
    assert code(node, ADMIN_TOKEN, *by_name["HandAudit"], forged) == "node.unauthenticated"
    assert (
        code(node, ADMIN_TOKEN, *by_name["Append"], appended("rmq_sys_audit"))
        == "node.reserved_topic"
    )

    def found() -> list[tuple[str, str, str, str]]:
        with grpc.insecure_channel(node.node_json()["address"]) as channel:
            pull = channel.unary_unary(
                "/quorumlog.v1.LogService/Pull", None, log_pb2.PullResponse.FromString
            )
            metadata = [("authorization", f"Bearer {ADMIN_TOKEN}")]
            answer = pull(audit.SerializeToString(), metadata=metadata, timeout=PATIENCE_S)
        rows = [json.loads(message.body) for message in messages(answer.records)]
        return [(r["user"], r["call"], r["resource"], r["outcome"]) for r in rows]

    refused = ("reads", "AdminService/CreateTopic", "Topic:audited", "node.forbidden")
    wait_for("the refusal to be written", lambda: refused in found())
    assert (
        "admin",
        "UserService/PutUser",
        "Cluster:users reads roles=reader +token t",
        "ok",
    ) in found()


def test_what_a_node_shows_another_opens_nothing_to_who_overhears_it(node: SingleNode) -> None:
    secret = b"secret of the cluster"
    label = b"quorumlog client port of a node"
    bearer = "qln_" + hmac.digest(secret, label, "sha256").hex()
    port = node.node_json()["framed_address"].rpartition(":")[2]
    with FramedClient(("127.0.0.1", int(port))) as stranger:
        shown = users_pb2.AuthenticateRequest(token=bearer).SerializeToString()
        assert stranger.call(AUTHENTICATE, 1, shown).error.code == "node.unauthenticated"
        append = log_pb2.AppendRequest(record_count=1).SerializeToString()
        forged = stranger.call(APPEND, 2, append, appended("hers").records)
        assert forged.error.code == "node.unauthenticated"
    for page in ("/metrics", "/status", "/events"):
        assert answer(node, page, f"Bearer {bearer}")[0] == 401
    proofs = NodeProofs(Settings.model_fields["cluster_id"].default, 2, unix_ms)
    proofs.secrets = [secret]
    (service, method), kind = BY_NAME["HandAudit"], users_pb2.HandAuditRequest
    handed, other = kind(rows=[b"{}"]), kind(rows=[b"no JSON"])
    overheard = proofs.signed(b"", "UserService/HandAudit", signed_form(handed))
    for request, expected in (
        (other, "node.unauthenticated"),  # Signed are the other rows.
        (handed, "node.bad_request"),  # A node, but none of the group, and these are no rows.
        (handed, "node.unauthenticated"),
    ):
        assert code(node, "", service, method, request, overheard) == expected
    fresh = proofs.signed(b"", "LogService/Pull", b"")
    assert code(node, "", *BY_NAME["Pull"], None, fresh) == "node.unauthenticated"
