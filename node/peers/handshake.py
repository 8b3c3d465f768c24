"""The handshake of the peer link: identity, membership and proof of the other side.

Owns the four handshake frames and every reason for a refusal, as functions over bytes; must not
know sockets or time. The order is: the dialled side sends a Challenge, the dialler a Hello that
signs it, the dialled side a Welcome that signs the Hello's nonce. Either side may say Goodbye with
a code instead. Identity is compared before the proof, so that a node in the wrong cluster learns
the difference; the texts repeat the stranger's words and tell nothing of this node.
"""

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError

from node.peers.security.proof import is_proof, sign
from quorumlog.foreign_text import shown
from quorumlog.pb import peer_pb2 as pb
from raft.messages import NO_INDEX, Index, NodeId

PROTOCOL: Final = 1
NONCE_SIZE_BYTES: Final = 16
_SIGNED_OF_HELLO: Final = (
    *("protocol", "cluster_id", "group", "node_id", "to_node_id", "version", "address", "nonce"),
    *("last_index", "file_size_bytes"),
)
_TEXT_SIZE_MAX: Final = 200  # Characters of a peer's text that are shown.

_Handshake = TypeVar("_Handshake", pb.Challenge, pb.Hello, pb.Welcome)


class CloseCode(StrEnum):
    """Why a connection was refused or dropped. Text for ever: it is on the wire and in metrics."""

    WRONG_PROTOCOL = "wrong_protocol"
    WRONG_CLUSTER = "wrong_cluster"
    WRONG_GROUP = "wrong_group"
    WRONG_NODE = "wrong_node"
    """The dialler looked for another node than this one."""
    UNKNOWN_NODE = "unknown_node"
    """The dialler is not among the peers of this node."""
    BAD_AUTH = "bad_auth"
    WRONG_FILE_SIZE = "wrong_file_size"
    """The log files of the two have other sizes, so no position is the same in both."""
    OLD_COPY = "old_copy"
    """The node began with an old copy of its disk and has forgotten its promises (D18)."""
    REPLACED = "replaced"
    """The peer opened a newer connection."""
    REMOVED = "removed"
    """The node is no longer a peer of this one, or has another address."""
    STOPPING = "stopping"
    PROTOCOL_ERROR = "protocol_error"
    TERM_JUMP = "term_jump"
    """A term or epoch so far ahead that no elections explain it."""
    BAD_CHECKSUM = "bad_checksum"
    """Bytes of a proven peer changed on the way."""

    # From here on never sent: the other side is no peer, or does not read.
    GARBAGE = "garbage"
    """The bytes of a stranger are no handshake."""
    DISPLACED = "displaced"
    """Too many strangers: the oldest unfinished handshake made room."""
    TIMEOUT = "timeout"
    SILENT = "silent"
    TLS = "tls"
    REFUSED = "refused"
    """The other side said Goodbye; its code is in the text."""
    UNREACHABLE = "unreachable"
    """The peer's address does not accept connections."""
    LOST = "lost"
    """Closed by the other side or the network."""


_CODES: Final = tuple(CloseCode)
CODES_SAID: Final = frozenset(_CODES[: _CODES.index(CloseCode.GARBAGE)])
"""Codes that are sent in a Goodbye. A stranger without a valid handshake gets none."""


class HandshakeRefusedError(Exception):
    """The handshake failed: say Goodbye with this code and close."""

    def __init__(self, code: CloseCode, detail: str) -> None:
        super().__init__(code, detail)
        self.code, self.detail = code, detail

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


@dataclass(frozen=True, slots=True)
class LinkIdentity:
    """The identity of this node, as the handshake states it."""

    cluster_id: str
    group: str
    node_id: NodeId
    version: str
    address: str
    """Address of the client service, for redirects: "host:port"."""
    secret: bytes = field(default=b"", repr=False)
    """Shared by the cluster; empty: peers prove nothing."""
    file_size_bytes: int = 0
    """Size of the log's files; 0: not compared."""
    forwarding_token: bytes = field(default=b"", repr=False)
    """What peers show to this node's framed port; empty: it knows no node."""
    other_secret: bytes = field(default=b"", repr=False)
    """Accepted from peers, too, while they renew theirs; empty: there is none."""


