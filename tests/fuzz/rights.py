"""Requests of callers who must gain nothing, through the doors of one node with users.

Owns what the node holds of others, each name and body of it with a marker, how a request is drawn
that aims at it, and what an answer must not have. Callers show no credential, a wrong one, or that
of a user whose names begin with `own-`.
"""

import asyncio
import base64
import hmac
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from node.framed.frames import FrameFault
from node.framed.header import CANCEL, ERROR, HEADER, KIND, MORE, Method
from node.rocketmq.remoting.access import signature
from node.rocketmq.remoting.protocol.command import Command, decode
from node.services.methods import SERVICES
from node.users.credentials import digest_of
from quorumlog.cluster.channels import stub
from quorumlog.cluster.framed.frames import FrameReader
from quorumlog.pb import (
    admin_pb2,
    common_pb2,
    consumer_pb2,
    delay_pb2,
    log_pb2,
    pop_pb2,
    retry_pb2,
    rocketmq_pb2,
    transaction_pb2,
    users_pb2,
)
from store.record.message import encode_message
from tests import strange_requests
from tests.fuzz.structure import message, mutated_message
from tests.node.users_files import ADMIN_TOKEN

_ANSWER_S: Final = 0.15
"""Calls that wait or stream are left then: what they have answered counts."""
_FILES: Final = (
    *(admin_pb2, consumer_pb2, delay_pb2, log_pb2, pop_pb2, retry_pb2),
    *(transaction_pb2, users_pb2),
)
_MARKER: Final = re.compile(rb"zq7[a-z0-9]*")
_TOKENS: Final = ("", "qlt_wrong", "qlt_own")
_OWN: Final = "qlt_own"
_SECRET: Final = b"secret of own"
_OPEN: Final = {"Route", "TopicRoute", "QueryRoute", "EndTransaction", "NotifyClientTermination"}
"""Calls that say to any user where a topic is whose name is known, how a transaction ended of which
the id is known, since its group is forgotten then; or that take no notice of the group."""
_FOR_ALL: Final = {"Route", "Report", "105", "-20812"}
"""Calls that need no user: the nodes, what nodes without a secret report, classic routes, and the
random challenge that a node has to answer with the secret of the cluster."""
_ROLES: Final = {
    **dict.fromkeys(("topic", "topics"), "topic"),
    **dict.fromkeys(("group", "producer_group", "name", "producer_name"), "group"),
    **dict.fromkeys(("handle", "handles", "receipt_handle"), "handle"),
    **dict.fromkeys(("offset", "offsets", "next_position"), "number"),
    **dict.fromkeys(("max_count", "wait_ms", "timeout_ms", "invisible_ms"), "small"),
    "queue_id": "queue",
    "outcome": "outcome",
    "message_id": "message_id",
    "transaction_id": "transaction_id",
    "cluster_id": "none",
    "records": "records",
    "key": "key",
    "client_id": "client",
    "user": "user",
}
"""What a field of a request names."""


def admin(channel: grpc.Channel) -> Any:
    """Return all calls of an administrator."""
    files = (file.DESCRIPTOR for file in _FILES)
    return stub(channel, *files, metadata=(("authorization", f"Bearer {ADMIN_TOKEN}"),))


