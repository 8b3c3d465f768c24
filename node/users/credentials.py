"""Credentials: bearer tokens, access keys with their secrets, and names of client certificates.

Owns what is kept of each: of a token its digest, of an access key its secret under a key that the
log does not have, of a certificate the name that it must show. Must not know whose they are.
"""

import os
import re
from collections.abc import Mapping
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from node.errors.users import BadAccessError
from quorumlog.user_tokens import TOKEN_LENGTH_MAX, digest_of, new_token

__all__ = [
    "KEY_SIZE_BYTES", "SECRET_LENGTH_MAX", "TOKEN_LENGTH_MAX", "SecretBox",
    "check_certificate_name", "digest_of", "names_of_certificate", "new_token",
]  # fmt: skip

KEY_SIZE_BYTES: Final = 32
SECRET_LENGTH_MAX: Final = 255
_NONCE_SIZE_BYTES: Final = 12
_CERTIFICATE: Final = re.compile(r"(CN=|DNS:|URI:|EMAIL:)(?! )[^\x00-\x1f\x7f*]{1,255}(?<! )\Z")


def check_certificate_name(name: str) -> None:
    """Raise BadAccessError unless this is a name of a certificate as a credential has it."""
    if _CERTIFICATE.match(name) is None:
        why = (
            "a name of a certificate begins with where it stands there, and is compared as a "
            "whole, so it has no * and no space at its ends"
        )
        do = "use CN=NAME, DNS:NAME, URI:NAME or EMAIL:NAME"
        raise BadAccessError(f"{name[:80]!r} names no certificate", why, do)


def names_of_certificate(certificate: Mapping[str, Any]) -> list[str]:
    """Return the names in a verified certificate, as `ssl` shows it, as credentials have them."""
    subject = (pair for relative in certificate.get("subject", ()) for pair in relative)
    names = [f"CN={value}" for kind, value in subject if kind == "commonName"]
    kinds = {"DNS": "DNS:", "URI": "URI:", "email": "EMAIL:"}
    others = certificate.get("subjectAltName", ())
    return names + [kinds[kind] + value for kind, value in others if kind in kinds]


class SecretBox:
    """Seals the secrets of access keys. One key for all nodes of a cluster."""

    def __init__(self, key: bytes) -> None:
        """Raises ValueError for a key of another size."""
        if len(key) != KEY_SIZE_BYTES:
            raise ValueError(f"the key of users has {len(key)} bytes, {KEY_SIZE_BYTES} are needed")
        self._aead = AESGCM(key)

    def seal(self, access_key: str, secret: bytes) -> bytes:
        """Return a secret as it may be stored: it opens with this key for this access key only."""
        nonce = os.urandom(_NONCE_SIZE_BYTES)
        return nonce + self._aead.encrypt(nonce, secret, access_key.encode())

    def open(self, access_key: str, sealed: bytes) -> bytes | None:
        """Return the secret; None if it was sealed with another key, or for another access key."""
        nonce, sealed = sealed[:_NONCE_SIZE_BYTES], sealed[_NONCE_SIZE_BYTES:]
        try:
            return self._aead.decrypt(nonce, sealed, access_key.encode())
        except (InvalidTag, ValueError):
            return None
