"""The proof that a report about a broker comes from a node that holds the cluster's secret.

Owns the signed fields, the life of a challenge, and the rule that each proof is accepted once. A
challenge is the time of the process that made it, signed with a random key of that process: so a
copy of a report is worthless at another process, after a restart and after half a minute, and
before that as a proof that was accepted already. Must not know the content of a report.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final

from node.errors.common import BusyError
from node.errors.nameserver import UnprovenReportError
from node.peers.security.proof import is_proof, is_same, sign
from quorumlog.pb import nameserver_pb2 as pb

CHALLENGE_AGE_MS_MAX: Final = 30_000
"""Life of a challenge. Nodes ask every 2 s and answer the newest one, so a node may pause so long.
"""
PROOF_COUNT_MAX: Final = 32_768
"""Accepted proofs whose challenge is still good: 64 groups of 16 brokers, a heartbeat a second
each. Only a holder of the secret can fill the table."""
NONCE_SIZE_BYTES: Final = 16
_LABEL: Final = "nameserver-report"
_TIME_SIZE_BYTES: Final = 8
_KEY_SIZE_BYTES: Final = 32


class Prover:
    """Signs the reports of a node."""

    def __init__(self, secret: bytes, cluster_id: str) -> None:
        self.secret, self._cluster_id = secret, cluster_id

    def seal(self, request: pb.ReportRequest, challenge: bytes) -> None:
        """Add the proof that answers a challenge."""
        request.challenge, request.nonce = challenge, secrets.token_bytes(NONCE_SIZE_BYTES)
        request.proof = _proof(self.secret, self._cluster_id, request)


class Challenges:
    """Makes the challenges of a process and checks proofs. All on one thread."""

    def __init__(
        self,
        secret: bytes,
        cluster_id: str,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        assert secret, "without a secret there is nothing to prove"
        self.secrets: Sequence[bytes] = (secret,)
        """Each of them proves a report."""
        self._cluster_id, self._monotonic_s = cluster_id, monotonic_s
        self._key = secrets.token_bytes(_KEY_SIZE_BYTES)
        self._taken: dict[bytes, int] = {}
        """Accepted proofs, in order of arrival, and the times of their challenges."""

    def current(self) -> bytes:
        """Return a challenge that is good from now on."""
        return self._made(self._now_ms())

    def check(self, request: pb.ReportRequest) -> None:
        """Accept the proof of a request, once. Raises UnprovenReportError, BusyError."""
        if not request.proof:
            raise UnprovenReportError("carries no proof of the cluster's secret")
        if not is_proof(
            request.proof, self.secrets, lambda secret: _proof(secret, self._cluster_id, request)
        ):
            raise UnprovenReportError("is signed with another secret, or for another cluster")
        made_ms = int.from_bytes(request.challenge[:_TIME_SIZE_BYTES], "big")
        if not is_same(request.challenge, self._made(made_ms)):
            raise UnprovenReportError("answers no challenge of this process")
        now_ms = self._now_ms()
        if now_ms - made_ms > CHALLENGE_AGE_MS_MAX:
            raise UnprovenReportError(f"answers a challenge of {now_ms - made_ms} ms ago")
        self._take(request.proof, made_ms, now_ms)

    def _take(self, proof: bytes, made_ms: int, now_ms: int) -> None:
        if proof in self._taken:
            raise UnprovenReportError("is a copy of one that was taken before")
        if len(self._taken) >= PROOF_COUNT_MAX:
            oldest_ms = now_ms - CHALLENGE_AGE_MS_MAX
            self._taken = {key: at for key, at in self._taken.items() if at >= oldest_ms}
        if len(self._taken) >= PROOF_COUNT_MAX:
            raise BusyError("reports to the name server", len(self._taken), PROOF_COUNT_MAX)
        self._taken[proof] = made_ms

    def _now_ms(self) -> int:
        return int(self._monotonic_s() * 1000)

    def _made(self, at_ms: int) -> bytes:
        at = at_ms.to_bytes(_TIME_SIZE_BYTES, "big")
        return at + hmac.digest(self._key, at, hashlib.sha256)


def _proof(secret: bytes, cluster_id: str, request: pb.ReportRequest) -> bytes:
    return sign(
        secret,
        _LABEL,
        cluster_id,
        request.group,
        request.challenge,
        request.nonce,
        request.command,
    )