@dataclass
class World:
    """What the node holds, by what a field names: of the user, and of others."""

    own: dict[str, list[Any]] = field(default_factory=dict)
    theirs: dict[str, list[Any]] = field(default_factory=dict)

    def draw(self, random: Random, role: str, share: float, used: set[Any]) -> Any:
        """Return a value for a field; one of others is added to `used`."""
        if role == "records":
            return self.records(random, share, used)
        of_own, of_theirs = self.own.get(role, [""]), self.theirs.get(role, [""])
        if random.random() < share:
            return random.choice(of_own)
        value = random.choice(of_theirs)
        if role in ("topic", "group", "message_id", "transaction_id"):
            used.add(value)
        return value

    def records(self, random: Random, share: float, used: set[Any]) -> bytes:
        """Return one or two records that claim to be what others have."""
        theirs, made = self.theirs, b""
        claims = {
            "REAL_TOPIC": theirs["topic"],
            "REAL_QID": ["0"],
            "RETRY_TOPIC": theirs["topic"],
            "ORIGIN_MESSAGE_ID": theirs["message_id"],
            "PGROUP": theirs["group"],
            "DELAY": ["1", "2"],
            "TIMER_DELAY_MS": ["1", "900"],
            "TRAN_MSG": ["true"],
            "KEYS": ["k"],
            "UNIQ_KEY": ["u"],
            "CLUSTER": ["c"],
            "REPLY_TO_CLIENT": ["zq7c"],
        }
        for _ in range(random.choice((1, 1, 2))):
            chosen = random.sample(sorted(claims), random.choice((0, 1, 3)))
            made += encode_message(
                self.draw(random, "topic", share, used),
                0,
                b"mine",
                {name: random.choice(claims[name]) for name in chosen},
                sys_flag=random.choice((0, 0, 0, 0, 4, 8, 12)),
                prepared_transaction_position=random.choice((0, *theirs["transaction_id"])),
                reconsume_times=random.choice((0, 9)),
            )
        return made

    def request(self, random: Random, kind: type[Message]) -> tuple[Any, set[Any]]:
        """Return a request, and what of others it names: there, or in its parts alone."""
        made, used = message(random, kind), set[Any]()
        shares = random.choice(((1.0, 1.0), (1.0, 1.0), (1.0, 0.0), (0.5, 0.5), (0.0, 0.0)))
        self._aim(random, made, shares, used)
        return made, used

    def _aim(self, random: Random, made: Any, shares: tuple[float, float], used: set[Any]) -> None:
        share, inner_share = shares
        fields = made.DESCRIPTOR.fields_by_name
        for one in fields.values():
            role = _ROLES.get(one.name)
            is_message = one.type == FieldDescriptor.TYPE_MESSAGE
            if role is None and random.random() < (0.4 if is_message else 0.85):
                made.ClearField(one.name)
            elif is_message:
                if one.message_type.GetOptions().map_entry:
                    continue
                inner = getattr(made, one.name)
                # A group may name queues of others: it has nothing of them.
                is_harmless = "group" in fields and one.name in ("queues", "wanted")
                named = set[Any]() if is_harmless else used
                if one.is_repeated and random.random() < 0.8:
                    del inner[1:]
                    inner or inner.add()
                if one.name == "topic":
                    inner.name = self.draw(random, "topic", share, named)
                    continue
                for part in inner if one.is_repeated else [inner] * made.HasField(one.name):
                    self._aim(random, part, (inner_share, inner_share), named)
            elif role is not None and random.random() < 0.95:
                count = random.choice((1, 1, 2)) if one.is_repeated else 1
                of = inner_share if role == "records" else share
                values = [self.draw(random, role, of, used) for _ in range(count)]
                with suppress(TypeError, ValueError):
                    if one.is_repeated:
                        getattr(made, one.name)[:] = values
                    else:
                        setattr(made, one.name, values[0])
        if "record_count" in fields:
            made.record_count = made.records.count(b"mine") or 1


