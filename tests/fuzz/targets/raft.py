"""Targets of Raft: messages of the core, fetched entries, snapshots under way."""

from collections.abc import Callable
from random import Random
from typing import Any, Final, cast

from google.protobuf.message import DecodeError

from node.peers.frames import FrameKind
from node.replication.fetch import EntryServer
from node.replication.raft.codec import SteadyDecoder, SteadyEncoder, decode, encode
from node.replication.raft.snapshot_transfer import SnapshotLimits, SnapshotReceiver
from node.replication.raft.storage.configurations import (
    decode_configuration,
    encode_configuration,
)
from node.state.digest import (
    DIGEST_SIZE_BYTES,
    FORM,
    NAME_SIZE_CHARACTERS_MAX,
    TABLE_COUNT_MAX,
    Digest,
    DigestFormatError,
    from_pb,
    to_pb,
)
from quorumlog.pb import peer_pb2 as pb
from quorumlog.pb.state_pb2 import StateDigest
from raft.errors import PeerProtocolError
from raft.messages import AppendReply, AppendRequest, InstallSnapshot
from store.files.checksum import crc32c
from tests.fuzz.structure import message, mutated_message
from tests.fuzz.target import KIB, FuzzTarget, claim

_KINDS: Final[tuple[tuple[FrameKind, Any], ...]] = (
    (FrameKind.APPEND, pb.AppendEntries),
    (FrameKind.APPEND_REPLY, pb.AppendReply),
    (FrameKind.VOTE_REQUEST, pb.VoteRequest),
    (FrameKind.VOTE_REPLY, pb.VoteReply),
    (FrameKind.INSTALL_SNAPSHOT, pb.InstallSnapshot),
    (FrameKind.CAMPAIGN_NOW, pb.CampaignNow),
)
_ACK: Final = pb.AppendReply(term=3, match=900, refused_prev=-1, hint_last=-1, round=2)


def _codec(data: bytes) -> None:
    """The first byte chooses the kind of message."""
    kind, header = _KINDS[data[0] % len(_KINDS)][0] if data else FrameKind.APPEND, data[1:]
    # The short way learns the form of the acks of a sender, here from one before.
    steady = SteadyDecoder("g", 1)
    steady.decode(FrameKind.APPEND_REPLY, _ACK.SerializeToString(), 2)
    try:
        found = decode(kind, header, group="g", sender=2, to=1)
    except PeerProtocolError:
        _refused_too(steady, kind, header)
        raise
    claim(steady.decode(kind, header, 2) == found, "the short way reads something else")
    again_kind, again = encode(found)
    claim(again_kind is kind, f"{kind} becomes {again_kind}")
    claim(decode(kind, again, group="g", sender=2, to=1) == found, f"{found} reads otherwise")
    if isinstance(found, AppendRequest):
        claim(SteadyEncoder().append(found) == again, "the short way writes something else")
    elif isinstance(found, AppendReply):
        claim(SteadyEncoder().reply(found) == again, "the short way writes something else")


def _refused_too(steady: SteadyDecoder, kind: FrameKind, header: bytes) -> None:
    try:
        steady.decode(kind, header, 2)
    except PeerProtocolError:
        return
    claim(False, "the short way takes what the other refuses")


def _good(random: Random, kind: FrameKind, made: Any) -> Any:
    """Make the numbers of a random message fit each other, mostly."""
    if kind is FrameKind.APPEND:
        made.term, made.prev_term, made.prev_index = 5, random.choice((1, 5)), random.choice((0, 9))
        made.hi, made.commit = made.prev_index + 1 + random.choice((0, 1, 4)), 3
        del made.runs[:], made.configurations[:]
        if made.hi > made.prev_index + 1:
            made.runs.add(index=made.prev_index + 1, term=5)
            if random.random() < 0.3:
                held = made.configurations.add(index=made.prev_index + 1).configuration
                held.voters.extend((1, 2, 3))
    elif kind is FrameKind.APPEND_REPLY:
        match = random.choice(
            (random.getrandbits(random.randint(1, 60)), random.randrange(128, 9_000))
        )
        made = pb.AppendReply(term=3, match=match, round=2)
        made.refused_prev = made.hint_last = -1
        made.standing, made.refusal = random.choice((0, 0, 1)), random.choice((0, 0, 1, 2))
    elif kind is FrameKind.VOTE_REQUEST:
        made.term, made.last_term, made.last_index = 7, 3, 44
        made.vote_term = 8 if made.pre else 7
    elif kind is FrameKind.VOTE_REPLY:
        made.term, made.vote_term, made.refusal, made.granted = 7, 7, 0, True
        made.diverged = False
    elif kind is FrameKind.INSTALL_SNAPSHOT:
        made.term = 5
        made.meta.Clear()
        made.meta.index, made.meta.term = 90, 4
        made.meta.configuration_at.index = 3
        made.meta.configuration_at.configuration.voters.extend((1, 2))
    return made


def _codec_examples(random: Random) -> list[bytes]:
    found = []
    for at, (kind, pb_class) in enumerate(_KINDS):
        made = _good(random, kind, message(random, pb_class))
        found.append(bytes((at,)) + made.SerializeToString())
    return found


def _mutated_codec(random: Random, data: bytes) -> bytes:
    if not data:
        return data
    return data[:1] + mutated_message(_KINDS[data[0] % len(_KINDS)][1])(random, data[1:])


# Fetched entries and snapshots: frames in a row.