class PeerInfo(NamedTuple):
    """The identity of a peer, as the peer states it."""

    node_id: NodeId
    address: str
    last_index: Index
    """Last index of its log when it connected."""
    lives: bytes = b""
    """See `node.replication.lives`."""
    forwarding_token: bytes = b""
    """What the peer's framed port takes for a proof; empty in a Hello."""


def challenge() -> tuple[bytes, bytes]:
    """Return a new nonce and the header of the Challenge that asks to sign it."""
    nonce = secrets.token_bytes(NONCE_SIZE_BYTES)
    return nonce, pb.Challenge(protocol=PROTOCOL, nonce=nonce).SerializeToString()


def hello(
    identity: LinkIdentity, header: bytes, *, to: NodeId, last_index: Index, lives: bytes = b""
) -> tuple[int, bytes]:
    """Return (nonce, header of the Hello) that answers a Challenge. Raises
    HandshakeRefusedError."""
    challenge = _parse(pb.Challenge, header)
    if challenge.protocol < PROTOCOL or len(challenge.nonce) != NONCE_SIZE_BYTES:
        raise HandshakeRefusedError(
            CloseCode.WRONG_PROTOCOL, f"protocol {challenge.protocol} is spoken there"
        )
    made = pb.Hello(
        protocol=PROTOCOL,
        cluster_id=identity.cluster_id,
        group=identity.group,
        node_id=identity.node_id,
        to_node_id=to,
        version=identity.version,
        address=identity.address,
        nonce=secrets.randbits(64),
        last_index=last_index,
        file_size_bytes=identity.file_size_bytes,
        checked_frames=True,
        lives=lives,
    )
    made.auth = _sign_hello(identity.secret, challenge.nonce, made)
    made.lives_auth = _sign_lives(identity.secret, challenge.nonce, identity.node_id, to, lives)
    return made.nonce, made.SerializeToString()


def check_hello(
    identity: LinkIdentity, header: bytes, *, challenge_nonce: bytes, peers: Collection[NodeId]
) -> tuple[int, PeerInfo]:
    """Return the nonce to sign and the dialler. Raises HandshakeRefusedError."""
    hello = _parse(pb.Hello, header)
    if hello.protocol != PROTOCOL:
        detail = f"protocol {hello.protocol} is not spoken here, only {PROTOCOL}"
        raise HandshakeRefusedError(CloseCode.WRONG_PROTOCOL, detail)
    if hello.cluster_id != identity.cluster_id:
        detail = f"cluster {_shown(hello.cluster_id)} is not the one of this node"
        raise HandshakeRefusedError(CloseCode.WRONG_CLUSTER, detail)
    if hello.group != identity.group:
        detail = f"group {_shown(hello.group)} is not the one of this node"
        raise HandshakeRefusedError(CloseCode.WRONG_GROUP, detail)
    if hello.to_node_id != identity.node_id:
        detail = f"node {hello.to_node_id} is not here; check the addresses of the peers"
        raise HandshakeRefusedError(CloseCode.WRONG_NODE, detail)
    if hello.node_id not in peers:
        detail = f"node {hello.node_id} is not among the peers of this node"
        raise HandshakeRefusedError(CloseCode.UNKNOWN_NODE, detail)
    if not _is_proof(
        identity, hello.auth, lambda secret: _sign_hello(secret, challenge_nonce, hello)
    ):
        raise HandshakeRefusedError(CloseCode.BAD_AUTH, "the secrets of the two nodes differ")
    _check_lives(identity, challenge_nonce, hello.node_id, hello)
    sizes = (hello.file_size_bytes, identity.file_size_bytes)
    if all(sizes) and sizes[0] != sizes[1]:
        detail = (
            f"node {hello.node_id} has log files of {sizes[0]} B, this node of {sizes[1]} B; set "
            "one file_size_bytes for the group, and start the node that differs with an empty "
            "directory"
        )
        raise HandshakeRefusedError(CloseCode.WRONG_FILE_SIZE, detail)
    return hello.nonce, _info(hello)


def welcome(
    identity: LinkIdentity, *, to: NodeId, nonce: int, last_index: Index, lives: bytes = b""
) -> bytes:
    """Return the header of the Welcome that answers a Hello with `nonce` from node `to`."""
    made = pb.Welcome(
        node_id=identity.node_id,
        version=identity.version,
        address=identity.address,
        last_index=last_index,
        checked_frames=True,
        lives=lives,
        forwarding_token=identity.forwarding_token,
    )
    made.auth = _sign_welcome(identity.secret, identity, to, nonce, made)
    made.lives_auth = _sign_lives(identity.secret, nonce, identity.node_id, to, lives)
    return made.SerializeToString()