def fill(rpc: Any) -> World:
    """Put into a node what others have, and a little of the user."""
    token = users_pb2.Credential(id="t", token_sha256=digest_of(_OWN))
    key = users_pb2.Credential(id="own")
    roles = users_pb2.RoleNames(roles=["producer-consumer:own-"])
    rpc.PutUser(
        users_pb2.PutUserRequest(
            name="own", roles=roles, add_credentials=[token, key], secrets=[_SECRET]
        )
    )
    rpc.PutUser(users_pb2.PutUserRequest(name="zq7user", roles=roles))
    world = World()
    for mark, side in (("own-", world.own), ("zq7", world.theirs)):
        topics, groups = [f"{mark}t1", f"{mark}t2"], [f"{mark}g1", f"{mark}g2"]
        retries = [f"%RETRY%{groups[0]}", f"%DLQ%{groups[0]}"]
        side |= {"topic": [*topics * 3, *retries], "group": groups, "message_id": []}
        for topic in topics:
            rpc.CreateTopic(admin_pb2.CreateTopicRequest(topic=topic, queue_count=1))

        def append(
            properties: dict[str, str], mark: str = mark, side: Any = side, **how: Any
        ) -> Any:
            body = f"{mark}body".encode() * 3
            record = encode_message(f"{mark}t1", 0, body, {"KEYS": f"{mark}key", **properties})
            receipt = rpc.Append(log_pb2.AppendRequest(records=record, record_count=1, **how))
            message_id = f"{receipt.store_host.hex()}{receipt.position:016X}".upper()
            side["message_id"].append(message_id)
            return receipt

        for _ in range(6):
            append({f"{mark}name": f"{mark}value"})
        append({"DELAY": "18"}, has_delayed=True)
        half = transaction_pb2.HalfMessages(producer_group=groups[0], check_after_ms=600_000)
        side["transaction_id"] = [append({}, transaction=half).position for _ in range(2)]
        rpc.EndTransaction(
            transaction_pb2.EndTransactionRequest(
                transaction_id=side["transaction_id"][1],
                producer_group=groups[0],
                outcome="TRANSACTION_OUTCOME_COMMITTED",
            )
        )
        moved = [
            retry_pb2.RetryMessage(topic=topics[0], offset=at, is_dead=at < 2, delay_ms=3_600_000)
            for at in range(3)
        ]
        rpc.RetryLater(retry_pb2.RetryLaterRequest(group=groups[0], messages=moved))
        offset = consumer_pb2.GroupOffset(topic=topics[0], queue_id=0, offset=4)
        rpc.CommitOffsets(consumer_pb2.CommitOffsetsRequest(group=groups[0], offsets=[offset]))
        rpc.Heartbeat(
            consumer_pb2.HeartbeatRequest(
                group=groups[0], client_id=f"{mark}client", topics=topics, is_new=True
            )
        )
        taken = rpc.Receive(
            pop_pb2.ReceiveRequest(
                group=groups[1], topic=topics[0], queue_id=-1, invisible_ms=3_600_000
            )
        )
        side |= {"handle": [one.handle for one in taken.deliveries], "key": [f"{mark}key", "k"]}
        side |= {"number": [0, 0, 1, 1, 2, 3, -1, *side["transaction_id"]], "none": [""]}
        side |= {"queue": [0, 0, 0, 0, 0, -1], "outcome": [1, 2], "small": [0, 0, 1, 5, -1]}
        side |= {"client": [f"{mark}client"], "user": ["own", "admin"]}
        rpc.SetGroupSettings(
            retry_pb2.SetGroupSettingsRequest(
                group=groups[0], settings=common_pb2.GroupSettings(retry_count_max=7)
            )
        )
    world.theirs["topic"] += ["rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX", "rmq_sys_undeliverable"]
    return world


def state_of_others(rpc: Any, world: World) -> dict[str, Any]:
    """Return all of the state that no caller may change, as an administrator sees it."""
    found: dict[str, Any] = {
        "users": rpc.ListUsers(users_pb2.ListUsersRequest()),
        "transactions": [
            rpc.DescribeTransaction(transaction_pb2.DescribeTransactionRequest(transaction_id=one))
            for one in world.theirs["transaction_id"]
        ],
    }
    for one in rpc.ListTopics(admin_pb2.ListTopicsRequest(with_system=True)).topics:
        name = one.topic
        if "own-" not in name and not name.startswith(("rmq_sys", "RMQ_SYS", "SCHEDULE")):
            queues = rpc.DescribeTopic(admin_pb2.DescribeTopicRequest(topic=name))
            pulled = rpc.Pull(log_pb2.PullRequest(topic=name, offset=0))
            found[name] = (one, queues, pulled.records)
    for group in rpc.ListGroups(admin_pb2.ListGroupsRequest()).groups:
        if not group.group.startswith("own-"):
            name = group.group
            offsets = rpc.FetchOffsets(consumer_pb2.FetchOffsetsRequest(group=name))
            pops = rpc.DescribePop(pop_pb2.DescribePopRequest(group=name))
            letters = rpc.ListDeadLetters(retry_pb2.ListDeadLettersRequest(group=name)).records
            found[f"group {name}"] = (offsets, pops.queues, letters)
    return {name: str(value) for name, value in found.items()}


@dataclass
class Asked:
    """One request, and what came back."""

    door: str
    method: str
    token: str
    sent: bytes
    named: set[Any] | None
    """What it names of others; None: it was mutated, so it may name anything."""
    answers: list[bytes] = field(default_factory=list)
    is_answered: bool = False
    """With something else than an error."""


