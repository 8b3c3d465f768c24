"""Users of the tests of RocketMQ's protocols: their access keys, and requests that they signed."""

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Mapping

from google.protobuf.message import Message

from node.rocketmq.callers import SERVICE
from node.rocketmq.remoting.access import signature
from node.rocketmq.remoting.protocol.command import Command
from node.runtime.clock import unix_ms
from node.users.credentials import SecretBox
from node.users.guard import Guard
from node.users.node_proofs import NodeProofs
from node.users.rules import Role
from node.users.users import Credential, Rates, User, Users

KEY, SECRET = "rocketmq2", "12345678"
"""As the Java client signed with them."""
TOKEN = bytes(range(16))
"""Of every process that calls `proofs_of`."""
TIME = "20261122T070000Z"


def guard_of(roles: Mapping[str, tuple[str, ...]], own: Mapping[str, Role] | None = None) -> Guard:
    """Return a guard whose users have an access key of their name, and the roles."""
    guard = Guard("on", lambda: 1, SecretBox(bytes(32)))
    allow(guard, roles, own)
    return guard


def allow(
    guard: Guard, roles: Mapping[str, tuple[str, ...]], own: Mapping[str, Role] | None = None
) -> None:
    """Have a guard know these users, and no others."""
    assert guard.box is not None
    users = {}
    for name, some in roles.items():
        sealed = guard.users.by_key.get(name)
        secret = guard.box.seal(name, SECRET.encode()) if sealed is None else b""
        key = Credential(sealed_secret=secret) if sealed is None else sealed.credential
        users[name] = User(name, some, False, {name: key}, Rates(), 1)
    guard.look(Users(users, own or {}))


def proofs_of(token: bytes = TOKEN) -> NodeProofs:
    """Return the proofs of a node, whose peers have this token."""
    proofs = NodeProofs("c", 1, unix_ms, TOKEN)
    proofs.token_of = lambda _node: token
    return proofs


def forwarded(
    method: str, request: Message, *headers: tuple[str, str], token: bytes = TOKEN
) -> tuple[tuple[str, str], ...]:
    """Return the headers with which another node forwards a call."""
    body = request.SerializeToString()
    return proofs_of().signed(token, f"{SERVICE}/{method}", body, headers)


def signed(name: str, ext: dict[str, str] | None = None, body: bytes = b"") -> dict[str, str]:
    """Return the ext fields of a command that a user signed."""
    fields = (ext or {}) | {"AccessKey": name}
    made = signature(Command(0, ext=fields, body=body, version=479), SECRET.encode())
    return fields | {"Signature": b64encode(made).decode()}


def headers(
    key: str, secret: str = SECRET, *, upper: bool = False, time: str = TIME
) -> dict[str, str]:
    """Return the headers of a gRPC call that was signed at `TIME`."""
    made = hmac.new(secret.encode(), TIME.encode(), hashlib.sha1).hexdigest()
    made = made.upper() if upper else made
    value = f"MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time, Signature={made}"
    return {"authorization": value, "x-mq-date-time": time}