class _Link:
    def send(self, _node: int, _kind: FrameKind, header: bytes, payload: bytes = b"") -> bool:
        pb.FetchedEntries.FromString(header)
        return True

    def is_connected(self, _node: int) -> bool:
        return True


_STEPS: Final = (FrameKind.FETCH_ENTRIES, FrameKind.INSTALL_SNAPSHOT, FrameKind.SNAPSHOT_CHUNK)
_STATE_SIZE_BYTES_MAX: Final = 2 * KIB


def _transfer(data: bytes) -> None:
    """Frames: kind, sizes of header and payload in two bytes each, header, payload."""
    received: list[bytes] = []

    def on_received(_message: InstallSnapshot, state: bytes) -> None:
        received.append(state)

    limits = SnapshotLimits(state_size_bytes_max=_STATE_SIZE_BYTES_MAX)
    receiver = SnapshotReceiver("g", 1, on_received, limits)
    server = EntryServer(cast(Any, _Link()), lambda _lo, _hi, _max: b"", lambda: 50)
    for kind, header, payload in _steps_of(data):
        on_frame: Callable[..., None] = receiver.on_frame
        if kind is FrameKind.FETCH_ENTRIES:
            on_frame = server.on_frame
        on_frame(2, kind, header, memoryview(payload))
        held = receiver.held_size_bytes
        claim(held <= min(len(data), _STATE_SIZE_BYTES_MAX), f"{held} bytes are held")
    claim(sum(map(len, received)) <= len(data), "more state than was sent")


def _steps_of(data: bytes) -> list[tuple[FrameKind, bytes, bytes]]:
    found, at = [], 0
    while at + 5 <= len(data):
        kind = _STEPS[data[at] % len(_STEPS)]
        header_hi = at + 5 + int.from_bytes(data[at + 1 : at + 3], "big")
        payload_hi = header_hi + int.from_bytes(data[at + 3 : at + 5], "big")
        found.append((kind, data[at + 5 : header_hi], data[header_hi:payload_hi]))
        at = payload_hi
    return found


def _step(number: int, header: bytes, payload: bytes = b"") -> bytes:
    sizes = len(header).to_bytes(2, "big") + len(payload).to_bytes(2, "big")
    return bytes((number,)) + sizes + header + payload


def _transfer_examples(random: Random) -> list[bytes]:
    state = bytes(random.choice((b"a", b"")))[:1] * random.randint(0, 60)
    install = _good(random, FrameKind.INSTALL_SNAPSHOT, pb.InstallSnapshot())
    install.size_bytes, install.crc = len(state), crc32c(state)
    cut = random.randint(0, len(state))
    stream = _step(1, install.SerializeToString())
    for at, part in ((0, state[:cut]), (cut, state[cut:])):
        stream += _step(2, pb.SnapshotChunk(index=90, at=at).SerializeToString(), part)
    fetch = pb.FetchEntries(request_id=1, lo=3, hi=random.choice((4, 99))).SerializeToString()
    return [stream, _step(0, fetch), stream + _step(0, fetch)]


def _configuration(data: bytes) -> None:
    found = decode_configuration(data)
    if found is not None:
        again = decode_configuration(encode_configuration(found))
        claim(again == found, f"{found} becomes {again}")


# Digests of the state: a frame of a replica, and a command in the log.


def _digest(data: bytes) -> None:
    found = from_pb(StateDigest.FromString(data))
    claim(from_pb(to_pb(found)) == found, f"{found} becomes another one")
    claim(len(found.tables) <= TABLE_COUNT_MAX, f"{len(found.tables)} tables are kept")
    claim(found.differing(found) == (), f"{found} differs from itself")


def _digest_examples(random: Random) -> list[bytes]:
    names = ("topics", "groups", "t" * NAME_SIZE_CHARACTERS_MAX)
    tables = tuple((name, random.randbytes(DIGEST_SIZE_BYTES)) for name in sorted(names))
    many = tuple((f"t{n:02}", bytes(DIGEST_SIZE_BYTES)) for n in range(TABLE_COUNT_MAX))
    made = (
        Digest(random.getrandbits(40), FORM, tables),
        Digest(9, FORM + 1, many),
        Digest(0, 0, ()),
    )
    return [to_pb(one).SerializeToString() for one in made]


TARGETS: Final = (
    FuzzTarget(
        "raft-codec",
        "a message is refused by name, or reads the same after it is written; short ways agree",
        _codec,
        ("node.replication.raft.codec", "raft.core"),
        _codec_examples,
        (PeerProtocolError,),
        mutated=_mutated_codec,
    ),
    FuzzTarget(
        "raft-transfer",
        "fetches and snapshots are refused by name, and no more is held than has arrived",
        _transfer,
        ("node.replication.fetch", "node.replication.raft.snapshot_transfer"),
        _transfer_examples,
        (PeerProtocolError,),
    ),
    FuzzTarget(
        "raft-configuration",
        "the body of a configuration entry is none, or reads the same after it is written",
        _configuration,
        ("node.replication.raft.storage.configurations",),
        lambda _: [pb.Configuration(voters=[1, 2, 3], learners=[4]).SerializeToString(), b""],
        mutated=mutated_message(pb.Configuration),
    ),
    FuzzTarget(
        "raft-state-digest",
        "a digest of the state is refused by name, or reads the same and has few tables",
        _digest,
        ("node.state.digest",),
        _digest_examples,
        (DecodeError, DigestFormatError),  # The leader drops the connection for both.
        mutated=mutated_message(StateDigest),
    ),
)