def check(asked: Asked, kept: set[bytes]) -> None:
    """Raise AssertionError if the caller gained something. `kept` are markers that callers have
    written themselves so far."""
    text = f"{asked.door} {asked.method} of {asked.token or 'nobody'}: {asked.sent!r}"
    sent = set(_MARKER.findall(asked.sent.lower()))
    for answer in asked.answers:
        found = set(_MARKER.findall(answer.lower()))
        allowed = sent | kept
        gained = [word for word in found if not any(word in known for known in allowed)]
        assert not gained, f"{text} reads {gained}: {answer!r}"
    if asked.is_answered:
        assert asked.token == _OWN or asked.method in _FOR_ALL, f"{text} is answered"
        if asked.named and asked.method not in _OPEN:
            assert not asked.named, f"{text} names {asked.named} and is answered"
        kept |= sent


class GrpcDoor:
    """The services of `quorumlog.v1`, or those of RocketMQ, over gRPC."""

    def __init__(self, channel: Any, world: World, name: str = "grpc") -> None:
        self.name, self._channel, self._world = name, channel, world
        self._services = list(SERVICES)
        if name == "rocketmq":
            self._services = list(rocketmq_pb2.DESCRIPTOR.services_by_name.values())

    async def ask(self, random: Random) -> Asked:
        """Make one call."""
        method = random.choice(random.choice(self._services).methods)
        kind = GetMessageClass(method.input_type)
        request, names = self._world.request(random, kind)
        named: set[Any] | None = names
        data, odd = request.SerializeToString(), random.random()
        if odd < 0.15:
            data, named = mutated_message(kind)(random, data), None
        elif odd < 0.2:
            at = random.randrange(len(data) + 1)
            data, named = data[:at] + random.randbytes(2) + data[at + 1 :], None
        token = random.choice(_TOKENS)
        asked = Asked(self.name, method.name, token, data, named)
        has_stream = method.client_streaming, method.server_streaming
        shape = "_".join("stream" if one else "unary" for one in has_stream)
        service = method.containing_service.full_name.replace(
            "quorumlog.rocketmq", "apache.rocketmq"
        )
        path = f"/{service}/{method.name}"
        call = getattr(self._channel, shape)(path, None, None)
        given = iter([data]) if method.client_streaming else data
        answer = call(given, metadata=self._headers(random, token), timeout=_ANSWER_S)
        try:
            if method.server_streaming:
                async for part in answer:
                    asked.answers.append(part)
            else:
                asked.answers.append(await answer)
        except grpc.aio.AioRpcError as error:
            asked.answers.append(repr(error).encode())
            asked.answers += [value for _, value in error.trailing_metadata() or ()]
        kind = GetMessageClass(method.output_type)
        asked.is_answered = any(self._is_answer(kind, part) for part in asked.answers[:1])
        return asked

    def _is_answer(self, kind: Any, part: Any) -> bool:
        if part.startswith(b"<AioRpcError"):
            return False
        parsed = kind.FromString(part)
        if self.name == "rocketmq":
            return bool(parsed.status.code == rocketmq_pb2.Code.OK)
        return not getattr(parsed, "error", None) or not parsed.error.code

    def _rocketmq_headers(self, random: Random, token: str) -> list[tuple[str, str]]:
        time, secret = "20260101T000000Z", _SECRET if token == _OWN else b"wrong"
        made = hmac.digest(secret, time.encode(), "sha1").hex()
        key = "own" if token == _OWN or random.random() < 0.5 else "wrong"
        form = f"MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time, Signature={made}"
        headers = [("x-mq-client-id", random.choice(("own-client", "zq7client")))]
        headers += [("x-mq-date-time", time), ("authorization", form)] if token else []
        lies = (
            ("x-quorumlog-node", f"1.{random.randbytes(8).hex()}.1.1.{bytes(32).hex()}"),
            ("x-quorumlog-hops", random.choice("019")),
            ("x-quorumlog-client", "10.0.0.1:9"),
        )
        return headers + random.sample(lies, random.choice((0, 1, 3)))

    def _headers(self, random: Random, token: str) -> list[tuple[str, str]]:
        if self.name == "rocketmq":
            return self._rocketmq_headers(random, token)
        forms = ("Bearer {}", "bearer  {}", "Bearer {}")
        headers = [("authorization", random.choice(forms).format(token))] if token else []
        if not token and random.random() < 0.3:
            headers = [
                ("authorization", random.choice(("Basic eDp4", "Bearer", "Bearer  ", "qln_")))
            ]
        lies = (
            ("x-quorumlog-node", f"1.{random.randbytes(8).hex()}.1.1.{bytes(32).hex()}"),
            ("x-quorumlog-hops", random.choice("019")),
            ("x-quorumlog-client", "10.0.0.1:9"),
            ("x-quorumlog-user", "admin"),
            ("x-mq-client-id", random.choice(("own-client", "zq7client"))),
            ("x-mq-user", "admin"),
            ("x-forwarded-for", "127.0.0.1"),
        )
        return headers + random.sample(lies, random.choice((0, 1, 3)))


