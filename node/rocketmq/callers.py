"""The caller of a request, its user, who pays for it, and the deadline of its answer.

Owns the metadata of a call; must not know what it asks for. Of the headers only the client's id is
required (protocol section 2.3), and of users with access keys `authorization` (2.4). The signed
time is not compared with a clock: clients sign their local time.
"""

import asyncio
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from node.rocketmq.protocol.statuses import CallRefusedError
from node.runtime.accounts import caller, set_caller
from node.services.bounds.connection_cut import address_of
from node.services.calls import ServicerContext
from node.services.door import AUTHORIZATION, certificate_names
from node.users import guard
from node.users.node_proofs import HEADER, BadProofError, NodeProofs
from quorumlog.pb.rocketmq_pb2 import Code

SERVICE: Final = "apache.rocketmq.v2.MessagingService"
CALL_S_MAX: Final = 60.0
"""Limit of a call's time, also under a longer deadline: some deadlines are years away."""
HOPS_HEADER: Final = "x-quorumlog-hops"
CLIENT_HEADER: Final = "x-quorumlog-client"
"""The client of a forwarded call, as host:port, which pays for it."""
USER_HEADER: Final = "x-quorumlog-user"
"""The user of the client of a forwarded call that has no header `authorization` of its own."""
_CLIENT_ID: Final = "x-mq-client-id"
_CLIENT_ID_LENGTH_MAX: Final = 255
_HEADER: Final = re.compile(
    r"MQv2-HMAC-SHA1 Credential=([^,]*), SignedHeaders=x-mq-date-time, Signature=([0-9A-Fa-f]*)\Z"
)
_REMOTE_LENGTH_MAX: Final = 64
"""Of host:port."""


class Caller(NamedTuple):
    """One call of a client, as it came, and its caller."""

    method: str
    data: bytes
    headers: Mapping[str, str]
    hop_count: int
    deadline_s: float
    """Time of the loop's clock after which an answer is of no use any more."""
    remote: str
    """host:port of the client, or of a node without a proof that forwarded its call."""
    client_id: str
    user: guard.Caller | None = None
    """None: users are off."""


def caller_of(
    method: str,
    data: bytes,
    context: ServicerContext,
    proofs: NodeProofs,
    users: guard.Guard | None = None,
) -> Caller:
    """Read the metadata of a call. Raises CallRefusedError without a client id.

    A node that `proofs` knows speaks for a client: the rest of the task runs in the client's
    account. `users` knows who calls; None: users are off.
    """
    metadata = context.invocation_metadata() or ()
    headers = {name: value for name, value in metadata if isinstance(value, str)}
    client_id = headers.get(_CLIENT_ID, "")
    if not 1 <= len(client_id) <= _CLIENT_ID_LENGTH_MAX:
        text = f"header {_CLIENT_ID} must have 1 to {_CLIENT_ID_LENGTH_MAX} characters"
        raise CallRefusedError(Code.CLIENT_ID_REQUIRED, text)
    hops = headers.get(HOPS_HEADER, "0")
    remaining_s = context.time_remaining()
    left_s = CALL_S_MAX if remaining_s is None else min(remaining_s, CALL_S_MAX)
    deadline_s = asyncio.get_running_loop().time() + left_s
    hop_count = int(hops) if hops.isascii() and hops.isdecimal() and len(hops) == 1 else 0
    remote = headers.get(CLIENT_HEADER, "")[:_REMOTE_LENGTH_MAX]
    unproven: BadProofError | None = None
    is_forwarded = HEADER in headers
    if is_forwarded:
        try:
            proofs.signer(f"{SERVICE}/{method}", data, headers)
        except BadProofError as error:
            is_forwarded, unproven = False, error
    if is_forwarded:
        account = caller()
        if account is not None:
            set_caller(account.accounts.of_remote(remote.rpartition(":")[0], remote))
    else:
        peer = context.peer()
        address = address_of(peer)  # None: not of TCP.
        remote = peer if address is None else f"{address[0]}:{address[1]}"
    user = None
    if users is not None:
        if unproven is not None:  # Its certificate would be that of a node.
            user = users.unproven(unproven)
        elif is_forwarded and not headers.get(AUTHORIZATION):
            user = users.by_name(headers.get(USER_HEADER, ""))
        else:
            user = user_of(users, headers, certificate_names(context.auth_context()))
    return Caller(method, data, headers, hop_count, deadline_s, remote, client_id, user)


def user_of(
    users: guard.Guard, headers: Mapping[str, str], certificate: Sequence[str] = ()
) -> guard.Caller:
    """Return the caller that signed with an access key, or shows a token, or else a client
    certificate with these names."""
    authorization = headers.get(AUTHORIZATION, "")
    match = _HEADER.match(authorization)
    if match is not None:
        key, given = match[1].split("/")[0], match[2].lower()
        signed = headers.get("x-mq-date-time", "").encode()
        return users.by_signature(
            key,
            lambda secret: hmac.compare_digest(
                given, hmac.new(secret, signed, hashlib.sha1).hexdigest()
            ),
        )
    if authorization or not certificate:
        return users.by_header(authorization)
    return users.by_certificate(certificate)
