"""Admission of clients: the signature of an access key.

Owns the check of the header `authorization` (protocol section 2.4). Without configured keys no
client needs one. The signed time is not compared with a clock: clients sign their local time.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Final

from node.rocketmq.protocol.statuses import CallRefusedError
from quorumlog.pb.rocketmq_pb2 import Code

_HEADER: Final = re.compile(
    r"MQv2-HMAC-SHA1 Credential=([^,]*), SignedHeaders=x-mq-date-time, Signature=([0-9A-Fa-f]*)\Z"
)


class Access:
    """The access keys and the check of a call's signature. One per gateway."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        """Take the secret of each access key; without any every client may call."""
        self._secrets: Final = dict(secrets)

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise CallRefusedError unless the caller holds a key, or none is demanded."""
        if not self._secrets:
            return
        match = _HEADER.match(headers.get("authorization", ""))
        if match is None:
            text = "the cluster demands an access key; configure one in the client"
            raise CallRefusedError(Code.UNAUTHORIZED, text)
        key, signature = match[1].split("/")[0], match[2].lower()
        secret = self._secrets.get(key, "")
        signed = headers.get("x-mq-date-time", "").encode()
        expected = hmac.new(secret.encode(), signed, hashlib.sha1).hexdigest()
        if not hmac.compare_digest(signature, expected) or not secret:
            text = f"access key {key[:64]!r} is unknown, or its secret is another one"
            raise CallRefusedError(Code.UNAUTHORIZED, text)