def check_welcome(identity: LinkIdentity, header: bytes, *, to: NodeId, nonce: int) -> PeerInfo:
    """Return the peer that answered the Hello sent to node `to`. Raises HandshakeRefusedError."""
    welcome = _parse(pb.Welcome, header)
    if welcome.node_id != to:
        raise HandshakeRefusedError(
            CloseCode.WRONG_NODE, f"node {welcome.node_id} answered for node {to}"
        )
    own = identity.node_id
    if not _is_proof(
        identity,
        welcome.auth,
        lambda secret: _sign_welcome(secret, identity, own, nonce, welcome),
    ):
        raise HandshakeRefusedError(CloseCode.BAD_AUTH, "the secrets of the two nodes differ")
    _check_lives(identity, nonce, to, welcome)
    return _info(welcome)


def goodbye(code: CloseCode, detail: str) -> bytes:
    """Return the header of a Goodbye."""
    return pb.Goodbye(code=code, message=detail[:_TEXT_SIZE_MAX]).SerializeToString()


def read_goodbye(header: bytes) -> tuple[str, str]:
    """Return code and text of a Goodbye, shortened and printable; never raises."""
    try:
        goodbye = pb.Goodbye.FromString(header)
    except DecodeError:
        return "unreadable", ""
    return _printable(goodbye.code), _printable(goodbye.message)


def _parse(kind: type[_Handshake], header: bytes) -> _Handshake:
    try:
        return kind.FromString(header)
    except DecodeError as error:
        raise HandshakeRefusedError(CloseCode.GARBAGE, f"no {kind.__name__}: {error}") from error


def _info(greeting: pb.Hello | pb.Welcome) -> PeerInfo:
    if greeting.last_index < NO_INDEX:
        raise HandshakeRefusedError(CloseCode.GARBAGE, f"last index {greeting.last_index}")
    if not greeting.checked_frames:
        detail = f"node {greeting.node_id} sends no checksums; start it with this version"
        raise HandshakeRefusedError(CloseCode.WRONG_PROTOCOL, detail)
    return PeerInfo(
        greeting.node_id,
        _printable(greeting.address),
        greeting.last_index,
        greeting.lives,
        greeting.forwarding_token if isinstance(greeting, pb.Welcome) else b"",
    )


def _check_lives(
    identity: LinkIdentity, nonce: bytes | int, sender: NodeId, greeting: pb.Hello | pb.Welcome
) -> None:
    """Raise HandshakeRefusedError unless the proof of `lives` is right."""
    if not _is_proof(
        identity,
        greeting.lives_auth,
        lambda secret: _sign_lives(secret, nonce, sender, identity.node_id, greeting.lives),
    ):
        raise HandshakeRefusedError(CloseCode.BAD_AUTH, "the secrets of the two nodes differ")


def _is_proof(identity: LinkIdentity, proof: bytes, sign_with: Callable[[bytes], bytes]) -> bool:
    other = (identity.other_secret,) if identity.other_secret else ()
    return is_proof(proof, (identity.secret, *other), sign_with)


def _sign_hello(secret: bytes, nonce: bytes, made: pb.Hello) -> bytes:
    return sign(secret, "hello", nonce, *(getattr(made, name) for name in _SIGNED_OF_HELLO))


def _sign_welcome(
    secret: bytes, identity: LinkIdentity, to: NodeId, nonce: int, made: pb.Welcome
) -> bytes:
    signed = (made.node_id, made.version, made.address, made.last_index)
    return sign(secret, "welcome", nonce, identity.cluster_id, identity.group, to, *signed)


def _sign_lives(
    secret: bytes, nonce: bytes | int, sender: NodeId, to: NodeId, lives: bytes
) -> bytes:
    return sign(secret, "lives", nonce, sender, to, lives)


def _shown(text: str) -> str:
    return repr(text[:_TEXT_SIZE_MAX])


def _printable(text: str) -> str:
    return shown(text, _TEXT_SIZE_MAX)
