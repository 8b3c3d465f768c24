"""Access keys of the remoting protocol: who may send a command.

Owns the check of a signature. It covers the values of all ext fields, one behind the other in the
order of their names, and the body, so a command that is forwarded is checked again as the client
sent it. It covers neither the code nor the names, nor where a value ends, and no number shows that
a command came before: an eavesdropper can send what it overheard as another command, cut into other
fields. So networks that are not trusted need TLS, and administration is taken over TLS only.
Source: protocol section 12.1.
"""

import base64
import binascii
import hmac
from collections.abc import Mapping
from typing import Final

from node.rocketmq.remoting.protocol.answers import RefusedError
from node.rocketmq.remoting.protocol.codes import ResponseCode
from node.rocketmq.remoting.protocol.command import Command
from node.rocketmq.remoting.protocol.marks import ADDED

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
_UNSIGNED: Final = ADDED | {SIGNATURE, "__ZONE_NAME", "__ZONE_MODE"}
_UNIQUE: Final = "_UNIQUE_KEY_QUERY"
_UNIQUE_SIGNED_FROM: Final = 400
"""Version of the first clients that sign this field."""


class Signatures:
    """Checks commands against the access keys of a node. Without keys everybody may call."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self.keys: Final = {name: secret.encode() for name, secret in keys.items()}

    def check(self, command: Command) -> None:
        """Raise RefusedError unless a known key signed a command."""
        if not self.keys:
            return
        ext = command.ext
        secret = self.keys.get(ext.get(ACCESS_KEY, ""))
        if secret is None:
            text = "the access key is missing or unknown; use one of rocketmq_keys_file"
            raise RefusedError(ResponseCode.NO_PERMISSION, text)
        try:
            given = base64.b64decode(ext.get(SIGNATURE, ""), validate=True)
        except (binascii.Error, ValueError):
            given = b""
        if not hmac.compare_digest(given, signature(command, secret)):
            text = "the signature does not fit the command; is the secret key the right one?"
            raise RefusedError(ResponseCode.NO_PERMISSION, text)


def signature(command: Command, secret: bytes) -> bytes:
    """Return the signature that a client with a secret gives a command."""
    left_out = _UNSIGNED
    if command.version < _UNIQUE_SIGNED_FROM:
        left_out = left_out | {_UNIQUE}
    # Java orders names by their UTF-16 units.
    names = sorted(command.ext.keys() - left_out, key=lambda name: name.encode("utf-16-be"))
    signed = hmac.new(secret, digestmod="sha1")
    for name in names:
        signed.update(command.ext[name].encode("utf-8", "replace"))
    signed.update(command.body)
    return signed.digest()
