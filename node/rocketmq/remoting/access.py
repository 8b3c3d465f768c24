"""Who sends a command: access keys of the remoting protocol.

Owns the check of a signature. It covers the values of all ext fields, one behind the other in the
order of their names, and the body, so a command that is forwarded is checked again as the client
sent it. It covers neither the code nor the names, nor where a value ends, and no number shows that
a command came before: an eavesdropper can send what it overheard as another command, cut into other
fields. So networks that are not trusted need TLS, and administration is taken over TLS only.
Source: protocol section 12.1.

A connection comes from a node of the cluster, which alone may speak for clients, if that answered
the challenge that this process drew for it (`node.users.node_proofs`).
"""

import base64
import hmac
from typing import Final

from node.rocketmq.remoting.protocol.command import Command
from node.rocketmq.remoting.protocol.marks import ADDED
from node.users.guard import Caller, Guard

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
_UNSIGNED: Final = ADDED | {SIGNATURE, "__ZONE_NAME", "__ZONE_MODE"}
_UNIQUE: Final = "_UNIQUE_KEY_QUERY"
_UNIQUE_SIGNED_FROM: Final = 400
"""Version of the first clients that sign this field."""


def signer(guard: Guard, command: Command) -> Caller:
    """Return the caller whose access key signed a command."""
    try:
        given = base64.b64decode(command.ext.get(SIGNATURE, ""), validate=True)
    except ValueError:
        given = b""
    return guard.by_signature(
        command.ext.get(ACCESS_KEY, ""),
        lambda secret: hmac.compare_digest(given, signature(command, secret)),
    )


def unsigned(ext: dict[str, str]) -> dict[str, str]:
    """Return ext fields without a signature, of a command that is not what its client signed."""
    return {name: ext[name] for name in ext.keys() - {ACCESS_KEY, SIGNATURE}}


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
