"""Proof that a peer holds the cluster's secret: HMAC-SHA256 over named fields.

Owns how fields are joined, so that no two lists of fields have the same bytes. Must not know the
frames. The proof keeps strangers and replayed handshakes out; against an attacker who can change
bytes on the way, use TLS.
"""

import hashlib
import hmac
from collections.abc import Callable, Sequence

SECRET_SIZE_BYTES_MIN = 16
"""A shorter secret can be guessed; the configuration refuses it."""


def sign(secret: bytes, label: str, *fields: bytes | str | int) -> bytes:
    """Return the proof for these fields; empty without a secret.

    `label` names the kind of message, so that a proof for one is none for another.
    """
    if not secret:
        return b""
    mac = hmac.new(secret, digestmod=hashlib.sha256)
    for field in (label, *fields):
        data = field if isinstance(field, bytes) else str(field).encode()
        mac.update(len(data).to_bytes(4, "big"))
        mac.update(data)
    return mac.digest()


def is_proof(proof: bytes, secrets: Sequence[bytes], sign_with: Callable[[bytes], bytes]) -> bool:
    """Whether a proof was made with one of the secrets, as `sign_with` makes it; all are tried."""
    return any(is_same(proof, sign_with(secret)) for secret in secrets)


def is_same(proof: bytes, expected: bytes) -> bool:
    """Whether two proofs are equal, compared in constant time. Two empty ones are equal: neither
    side has a secret."""
    return hmac.compare_digest(proof, expected)
