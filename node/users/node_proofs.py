"""What nodes show to the ports for clients of each other: signatures, never a secret or a token.

Owns what a signature covers, for how long it is good, and that it is taken once. The key is the
secret of the cluster; without one it is the token of the node that is called, which that process
draws at its start and tells its peers on the link between nodes. Among peers the signature covers
this token in any case, so it is worth nothing at another node. Must not know protocols, nor what a
call may do.
"""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from itertools import count
from typing import Final, NamedTuple

from google.protobuf.message import Message

from node.peers.security.proof import is_proof, sign
from raft.messages import NodeId

HEADER: Final = "x-quorumlog-node"
"""Has the signature of a call over gRPC, as `NodeProofs.signed` writes it."""
WINDOW_MS: Final = 30_000
"""How far the clocks of two nodes and the way of a call may be apart."""
TOKEN_SIZE_BYTES: Final = 16
_SENDER_SIZE_BYTES: Final = 8
_SENDER_COUNT_MAX: Final = 1_024
"""Processes that signed calls in the window; only holders of the secret can be one."""
_SEEN_COUNT: Final = 1 << 16
"""Calls that a process may have signed between a call and one that arrives before it."""
_SIGNED: Final = ("authorization", "x-mq-", "x-quorumlog-")
"""How the headers begin that a signature covers."""
_SHOWN_LENGTH_MAX: Final = 256
_CALL: Final = "node-call"
_CONNECTION: Final = "node-connection"


def signed_form(request: Message) -> bytes:
    """Return the bytes of a request that a signature covers where only its parsed form is there."""
    return request.SerializeToString(deterministic=True)


class SignedBy(NamedTuple):
    """The node that signed a call."""

    node_id: NodeId
    is_peer: bool
    """Whether it knows the token of this process, as the nodes of its group alone do."""


class BadProofError(Exception):
    """A signature is wrong, too old, or was shown before; says which."""


class _Seen:
    """The calls that one process signed, as far as they were shown here."""

    __slots__ = ("highest", "mask", "newest_ms")

    def __init__(self, number: int) -> None:
        self.highest = number
        self.mask = 0
        """A bit for each number, of the highest one first."""
        self.newest_ms = 0

    def take(self, number: int, at_ms: int) -> bool:
        """Note a number; return whether it is new."""
        if number > self.highest:
            ahead = min(number - self.highest, _SEEN_COUNT)
            self.mask = (self.mask << ahead) & ((1 << _SEEN_COUNT) - 1)
            self.highest = number
        behind = self.highest - number
        if behind >= _SEEN_COUNT or self.mask >> behind & 1:
            return False
        self.mask |= 1 << behind
        self.newest_ms = max(self.newest_ms, at_ms)
        return True


class NodeProofs:
    """Signs for a node, and tells its like from strangers. One per process, for one loop."""

    def __init__(
        self, cluster_id: str, node_id: NodeId, unix_ms: Callable[[], int], token: bytes = b""
    ) -> None:
        """`token` is that of this process; empty: no node learns it."""
        self._cluster_id, self._node_id, self._unix_ms = cluster_id, node_id, unix_ms
        self.token: Final = token
        self.token_of: Callable[[NodeId], bytes] = lambda _node: b""
        """Returns the token of a peer; empty: it has not told one yet."""
        self.secrets: Sequence[bytes] = ()
        """Those of the cluster: the first one signs, each is believed."""
        self._sender: Final = secrets.token_hex(_SENDER_SIZE_BYTES)
        self._numbers: Final = count(1)
        self._began_ms: Final = unix_ms()
        self._seen: dict[str, _Seen] = {}

    def signed(
        self, token: bytes, method: str, body: bytes, headers: Iterable[tuple[str, str]] = ()
    ) -> tuple[tuple[str, str], ...]:
        """Return the headers of a call to the node with a token, with the signature; they alone
        when there is nothing to sign with: neither its token nor a secret."""
        kept, key = tuple(headers), self.secrets[0] if self.secrets else token
        if not key:
            return kept
        head = f"{self._node_id}.{self._sender}.{next(self._numbers)}.{self._unix_ms()}"
        proof = self._proof(token, head, method, kept, sha256(body).digest(), key)
        return (*kept, (HEADER, f"{head}.{proof.hex()}"))

    def signer(self, method: str, body: bytes, headers: Mapping[str, str]) -> SignedBy:
        """Return the node that signed a call, whose headers have a signature. Raises
        BadProofError."""
        shown = headers.get(HEADER, "")
        head, _, proof = shown.rpartition(".")
        try:
            if len(shown) > _SHOWN_LENGTH_MAX:
                raise ValueError
            node_id, sender, number, at_ms = head.split(".")
            who, which, made_ms, given = int(node_id), int(number), int(at_ms), bytes.fromhex(proof)
        except ValueError:
            raise BadProofError("has another form") from None
        signed = head, method, headers.items(), sha256(body).digest()
        for token in dict.fromkeys((self.token, b"")):
            keys, is_given = self._keys(token), partial(self._proof, token, *signed)
            if keys and is_proof(given, keys, is_given):
                break
        else:
            raise BadProofError("is of another call, secret or process")
        now_ms = self._unix_ms()
        if not max(self._began_ms, now_ms - WINDOW_MS) <= made_ms <= now_ms + WINDOW_MS:
            when = "ago" if made_ms < now_ms else "ahead"
            raise BadProofError(
                f"was made {abs(now_ms - made_ms)} ms {when} by the clock of this node"
            )
        if not self._seen_of(sender, which, now_ms).take(which, made_ms):
            raise BadProofError("was shown before")
        return SignedBy(who, bool(token))

    def answer(self, token: bytes, challenge: bytes) -> bytes:
        """Return what proves this node to the one with a token, which drew a challenge for this
        connection."""
        key = self.secrets[0] if self.secrets else token
        return sign(key, _CONNECTION, self._cluster_id, token, challenge)

    def is_answer(self, given: bytes, challenge: bytes) -> bool:
        """Whether a node answered a challenge of this process."""
        keys, fields = self._keys(self.token), (self._cluster_id, self.token, challenge)
        is_whole = bool(keys and self.token and challenge)
        return is_whole and is_proof(given, keys, lambda key: sign(key, _CONNECTION, *fields))

    def _keys(self, token: bytes) -> Sequence[bytes]:
        return self.secrets or ((token,) if token else ())

    def _proof(
        self,
        token: bytes,
        head: str,
        method: str,
        headers: Iterable[tuple[str, str]],
        digest: bytes,
        key: bytes,
    ) -> bytes:
        covered = sorted(row for row in headers if row[0].startswith(_SIGNED) and row[0] != HEADER)
        texts = (text for row in covered for text in row)
        return sign(key, _CALL, self._cluster_id, token, head, method, digest, *texts)

    def _seen_of(self, sender: str, number: int, now_ms: int) -> _Seen:
        seen = self._seen.get(sender)
        if seen is None:
            if len(self._seen) >= _SENDER_COUNT_MAX:
                # What the others signed is too old by now.
                oldest_ms = now_ms - WINDOW_MS
                self._seen = {k: one for k, one in self._seen.items() if one.newest_ms >= oldest_ms}
            if len(self._seen) >= _SENDER_COUNT_MAX:
                raise BadProofError("is of one of too many processes")
            seen = self._seen[sender] = _Seen(number)
        return seen