class FrameDoor:
    """Our own frames: one connection for each request of a new kind of caller."""

    name = "frames"

    def __init__(self, address: str, world: World) -> None:
        self._port, self._world = int(address.rpartition(":")[2]), world
        self._open: dict[str, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self._opaque = 0

    async def ask(self, random: Random) -> Asked:
        """Make one call over the connection of its caller."""
        method, token = random.choice(list(Method)), random.choice(_TOKENS)
        kind = _FRAMED[method]
        request, names = self._world.request(random, kind)
        named: set[Any] | None = names
        body = b""
        if method is Method.APPEND:
            body = request.records
            request.ClearField("records")
        elif method is Method.AUTHENTICATE:
            request.token = random.choice(("", "qlt_wrong", "admin", "qln_" + "0" * 64))
        data = request.SerializeToString()
        if random.random() < 0.2:
            data, named = mutated_message(kind)(random, data), None
        name = {"AUTHENTICATE": "Authenticate", "ROUTE": "Route"}.get(method.name, method.name)
        asked = Asked(self.name, name, token, data + body, named)
        for _, flags, answer, content in await self._answers(token, method, data, body, random):
            asked.answers.append(answer + content)
            asked.is_answered = asked.is_answered or not flags & ERROR
        return asked

    async def _answers(
        self, token: str, method: int, data: bytes, body: bytes, random: Random
    ) -> list[tuple[int, int, bytes, bytes]]:
        reader, writer = await self._connection(token)
        self._opaque += 1
        opaque, found = self._opaque, []
        flags = random.choice((0, 0, 0, 0, 0, 0, 0, 0, 8, 3))
        writer.write(_frame(method, flags, opaque, data, body))
        frames = FrameReader()
        is_over = flags == CANCEL and not data + body
        try:
            async with asyncio.timeout(_ANSWER_S):
                while not is_over:
                    piece = await reader.read(1 << 16)
                    if not piece:
                        raise ConnectionResetError
                    for number, got, which, answer, content in frames.frames(piece):
                        if which == opaque:
                            found.append((number, got, answer, content))
                            is_over = is_over or not got & MORE
        except (TimeoutError, OSError):
            self._leave(token)
        if method == Method.AUTHENTICATE:
            self._leave(token)
        return found

    async def _connection(self, token: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if token not in self._open:
            pair = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._open[token] = pair
            if token:
                shown = users_pb2.AuthenticateRequest(token=token).SerializeToString()
                writer.write(_frame(Method.AUTHENTICATE, 0, 0, shown, b""))
                frames = FrameReader()
                while not frames.frames(await reader.read(1 << 16)):
                    pass
        return self._open[token]

    def _leave(self, token: str) -> None:
        if token in self._open:
            self._open.pop(token)[1].close()

    def close(self) -> None:
        """Close all connections."""
        for token in list(self._open):
            self._leave(token)


class ClassicDoor:
    """RocketMQ's remoting protocol: the requests of strangers, that name what others have."""

    name = "classic"

    def __init__(self, address: str, world: World) -> None:
        self._port, self._world = int(address.rpartition(":")[2]), world

    async def ask(self, random: Random) -> Asked:
        """Send one command over a connection of its own."""
        drawn, token = strange_requests.draw(random), random.choice(_TOKENS)
        share, named = random.choice((1.0, 0.5, 0.0)), set[Any]()
        ext, body = dict(drawn.ext), drawn.body
        for word in (*strange_requests.TOPICS, *strange_requests.GROUPS):
            role = "topic" if word in strange_requests.TOPICS else "group"
            value = self._world.draw(random, role, share, named)
            ext = {name: text.replace(word, value) for name, text in ext.items()}
            body = body.replace(word.encode(), value.encode())
        for name, role in _EXT_ROLES.items():
            if name in ext and random.random() < 0.8:
                ext[name] = str(self._world.draw(random, role, share, named))
        if token:
            ext["AccessKey"] = "own" if token == _OWN or random.random() < 0.5 else "wrong"
            signed = Command(drawn.code, ext=ext, body=body, version=479)
            made = signature(signed, _SECRET if token == _OWN else b"wrong")
            ext["Signature"] = base64.b64encode(made).decode()
        frame = drawn._replace(ext=ext, body=body).frame(7)
        asked = Asked(self.name, str(drawn.code), token, frame, None)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(frame)
        with suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
            # Only a request has an answer.
            async with asyncio.timeout(_ANSWER_S if not drawn.flag else 0):
                size = int.from_bytes(await reader.readexactly(4), "big")
                answer = await reader.readexactly(size)
                asked.answers.append(answer)
                with suppress(FrameFault):
                    header_hi = 4 + int.from_bytes(answer[1:4], "big")
                    code = decode(answer[0], answer[4:header_hi], answer[header_hi:]).code
                    asked.is_answered = code == 0
        writer.close()
        return asked


class HttpDoor:
    """The pages of a node."""

    name = "http"

    def __init__(self, address: str, world: World) -> None:
        self._port, self._world = int(address.rpartition(":")[2]), world

    async def ask(self, random: Random) -> Asked:
        """Make one request over a connection of its own."""
        token, share = random.choice(_TOKENS), random.choice((1.0, 0.0))
        names = [self._world.draw(random, role, share, set()) for role in ("topic", "group")]
        path = random.choice(("/metrics", "/status", "/stacks", "/", "/x", "/events", "/history"))
        method = random.choice(("GET", "GET", "POST", "HEAD", "DELETE"))
        line = f"{method} {path}?topic={names[0]}&group={names[1]} HTTP/1.1\r\nhost: x\r\n"
        headers = f"authorization: Bearer {token}\r\n" if token else ""
        sent = f"{line}{headers}connection: close\r\n\r\n".encode()
        if random.random() < 0.2:
            at = random.randrange(len(sent))
            sent = sent[:at] + random.randbytes(3) + sent[at + 1 :]
        asked = Asked(self.name, path, token, sent, None)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(_ANSWER_S):
                writer.write(sent)
                asked.answers.append(await reader.read(1 << 20))
        writer.close()
        return asked


_EXT_ROLES: Final = {
    **dict.fromkeys(("msgId", "originMsgId"), "message_id"),
    **dict.fromkeys(("commitLogOffset", "tranStateTableOffset"), "transaction_id"),
    **dict.fromkeys(("queueId", "e"), "queue"),
    **dict.fromkeys(("offset", "queueOffset"), "number"),
}
_FRAMED: Final[dict[int, type[Message]]] = {
    Method.APPEND: log_pb2.AppendRequest,
    Method.PULL: log_pb2.PullRequest,
    Method.TAIL: log_pb2.TailRequest,
    Method.COMMIT_OFFSETS: consumer_pb2.CommitOffsetsRequest,
    Method.FETCH_OFFSETS: consumer_pb2.FetchOffsetsRequest,
    Method.ACK: pop_pb2.AckRequest,
    Method.HEARTBEAT: consumer_pb2.HeartbeatRequest,
    Method.ROUTE: log_pb2.RouteRequest,
    Method.RECEIVE: pop_pb2.ReceiveRequest,
    Method.AUTHENTICATE: users_pb2.AuthenticateRequest,
}


def _frame(method: int, flags: int, opaque: int, data: bytes, body: bytes) -> bytes:
    header = HEADER.pack(method, flags, 0, opaque, 0) + data
    prefix = (4 + len(header) + len(body)).to_bytes(4, "big")
    return prefix + (KIND << 24 | len(header)).to_bytes(4, "big") + header + body


async def fuzz(doors: Sequence[Any], random: Random, count: int) -> list[str]:
    """Make so many calls, at each door one at a time; return what each door let through first."""
    kept, findings = set[bytes](), list[str]()

    async def ask(door: Any, own: Random) -> None:
        for _ in range(count // len(doors)):
            try:
                check(await door.ask(own), kept)
            except AssertionError as error:  # A traceback would keep channels of a loop that ends.
                findings.append(str(error))
                return

    async with asyncio.TaskGroup() as group:
        for door in doors:
            group.create_task(ask(door, Random(random.getrandbits(64))))
    return findings
